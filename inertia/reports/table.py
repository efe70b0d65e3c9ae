"""A finished table: its numbers in long form for programs, and its grid for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from inertia.reports.grid import Grid

if TYPE_CHECKING:
    from pandas import DataFrame


class Table(NamedTuple):
    """A report's table; ``frame`` holds one printed number per row, with its cell ids, commit and date."""

    name: str
    frame: DataFrame
    grid: Grid
