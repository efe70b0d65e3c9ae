"""The paper's alpha sweep on its main backbone, to stand beside ours; nothing in it was measured here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from inertia.paper.reference import reference

BACKBONE = "llama-3.1-8b-instruct"
LABEL = "Llama-3.1-8B-Instruct"
SCALE = "RULER: mean of 13 tasks at 4k and 16k; LongBench: mean of 8 tasks; LongBench-v2: accuracy, 0 to 1"
_TITLES = {"ruler": "RULER", "longbench": "LongBench", "longbench_v2": "LongBench-v2"}


class PaperCurve(NamedTuple):
    """One benchmark of the paper: its name, its unit ("score" 0-100 or "accuracy_0_1"), and value by alpha.

    The key None is the full cache, which stands in the paper's table 4.
    """

    benchmark: str
    title: str
    metric: str
    values: Mapping[float | None, float]


def paper_curves() -> tuple[PaperCurve, ...]:
    """Return the paper's curves over alpha: RULER, LongBench, LongBench-v2, in this order."""
    sweep = reference(5)
    baselines = reference(4)
    baselines = baselines[(baselines["backbone"] == BACKBONE) & (baselines["method"] == "full_cache")]
    full = baselines.set_index("benchmark")["value"]
    curves = []
    for benchmark, title in _TITLES.items():
        rows = sweep[(sweep["backbone"] == BACKBONE) & (sweep["benchmark"] == benchmark)]
        values: dict[float | None, float] = {None: float(full[benchmark])}
        values |= {float(a): float(v) for a, v in zip(rows["alpha"], rows["value"], strict=True)}
        curves.append(PaperCurve(benchmark, title, rows["metric"].iloc[0], values))
    return tuple(curves)
