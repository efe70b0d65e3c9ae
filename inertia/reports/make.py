"""From a declaration to a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inertia.reports.declaration import Figure, Table
from inertia.reports.estimates import estimates, frame_of
from inertia.reports.pivot import pivot
from inertia.reports.plotting import draw
from inertia.reports.source import Source
from inertia.reports.write import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


def build_table(table: Table, source: Source) -> Report:
    """Return a table of an experiment's records; equal records give equal reports."""
    rows = estimates(source, table)
    return Report(table.name, frame_of(rows, table), pivot(source, table, rows))


def build_figure(figure: Figure, source: Source) -> Drawing:
    """Return a figure of an experiment's records."""
    return draw(figure, source, estimates(source, figure.table))
