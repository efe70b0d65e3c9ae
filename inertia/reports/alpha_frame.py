"""The alpha sweep for programs: one printed number per row, with everything needed to trace it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from inertia.reports.alpha import COMPARED, Measured, Slot, Sweep
from inertia.reports.paper import BACKBONE, PaperCurve
from inertia.reports.source import Source

if TYPE_CHECKING:
    from pandas import DataFrame

# One type per column, whatever is missing: a column of nothing but blanks must not change it.
COLUMNS = {
    "source": "string",
    "scale": "string",
    "backbone": "string",
    "benchmark": "string",
    "task": "string",
    "length": "Int64",
    "method": "string",
    "alpha": "Float64",
    "quantity": "string",
    "value": "Float64",
    "low": "Float64",
    "high": "Float64",
    "test": "string",
    "p": "Float64",
    "p_holm": "Float64",
    "n": "Int64",
    "planned": "Int64",
    "status": "string",
    "note": "string",
    "commit": "string",
    "recorded": "string",
    "cells": "string",
}


def alpha_frame(sweep: Sweep, curves: Sequence[PaperCurve], source: Source) -> DataFrame:
    """Return the sweep in long form, ours first, then the paper's; the columns are `COLUMNS`.

    ``quantity`` is "score" (0 to 100), "difference" (alpha 0.8 minus alpha 0, in points) or the paper's
    "accuracy_0_1". Ours carry interval, n, cell ids (separated by blanks), commit and date of the records.
    """
    import pandas as pd

    rows = [*_ours(sweep, source), *_papers(sweep, curves)]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def _ours(sweep: Sweep, source: Source) -> Iterator[dict[str, Any]]:
    columns = (*sweep.slots, None)
    for alpha in sweep.rows:
        for slot in columns:
            yield _our_row(sweep, source, slot, alpha, sweep.scores[alpha, slot])
    for slot in columns:
        row = _our_row(sweep, source, slot, COMPARED[0], sweep.differences[slot])
        yield row | {"quantity": "difference", "p_holm": None if slot is None else sweep.holm.get(slot)}


def _our_row(
    sweep: Sweep, source: Source, slot: Slot | None, alpha: float | None, measured: Measured
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "source": "ours",
        "scale": source.index.scale,
        "backbone": source.index.backbone,
        "benchmark": "ruler",
        "task": "mean" if slot is None else slot.task,
        "length": None if slot is None else slot.length,
        "method": "full_cache" if alpha is None else "inertiakv",
        "alpha": alpha,
        "quantity": "score",
        "n": measured.done,
        "planned": measured.planned,
        "status": measured.status,
        "note": None if slot is None else sweep.uninformative.get(slot),
        "commit": source.provenance.commit,
        "recorded": source.provenance.recorded,
        "cells": " ".join(measured.cell_ids),
    }
    if measured.estimate is None:
        return row
    points = {end: round(100 * getattr(measured.estimate, end), 6) for end in ("value", "low", "high")}
    return row | points | {"p": measured.estimate.p, "test": measured.estimate.test}


def _papers(sweep: Sweep, curves: Sequence[PaperCurve]) -> Iterator[dict[str, Any]]:
    for curve in curves:
        for alpha in (row for row in sweep.rows if row in curve.values):
            yield {
                "source": "paper",
                "scale": "paper",
                "backbone": BACKBONE,
                "benchmark": curve.benchmark,
                "task": "mean",
                "method": "full_cache" if alpha is None else "inertiakv",
                "alpha": alpha,
                "quantity": curve.metric,
                "value": curve.values[alpha],
                "status": "as printed",
                "note": "table 4" if alpha is None else "table 5",
            }
