"""Figure 9: how much each benchmark cares about alpha, every curve over its own maximum.

Deviations: the alphas stand at equal distances, so that 0.8, 0.9 and 0.95 can be told apart.
"""

from __future__ import annotations

from inertia.paper.table05 import TABLE05
from inertia.reports.declaration import Figure, Panel

FIGURE09 = Figure(
    name="figure09",
    table=TABLE05,
    x="alpha",
    panels=(
        Panel(
            "Paper: Llama-3.1-8B-Instruct, full-size benchmarks\n(as printed, no intervals)",
            {"source": "paper"},
            ("benchmark",),
        ),
        Panel(
            "Ours, {scale} scale: {backbone}\n(RULER, {counts} examples per point, 95% intervals)",
            {"source": "ours", "quantity": "score"},
            ("task", "length"),
        ),
    ),
    x_label="alpha (0: the last layer alone)",
    y_label="score / largest score over alpha",
    over_maximum=True,
    foot="Table 5, each curve over its maximum. Records: {records}{not_drawn}",
)
