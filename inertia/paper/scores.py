"""Any experiment: a row per policy, a column per task, their mean, and what was kept."""

from __future__ import annotations

from inertia.paper.words import MEASURED, MEMORY, ORDER, OURS, TITLES, not_official
from inertia.reports.declaration import Table


def scores(experiment: str) -> Table:
    """Declare the scores of an experiment."""
    return Table(
        name=f"scores-{experiment}",
        title="{experiment}, {scale} scale: {backbone}",
        experiment=experiment,
        rows=("policy",),
        quantities=MEASURED,
        own=not_official,
        order=ORDER,
        titles=TITLES,
        notes=(OURS, MEMORY),
    )
