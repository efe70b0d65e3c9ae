"""All thirteen RULER tasks, one by one, under the full cache and two policies."""

from __future__ import annotations

from inertia.paper.words import MEASURED, MEMORY, ORDER, OURS, PAIRED, TITLES, TO_FULL_CACHE
from inertia.reports.declaration import Table

RULER13 = Table(
    name="ruler13",
    title="RULER's thirteen tasks{ratio}, {scale} scale: {backbone}",
    experiment="ruler13",
    rows=("method",),
    columns=("task", "length"),
    quantities=MEASURED,
    comparisons=(TO_FULL_CACHE,),
    order=ORDER,
    titles=TITLES,
    stub="method",
    notes=(OURS, PAIRED, MEMORY),
)
