"""What a run prints: a table for people on stderr's terminal width, one JSON line for programs, last on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inertia.harness import Outcome


def print_outcomes(outcomes: Sequence[Outcome], *, brief: bool) -> None:
    """Print how each cell ended.

    Args:
        outcomes: the cells.
        brief: leave out the sealed cells, whose numbers a report prints better.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=True)
    shown = [outcome for outcome in outcomes if not brief or outcome.summary is None]
    if shown:
        table = Table(title="cells", title_justify="left")
        table.add_column("cell", no_wrap=True)
        for column in ("policy", "task", "length"):
            table.add_column(column, overflow="fold")
        for column in ("n", "score", "95%", "kept"):
            table.add_column(column, justify="right", no_wrap=True)
        for outcome in shown:
            table.add_row(*cells(outcome))
        console.print(table)
    for outcome in outcomes:
        if outcome.problem is not None:
            console.print(f"[red]incomplete[/red] {outcome.problem}", soft_wrap=True, highlight=False)
    sealed = [outcome for outcome in outcomes if outcome.summary is not None]
    line = {"cells": len(outcomes), "sealed": len(sealed), "incomplete": len(outcomes) - len(sealed)}
    sys.stderr.flush()
    print(json.dumps(line))


def cells(outcome: Outcome) -> tuple[str, ...]:
    """Return the printed columns of one cell."""
    cell, summary = outcome.cell, outcome.summary
    names = (cell.id, cell.config.label, cell.task, "-" if cell.length is None else str(cell.length))
    if summary is None:
        return (*names, "incomplete", "-", "-", "-")
    score = summary["score"]
    kept = summary["mean_retained_tokens"]
    return (
        *names,
        f"{summary['ok']}",
        f"{100 * score['mean']:.1f}",
        f"[{100 * score['low']:.0f}, {100 * score['high']:.0f}]",
        "-" if kept is None else f"{kept:.0f}",
    )
