"""A grid in the terminal, in blocks of columns where the window is too narrow for all of them."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from inertia.reports.grid import Column, Grid

_HEADER_WIDTH = 11  # longer task names break at an underscore
_GAP = 2  # characters between two columns: one of padding, one that the box draws


def show(grid: Grid, console: Console) -> None:
    """Print the grid; each block of columns repeats the row labels.

    A block keeps within the console's width, unless a single column does not fit: nothing is ever cut off.
    """
    console.print(Text(grid.title, style="bold"))
    wanted, stub = widths(grid), stub_width(grid)
    for chosen in blocks(grid, console.width):
        needed = stub + sum(wanted[index] + _GAP for index in chosen)
        wide = Console(file=console.file, width=max(console.width, needed), color_system=console.color_system)
        wide.print()
        wide.print(drawn(grid, chosen))
    console.print()
    for note in grid.notes:
        console.print(Text(note, style="dim"))


def blocks(grid: Grid, width: int) -> list[list[int]]:
    """Return the column indices of each block, in order; every column is in one, and none is empty."""
    found: list[list[int]] = []
    free = 0
    for index, needed in enumerate(widths(grid)):
        if not found or free < needed + _GAP:
            found.append([])
            free = width - stub_width(grid)
        found[-1].append(index)
        free -= needed + _GAP
    return found


def drawn(grid: Grid, chosen: list[int]) -> Table:
    """Return a block of columns, headers aligned at the bottom."""
    headers = {index: header_lines(grid.columns[index]) for index in chosen}
    depth = max(map(len, headers.values()))
    table = Table(box=SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column(Text("\n" * (depth - 1) + grid.stub), no_wrap=True)
    for index, lines in headers.items():
        text = Text("\n" * (depth - len(lines)) + "\n".join(lines))
        table.add_column(text, justify="right", style="dim" if grid.columns[index].dim else None, no_wrap=True)
    for row, after in zip(grid.rows, [*grid.rows[1:], None], strict=True):
        cells = [Text("\n".join(row.cells[index]) or "-") for index in chosen]
        table.add_row(Text(row.label), *cells, end_section=after is not None and after.rule_above)
    return table


def stub_width(grid: Grid) -> int:
    """Return how wide the row labels are."""
    return max(len(grid.stub), *(len(row.label) for row in grid.rows))


def widths(grid: Grid) -> list[int]:
    """Return how wide each column is."""
    lines = [[*header_lines(column), *(line for row in grid.rows for line in row.cells[index])]
             for index, column in enumerate(grid.columns)]  # fmt: skip
    return [max(map(len, column), default=1) for column in lines]


def header_lines(column: Column) -> list[str]:
    """Return a header's lines; a long task name breaks at the underscore where its lines are most alike."""
    name = column.name
    places = [place for place, letter in enumerate(name) if letter == "_" and place > 0]
    if len(name) > _HEADER_WIDTH and places:
        best = min(places, key=lambda place: max(place, len(name) - place))
        name = f"{name[:best]}\n{name[best:]}"
    return [*([column.group] if column.group else []), *name.split("\n"), *column.details]
