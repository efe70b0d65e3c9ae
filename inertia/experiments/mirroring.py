"""Sealed cells to W&B: what is not there yet."""

from __future__ import annotations

from collections.abc import Iterable

from inertia.experiments.cells import Outcome
from inertia.records.writer import Writer


def mirror(outcomes: Iterable[Outcome], writer: Writer) -> None:
    """Copy sealed cells to W&B that are not there yet; whatever happens there is only logged."""
    for outcome in outcomes:
        logger = outcome.cell.config.logger
        if logger.mode == "disabled" or outcome.summary is None or outcome.cell.config.shard is not None:
            continue
        raise NotImplementedError
