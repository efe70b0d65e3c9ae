"""Sealed cells to W&B: what is not there yet, once per run."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from inertia.experiments.cells import Cell, Outcome
from inertia.paths import results_dir
from inertia.records.journal import CorruptRecord
from inertia.records.layout import find_cell

log = logging.getLogger(__name__)


def mirrored(cells: Iterable[Cell]) -> frozenset[tuple[str, str]]:
    """Return (cell, hash of its rows) of all that W&B has from here; a kill between seal and mirror leaves a gap."""
    if all(cell.config.logger.mode == "disabled" for cell in cells):
        return frozenset()
    from inertia.records.mirrored import mirrored as noted

    try:
        return frozenset((entry.cell, entry.rows_sha256) for entry in noted(results_dir() / "wandb"))
    except CorruptRecord as error:
        log.warning("%s; sealed cells are mirrored again", error)
        return frozenset()


def mirror(outcomes: Iterable[Outcome], there: frozenset[tuple[str, str]]) -> None:
    """Copy sealed cells to W&B that are not there yet; whatever happens there is only logged.

    Args:
        outcomes: of cells.
        there: what `mirrored` said.
    """
    for outcome in outcomes:
        cell, logger = outcome.cell, outcome.cell.config.logger
        whole = outcome.summary is not None and cell.config.shard is None
        if logger.mode == "disabled" or not whole or (cell.id, outcome.summary["rows_sha256"]) in there:
            continue
        from inertia.records.wandb_mirror import mirror as to_wandb

        # Group and tags are those of the manifest, in which nothing is private.
        folder = find_cell(cell.root, cell.id)
        if folder is not None:
            to_wandb(folder, mode=logger.mode, project=logger.project, directory=results_dir() / "wandb")
