"""Can a task tell policies apart at all, at this scale? A task that cannot is marked, never dropped."""

from __future__ import annotations

from collections.abc import Sequence

from inertia.reports.source import Cell
from inertia.statistics import interval

FLOOR = 0.20
"""Where even the full cache's interval ends below this score, the model cannot do the task at all."""

REASONS = ("floor", "no contrast")
"""How the reasons begin, by which a note is told from others."""


def why_uninformative(full: Cell | None, compressed: Sequence[Cell]) -> str | None:
    """Return the reason why a task separates no policies, or None where it may.

    Args:
        full: the full cache on that task, None where it was not run.
        compressed: the other policies on the same examples.
    """
    ability = interval(list(scores(full).values())) if full is not None and full.complete else None
    if ability is not None and ability.high < FLOOR:
        return f"{REASONS[0]}: the full cache's interval ends at {100 * ability.high:.0f}, below {100 * FLOOR:.0f}"
    if len(compressed) > 1 and all(cell.complete and scores(cell) == scores(compressed[0]) for cell in compressed):
        return f"{REASONS[1]}: every compressed policy scores the same on every example"
    return None


def scores(cell: Cell) -> dict[str, float]:
    """Return example id -> official score in [0, 1]."""
    return {sample["example_id"]: float(sample["score"]) for sample in cell.samples}
