"""Can a task tell policies apart at all, at this scale? A task that cannot is marked, never dropped."""

from __future__ import annotations

from collections.abc import Sequence

from inertia.reports.estimates import mean
from inertia.reports.scores import CellScores

FLOOR = 0.20
"""Where even the full cache's interval ends below this score, the model cannot do the task at all."""


def why_uninformative(full: CellScores | None, compressed: Sequence[CellScores]) -> str | None:
    """Return the reason why a task separates no policies, or None where it may.

    Args:
        full: The full cache on that task, None where it was not run.
        compressed: The other policies on the same examples.
    """
    ability = mean(full.values) if full is not None and full.complete else None
    if ability is not None and ability.high < FLOOR:
        return f"floor: the full cache's interval ends at {100 * ability.high:.0f}, below {100 * FLOOR:.0f}"
    if len(compressed) > 1 and all(c.complete and c.values == compressed[0].values for c in compressed):
        return "no contrast: every compressed policy scores the same on every example"
    return None
