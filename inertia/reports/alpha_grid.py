"""The alpha sweep for people: one grid with our tasks, their mean, and the paper's benchmarks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inertia.records.frame import NULL
from inertia.reports.alpha import COMPARED, Measured, Slot, Sweep
from inertia.reports.grid import Column, Grid, Row
from inertia.reports.paper import LABEL, SCALE, PaperCurve
from inertia.reports.source import Source

UNINFORMATIVE = "†"
OWN_TASK = "‡"
GAP = f"{COMPARED[0]:g} minus {COMPARED[1]:g}"


def alpha_grid(sweep: Sweep, curves: Sequence[PaperCurve], source: Source) -> Grid:
    """Return the sweep as a grid: rows for the full cache, each alpha, and the paired difference."""
    slots = (*sweep.slots, None)
    rows = [
        Row(
            "full cache" if alpha is None else f"{alpha:g}",
            (
                *(_score(sweep.scores[alpha, slot]) for slot in slots),
                *(_printed(curve, curve.values.get(alpha)) for curve in curves),
            ),
            rule_above=position == 1,
        )
        for position, alpha in enumerate(sweep.rows)
    ]
    high, low = COMPARED
    gaps = (_printed(curve, curve.values[high] - curve.values[low], sign="+") for curve in curves)
    rows.append(Row(GAP, (*(_difference(sweep, slot) for slot in slots), *gaps), rule_above=True))
    columns = (
        *(_task_column(sweep, slot) for slot in sweep.slots),
        Column("", "mean", (f"tasks={len(sweep.averaged_tasks)}", _denominator(sweep, None))),
        *(Column("paper", curve.title) for curve in curves),
    )
    return Grid(_title(source), "alpha", columns, tuple(rows), tuple(_notes(sweep, source)))


def _title(source: Source) -> str:
    column = "policy.budget.compression_ratio"
    found = source.samples[column].unique().tolist() if column in source.samples else []
    ratios = [ratio for ratio in found if ratio != NULL]
    budget = f" at {100 * ratios[0]:g}% compression" if len(ratios) == 1 else ""
    return (
        f"Table 5, alpha sweep{budget}, {source.index.scale} scale: {source.index.backbone_label}, on RULER; "
        f"beside it the paper's {LABEL}"
    )


def _task_column(sweep: Sweep, slot: Slot) -> Column:
    marks = UNINFORMATIVE * (slot in sweep.uninformative) + OWN_TASK * (not slot.official)
    place = " ".join(part for part in ("" if slot.length is None else f"@{slot.length}", marks) if part)
    details = (place, _denominator(sweep, slot)) if place else (_denominator(sweep, slot),)
    return Column("", slot.task, details, dim=slot in sweep.uninformative)


def _denominator(sweep: Sweep, slot: Slot | None) -> str:
    found = {sweep.scores[row, slot].planned for row in sweep.rows} - {0}
    return "n=" + ("/".join(str(n) for n in sorted(found)) if found else "0")


def _score(measured: Measured) -> tuple[str, ...]:
    estimate = measured.estimate
    if estimate is None:
        return () if measured.planned == 0 else tuple(measured.status.split(" "))
    return f"{100 * estimate.value:.1f}", f"[{100 * estimate.low:.0f}, {100 * estimate.high:.0f}]"


def _difference(sweep: Sweep, slot: Slot | None) -> tuple[str, ...]:
    measured = sweep.differences[slot]
    estimate = measured.estimate
    if estimate is None or estimate.p is None:
        return _score(measured)
    p = estimate.p if slot is None else sweep.holm[slot]
    return (
        f"{100 * estimate.value:+.1f}",
        f"[{100 * estimate.low:+.0f}, {100 * estimate.high:+.0f}]",
        "p<.001" if p < 0.001 else f"p={p:.3f}".replace("=0.", "=."),
    )


def _printed(curve: PaperCurve, value: float | None, sign: str = "") -> tuple[str, ...]:
    if value is None:
        return ()
    return (f"{value:{sign}.3f}" if curve.metric == "accuracy_0_1" else f"{value:{sign}.2f}",)


def _notes(sweep: Sweep, source: Source) -> Iterator[str]:
    tasks = ", ".join(sweep.averaged_tasks)
    yield (
        "Ours: official score, 0 to 100, over n examples per cell, with its 95% interval (Wilson; with the "
        "effective sample size and Student's t for the mean over tasks and for scores other than 0 and 1). "
        f"The mean is over {tasks}; each task and length counts the same."
    )
    yield (
        f"Paper: {LABEL}, as printed; model, lengths and n differ from ours. {SCALE}. "
        "Its full cache is that of its table 4."
    )
    yield (
        f"{GAP}: paired by example; p two-sided, exact McNemar where all scores are 0 or 1, else by sign "
        "flips; Holm-corrected over our tasks, the mean's p stands alone."
    )
    for slot, reason in sweep.uninformative.items():
        yield f"{UNINFORMATIVE} {slot.title} is uninformative at this scale ({reason}); it is not dropped."
    own = sorted({slot.task for slot in sweep.slots if slot not in sweep.averaged})
    if own:
        yield f"{OWN_TASK} a task of our own, no official RULER task, not in the mean: {', '.join(own)}."
    yield f"Records: {source.provenance.line()}; {len(source.index.cells)} cells, their ids stand in the CSV."
