"""What a run prints: a table for people on stderr's terminal width, one JSON line for programs, last on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from inertia.experiments.cells import Outcome
from inertia.experiments.config import RunConfig
from inertia.experiments.labels import policy_label


def report(configs: Sequence[RunConfig], outcomes: Sequence[Outcome]) -> int:
    """Print what was measured and what is missing; return the exit code, 0 when every cell, or its shard, is sealed."""
    print_outcomes(outcomes, brief=any(config.experiment_name for config in configs))
    return int(any(outcome.problem is not None for outcome in outcomes))


def print_outcomes(outcomes: Sequence[Outcome], *, brief: bool) -> None:
    """Print how each cell ended.

    Args:
        outcomes: the cells.
        brief: leave out the sealed cells, whose numbers a report prints better.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=True, highlight=False)
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
            table.add_row(*columns(outcome))
        console.print(table)
    for outcome in outcomes:
        if outcome.problem is not None:
            console.print(f"[red]incomplete[/red] {outcome.problem}", soft_wrap=True)
    parts = [outcome for outcome in outcomes if outcome.cell.config.shard is not None and outcome.problem is None]
    sealed = [outcome for outcome in outcomes if outcome.summary is not None and outcome not in parts]
    ties = {outcome.cell.id: near_ties(outcome.summary) for outcome in sealed}
    if any(ties.values()):
        console.print(
            f"near ties: {sum(ties.values())} in {sum(map(bool, ties.values()))} of {len(sealed)} cells (a token or "
            "victim within rounding of another: such a policy may answer otherwise when it decodes alone)"
        )
    named = [outcome.cell.config for outcome in sealed if brief and outcome.cell.config.experiment_name is not None]
    for experiment, profile in dict.fromkeys((each.experiment_name, each.profile_name or "custom") for each in named):
        console.print(f"scores: python -m inertia.report scores {experiment} --profile {profile}")
    line = {"cells": len(outcomes), "sealed": len(sealed), "incomplete": len(outcomes) - len(sealed) - len(parts)}
    sys.stderr.flush()
    print(json.dumps({**line, "shards": len(parts)} if parts else line))


def near_ties(summary: Mapping[str, Any]) -> int:
    """Return how many choices of a sealed cell were within rounding of another one in a shared batch."""
    found = (summary["metrics"] or {}).get("near_ties")
    return 0 if found is None else round(found["mean"] * found["n"])


def columns(outcome: Outcome) -> tuple[str, ...]:
    """Return the printed columns of one cell."""
    cell, summary = outcome.cell, outcome.summary
    names = (cell.id, policy_label(cell.config), cell.task, "-" if cell.length is None else str(cell.length))
    if summary is None:
        return (*names, "incomplete" if outcome.problem is not None else "0", "-", "-", "-")
    score, kept = summary["score"], summary["mean_retained_tokens"]
    return (
        *names,
        f"{summary['ok']}" if cell.config.shard is None else f"{summary['ok']} ({cell.config.shard})",
        f"{100 * score['mean']:.1f}",
        f"[{100 * score['low']:.0f}, {100 * score['high']:.0f}]",
        "-" if kept is None else f"{kept:.0f}",
    )
