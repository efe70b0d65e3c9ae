"""Tables on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def digits(value: float) -> str:
    """Return a positive number with about three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def show(rows: Iterable[Sequence[str]], title: str, columns: Sequence[str]) -> None:
    """Print rows of text as a table to stderr; the first column and one named "checks" are flush left."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        left = number == 0 or column == "checks"
        table.add_column(column, justify="left" if left else "right", overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*row)
    console = Console(stderr=True)
    # A log file has no width of its own, and a folded table is hard to read there.
    (console if console.is_terminal else Console(stderr=True, width=180)).print(table)
