"""Can a task tell policies apart at all, at this scale? A task that cannot is marked, never dropped."""

from __future__ import annotations

from collections.abc import Sequence

from inertia.reports.declaration import FULL_CACHE
from inertia.reports.layout import MEAN, Key, Spot
from inertia.reports.source import Cell
from inertia.statistics import interval

FLOOR = 0.20
"""Where even the full cache's interval ends below this score, the model cannot do the task at all."""

REASONS = ("floor", "no contrast")
"""How the reasons begin, by which a note is told from others."""


def uninformative(found: Sequence[Spot]) -> dict[tuple[Key, Key], dict[str, str]]:
    """Return a note for each column of a single task that tells no policies apart, by context and column."""
    places: dict[tuple[Key, Key], list[Cell]] = {}
    for spot in (spot for spot in found if spot.settings["task"] != MEAN):
        places.setdefault((spot.context, spot.column), []).extend(cell for cell in spot.cells if cell is not None)
    notes = {}
    for place, cells in places.items():
        full = next((cell for cell in cells if cell.settings["method"] == FULL_CACHE), None)
        if reason := why_uninformative(full, [cell for cell in cells if cell.settings["method"] != FULL_CACHE]):
            notes[place] = {"note": reason}
    return notes


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
