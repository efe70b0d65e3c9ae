"""A grid as GitHub-flavoured Markdown."""

from __future__ import annotations

from inertia.reports.grid import Column, Grid


def markdown(grid: Grid) -> str:
    """Return the grid as Markdown text: heading, one table, one list of notes; it ends in a newline."""
    header = [grid.stub, *(_header(column) for column in grid.columns)]
    lines = [
        f"# {grid.title}",
        "",
        _line(header),
        _line(["---", *("---:" for _ in grid.columns)]),
        *(_line([row.label, *(" ".join(cell) or "-" for cell in row.cells)]) for row in grid.rows),
        "",
        *(f"- {_escape(note)}" for note in grid.notes),
    ]
    return "\n".join(lines) + "\n"


def _header(column: Column) -> str:
    return ": ".join(part for part in (column.group, " ".join((column.name, *column.details))) if part)


def _line(fields: list[str]) -> str:
    return "| " + " | ".join(_escape(field) for field in fields) + " |"


def _escape(text: str) -> str:
    # A pipe would open a new column; underscores in task names must not turn into emphasis.
    return text.replace("|", "\\|").replace("_", "\\_")
