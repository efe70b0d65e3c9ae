"""Table 5: the alpha sweep at one compression ratio with the full cache, ours beside the paper's.

Deviations: the paper prints neither intervals nor a full-cache row here; the latter is from its table 4.
"""

from __future__ import annotations

from inertia.paper.reference import RULER_TASKS, reference
from inertia.paper.words import LLAMA, ORDER, OURS, TITLES
from inertia.reports.declaration import Comparison, Reference, Table

TABLE05 = Table(
    name="table05",
    title="Table 5, alpha sweep{ratio}, {scale} scale: {backbone}, on RULER; beside it the paper's "
    "Llama-3.1-8B-Instruct",
    experiment="table05",
    rows=("method", "alpha"),
    columns=("task", "length"),
    where={"method": ("full_cache", "inertiakv")},
    own=lambda task: task not in RULER_TASKS,
    mean_of_official=True,
    comparisons=(Comparison({"method": "inertiakv", "alpha": 0.0}, {"method": "inertiakv", "alpha": 0.8}),),
    references=(
        Reference(lambda: reference(4), "table 4", {"backbone": LLAMA, "method": "full_cache"}),
        Reference(lambda: reference(5), "table 5", {"backbone": LLAMA}),
    ),
    order=ORDER,
    titles=TITLES,
    stub="alpha",
    label=lambda row: "full cache" if row["alpha"] is None else f"{row['alpha']:g}",
    notes=(
        OURS,
        "Paper: Llama-3.1-8B-Instruct, as printed; model, lengths and n differ from ours. RULER: mean of 13 tasks at "
        "4k and 16k; LongBench: mean of 8 tasks; LongBench-v2: accuracy, 0 to 1. Its full cache is that of its table "
        "4.",
        "0.8 minus 0: paired by example; p two-sided, exact McNemar where all scores are 0 or 1, else by sign flips; "
        "Holm-corrected over our tasks, the mean's p stands alone.",
    ),
)
