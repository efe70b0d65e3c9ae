"""A grid in the terminal, in blocks of columns where the window is too narrow for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from inertia.reports.grid import Column, Grid

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_HEADER_WIDTH = 11  # longer task names break at an underscore
_GAP = 2  # characters between two columns: one of padding, one that the box draws


def show(grid: Grid, console: Console) -> None:
    """Print the grid; each block of columns repeats the row labels and keeps within the console's width."""
    from rich.text import Text

    console.print(Text(grid.title, style="bold"))
    for chosen in blocks(grid, console.width):
        console.print()
        console.print(_table(grid, chosen))
    console.print()
    for note in grid.notes:
        console.print(Text(note, style="dim"))


def blocks(grid: Grid, width: int) -> list[list[int]]:
    """Return the column indices of each block, in order; every column is in one, and none is empty."""
    stub = max(len(grid.stub), *(len(row.label) for row in grid.rows))
    found: list[list[int]] = []
    free = 0
    for index, needed in enumerate(_widths(grid)):
        if not found or free < needed + _GAP:
            found.append([])
            free = width - stub
        found[-1].append(index)
        free -= needed + _GAP
    return found


def _table(grid: Grid, chosen: list[int]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    headers = {index: list(_header_lines(grid.columns[index])) for index in chosen}
    depth = max(len(lines) for lines in headers.values())
    table = Table(box=SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column(Text("\n" * (depth - 1) + grid.stub), no_wrap=True)
    for index in chosen:
        lines = [""] * (depth - len(headers[index])) + headers[index]
        dim = grid.columns[index].dim
        table.add_column(Text("\n".join(lines)), justify="right", style="dim" if dim else None, no_wrap=True)
    for position, row in enumerate(grid.rows):
        last = position + 1 == len(grid.rows)
        ends_section = not last and grid.rows[position + 1].rule_above
        cells = [Text("\n".join(row.cells[index]) or "-") for index in chosen]
        table.add_row(Text(row.label), *cells, end_section=ends_section)
    return table


def _widths(grid: Grid) -> Iterator[int]:
    for index, column in enumerate(grid.columns):
        lines = [*_header_lines(column), *(line for row in grid.rows for line in row.cells[index])]
        yield max((len(line) for line in lines), default=1)


def _header_lines(column: Column) -> Iterator[str]:
    if column.group:
        yield column.group
    yield from _broken(column.name)
    yield from column.details


def _broken(name: str) -> tuple[str, ...]:
    # At the underscore that leaves the shorter of two lines longest, which is where people read a break.
    places = [place for place, letter in enumerate(name) if letter == "_" and place > 0]
    if len(name) <= _HEADER_WIDTH or not places:
        return (name,)
    best = min(places, key=lambda place: max(place, len(name) - place))
    return name[:best], name[best:]
