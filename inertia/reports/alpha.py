"""The alpha sweep as numbers: what table 5 prints and figure 9 draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from inertia.paper.reference import RULER_TASKS
from inertia.reports.estimates import Estimate, difference, mean, mean_difference, mean_over
from inertia.reports.informative import why_uninformative
from inertia.reports.scores import CellScores
from inertia.statistics import holm

PAPER_ALPHAS = (0.0, 0.3, 0.6, 0.8, 0.9, 0.95)
COMPARED = (0.8, 0.0)
"""The paper's default alpha and its end point, the last layer alone: the table tests their difference."""


class Slot(NamedTuple):
    """A measured column: one task at one length; ``official`` says that it counts into the mean."""

    task: str
    length: int | None
    official: bool

    @property
    def title(self) -> str:
        """Return the name to print, such as "vt @1024"."""
        return self.task if self.length is None else f"{self.task} @{self.length}"


class Measured(NamedTuple):
    """One number of the sweep with its denominator; ``estimate`` is None where examples are missing."""

    estimate: Estimate | None = None
    done: int = 0
    planned: int = 0
    cell_ids: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """Return "ok", "incomplete 17/20", or "not run" where nothing was planned."""
        if self.planned == 0:
            return "not run"
        return f"incomplete {self.done}/{self.planned}" if self.estimate is None else "ok"


@dataclass(frozen=True)
class Sweep:
    """The whole sweep; a row is an alpha, or None for the full cache, a column a slot, or None for the mean.

    ``differences`` holds alpha = 0.8 minus alpha = 0 per column, paired by example, and ``holm`` its p values
    corrected over the slots; ``uninformative`` maps slots that separate no policies to the reason.
    """

    rows: tuple[float | None, ...]
    slots: tuple[Slot, ...]
    averaged: tuple[Slot, ...]
    scores: Mapping[tuple[float | None, Slot | None], Measured]
    differences: Mapping[Slot | None, Measured]
    holm: Mapping[Slot, float]
    uninformative: Mapping[Slot, str]

    @property
    def alphas(self) -> tuple[float, ...]:
        """Return the rows that are an alpha, ascending."""
        return tuple(row for row in self.rows if row is not None)

    @property
    def averaged_tasks(self) -> tuple[str, ...]:
        """Return the tasks in the mean, each once, however many lengths it was run at."""
        return tuple(dict.fromkeys(slot.task for slot in self.averaged))


def alpha_sweep(cells: Sequence[CellScores]) -> Sweep:
    """Return the sweep of method ``inertiakv`` over alpha, with the full cache; other methods are left out.

    The mean runs over the official tasks, each counting the same; with none of those, over all tasks.
    Uninformative tasks stay in it: the paper's mean does not pick its tasks by their outcome either.

    Raises:
        ValueError: Two cells claim the same place, as when a second axis was swept along.
    """
    at: dict[tuple[float | None, Slot], CellScores] = {}
    for scores in cells:
        if scores.cell.axes["method"] in ("full_cache", "inertiakv"):
            place = _row(scores), _slot(scores)
            twin = at.get(place, scores).cell.cell_id
            if twin != scores.cell.cell_id:
                raise ValueError(
                    f"cells {twin} and {scores.cell.cell_id} share method, alpha, task and length; "
                    "report them apart"
                )
            at[place] = scores
    slots = tuple(sorted({slot for _, slot in at}, key=_order))
    rows = (None, *sorted({row for row, _ in at if row is not None} | set(PAPER_ALPHAS)))
    averaged = tuple(slot for slot in slots if slot.official) or slots
    high, low = COMPARED

    def one(row: float | None, slot: Slot) -> Measured:
        return _measured([at.get((row, slot))], lambda c: mean(c[0].values))

    def across(row: float | None) -> Measured:
        return _measured([at.get((row, s)) for s in averaged], lambda cs: mean_over([c.values for c in cs]))

    def paired(slot: Slot) -> Measured:
        pair = [at.get((high, slot)), at.get((low, slot))]
        return _measured(pair, lambda c: difference(c[0].values, c[1].values))

    def paired_across() -> Measured:
        chosen = [at.get((alpha, slot)) for alpha in COMPARED for slot in averaged]
        half = len(averaged)
        return _measured(
            chosen, lambda cs: mean_difference([c.values for c in cs[:half]], [c.values for c in cs[half:]])
        )

    reasons = {
        slot: why_uninformative(at.get((None, slot)), [at[r, slot] for r in rows[1:] if (r, slot) in at])
        for slot in slots
    }
    differences = {slot: paired(slot) for slot in slots}
    measured = {(row, slot): one(row, slot) for row in rows for slot in slots}
    corrected = holm({slot.title: m.estimate.p for slot, m in differences.items() if m.estimate is not None})
    return Sweep(
        rows=rows,
        slots=slots,
        averaged=averaged,
        scores=measured | {(row, None): across(row) for row in rows},
        differences=differences | {None: paired_across()},
        holm={slot: corrected[slot.title] for slot in slots if slot.title in corrected},
        uninformative={slot: reason for slot, reason in reasons.items() if reason is not None},
    )


def _measured(
    cells: Sequence[CellScores | None], estimate: Callable[[Sequence[CellScores]], Estimate | None]
) -> Measured:
    present = [c for c in cells if c is not None]
    if not present or len(present) < len(cells):
        return Measured(cell_ids=tuple(c.cell.cell_id for c in present))
    return Measured(
        estimate=estimate(present) if all(c.complete for c in present) else None,
        done=sum(len(c.values) for c in present),
        planned=sum(c.cell.planned for c in present),
        cell_ids=tuple(c.cell.cell_id for c in present),
    )


def _row(scores: CellScores) -> float | None:
    axes = scores.cell.axes
    return None if axes["method"] == "full_cache" else float(axes["alpha"])


def _slot(scores: CellScores) -> Slot:
    return Slot(scores.cell.task, scores.cell.length, official=scores.cell.task in RULER_TASKS)


def _order(slot: Slot) -> tuple[int, str, int]:
    rank = RULER_TASKS.index(slot.task) if slot.official else len(RULER_TASKS)
    return rank, slot.task, -1 if slot.length is None else slot.length
