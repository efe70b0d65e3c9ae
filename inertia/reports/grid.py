"""A printed table as a value: what stands where, before it becomes terminal text or Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pandas import DataFrame


class Column(NamedTuple):
    """One column: ``group`` ("paper", or "" for ours), name, small print, and whether it is dimmed."""

    group: str
    name: str
    details: tuple[str, ...] = ()
    dim: bool = False


class Row(NamedTuple):
    """One row: a label and, per column, the lines of its cell (value, interval, p); no lines print as "-"."""

    label: str
    cells: tuple[tuple[str, ...], ...]
    rule_above: bool = False


class Grid(NamedTuple):
    """A titled table with notes under it; every row has one cell per column."""

    title: str
    stub: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


class Report(NamedTuple):
    """A finished table: its numbers in long form for programs, and its grid for people."""

    name: str
    frame: DataFrame
    grid: Grid
