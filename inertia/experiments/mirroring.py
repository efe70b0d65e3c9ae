"""Sealed cells to W&B: what is not there yet."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from inertia.experiments.cells import Outcome
from inertia.paths import results_dir
from inertia.records.rows import read_cells
from inertia.records.store import CorruptRecord
from inertia.records.writer import Writer

log = logging.getLogger(__name__)


def mirror(outcomes: Iterable[Outcome], writer: Writer) -> None:
    """Copy sealed cells to W&B that are not there yet; whatever happens there is only logged."""
    wanted = {
        outcome.cell.id: outcome
        for outcome in outcomes
        if outcome.cell.config.logger.mode != "disabled" and outcome.summary and outcome.cell.config.shard is None
    }
    if not wanted:
        return
    from inertia.records.wandb_mirror import mirror as to_wandb
    from inertia.records.wandb_mirror import mirrored

    directory = results_dir() / "wandb"
    there = {(each.cell, each.rows_sha256) for each in mirrored(directory)}
    ids = [name for name, outcome in wanted.items() if (name, outcome.summary["rows_sha256"]) not in there]
    try:
        # Group and tags are those of the records, in which nothing is private.
        for cell in read_cells(writer.root, ids) if ids else ():
            logger = wanted[cell.id].cell.config.logger
            to_wandb(cell, mode=logger.mode, project=logger.project, directory=directory)
    except CorruptRecord as error:
        log.warning("%s; `python -m inertia.records sync-wandb` mirrors what can be read", error)
