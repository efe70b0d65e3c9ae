"""What a run prints: a table for people on stderr's terminal width, one JSON line for programs, last on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inertia.experiments.cells import variant

if TYPE_CHECKING:
    from inertia.experiments.cells import Outcome


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
        table.add_column("policy", overflow="fold", min_width=10)
        for column in ("task", "length"):
            table.add_column(column, no_wrap=True)
        for column in ("n", "score", "95%", "kept"):
            table.add_column(column, justify="right", no_wrap=True)
        for outcome in shown:
            table.add_row(*cells(outcome))
        console.print(table)
    for outcome in outcomes:
        if outcome.problem is not None:
            console.print(f"[red]incomplete[/red] {outcome.problem}", soft_wrap=True, highlight=False)
    parts = [outcome for outcome in outcomes if outcome.cell.config.shard is not None and outcome.problem is None]
    sealed = [outcome for outcome in outcomes if outcome.summary is not None and outcome not in parts]
    ties = {outcome.cell.id: near_ties(outcome.summary) for outcome in sealed}
    if any(ties.values()):
        count, places = sum(ties.values()), sum(map(bool, ties.values()))
        console.print(
            f"near ties: {count} in {places} of {len(sealed)} cells (a token or victim within rounding of another: "
            "such a policy may answer otherwise when it decodes alone)",
            highlight=False,
        )
    for experiment, profile in dict.fromkeys(
        (outcome.cell.config.experiment_name, outcome.cell.config.profile_name or "custom") for outcome in sealed
    ):
        if brief and experiment is not None:
            console.print(f"scores: python -m inertia.report scores {experiment} --profile {profile}", highlight=False)
    line = {"cells": len(outcomes), "sealed": len(sealed), "incomplete": len(outcomes) - len(sealed) - len(parts)}
    if parts:
        line["shards"] = len(parts)
    sys.stderr.flush()
    print(json.dumps(line))


def near_ties(summary: Mapping[str, Any]) -> int:
    """Return how many choices of a sealed cell were within rounding of another one in a shared batch."""
    found = (summary["metrics"] or {}).get("near_ties")
    return 0 if found is None else round(found["mean"] * found["n"])


def cells(outcome: Outcome) -> tuple[str, ...]:
    """Return the printed columns of one cell."""
    cell, summary = outcome.cell, outcome.summary
    names = (cell.id, variant(cell.config), cell.task, "-" if cell.length is None else str(cell.length))
    if summary is None:
        return (*names, "incomplete" if outcome.problem is not None else "0", "-", "-", "-")
    score = summary["score"]
    kept = summary["mean_retained_tokens"]
    return (
        *names,
        f"{summary['ok']}" if cell.config.shard is None else f"{summary['ok']} ({cell.config.shard})",
        f"{100 * score['mean']:.1f}",
        f"[{100 * score['low']:.0f}, {100 * score['high']:.0f}]",
        "-" if kept is None else f"{kept:.0f}",
    )
