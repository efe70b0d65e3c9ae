"""Which tables and figures there are, and which experiment each is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from inertia.reports.figure09 import figure09
from inertia.reports.source import Source
from inertia.reports.table import Table
from inertia.reports.table05 import table05

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class TableReport(NamedTuple):
    """A table: the experiment whose records it needs, and the function from those records to the table."""

    experiment: str
    build: Callable[[Source], Table]


class FigureReport(NamedTuple):
    """A figure: the experiment whose records it needs, and the function from those records to the figure."""

    experiment: str
    build: Callable[[Source], Figure]


Report = TypeVar("Report", TableReport, FigureReport)

TABLES: Mapping[int, TableReport] = {5: TableReport("table05", table05)}
FIGURES: Mapping[int, FigureReport] = {9: FigureReport("table05", figure09)}


def table_report(number: int) -> TableReport:
    """Return the table of that number in the paper.

    Raises:
        KeyError: There is none; the message lists those there are.
    """
    return _get(TABLES, number, "table")


def figure_report(number: int) -> FigureReport:
    """Return the figure of that number in the paper.

    Raises:
        KeyError: There is none; the message lists those there are.
    """
    return _get(FIGURES, number, "figure")


def _get(reports: Mapping[int, Report], number: int, kind: str) -> Report:
    if number not in reports:
        raise KeyError(f"no {kind} {number}; allowed: {', '.join(str(known) for known in sorted(reports))}")
    return reports[number]
