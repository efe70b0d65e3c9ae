"""Every method at one ratio: score, difference to the full cache, what was kept, and whether the question was seen."""

from __future__ import annotations

from dataclasses import replace

from inertia.paper.words import MEASURED, MEMORY, ORDER, OURS, PAIRED, TITLES, TO_FULL_CACHE, not_official
from inertia.reports.declaration import Table

METHODS = Table(
    name="methods",
    title="Every method{ratio}, {scale} scale: {backbone}",
    experiment="methods",
    rows=("method", "question_visible"),
    columns=(),
    quantities=MEASURED,
    own=not_official,
    comparisons=(replace(TO_FULL_CACHE, in_columns=True),),
    order=ORDER,
    titles=TITLES,
    stub="method",
    notes=(
        OURS,
        PAIRED,
        MEMORY,
        "Question seen: what evicts knows the question, as it does while decoding; context only: the prompt was "
        "compressed before the question came.",
    ),
)
