"""Sealed cells replayed into W&B, as often as one likes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from inertia.records.facts import Facts
from inertia.records.mirrored import free_attempt, mirrored
from inertia.records.read import Cell, read_published
from inertia.records.wandb_mirror import mirror, plain_project, possible_mode


@dataclass(frozen=True)
class Synced:
    """What became of the sealed cells.

    Attributes:
        written: ids of the W&B runs that were made.
        skipped: ids of cells that were there already.
        failed: ids of cells that could not be mirrored; the reason was logged.
    """

    written: tuple[str, ...]
    skipped: tuple[str, ...]
    failed: tuple[str, ...]


def sync_wandb(
    cells: Sequence[Facts],
    directory: Path,
    *,
    mode: Literal["offline", "online"] = "offline",
    project: str = "inertia",
    group: str | None = None,
    again: bool = False,
    watch: Callable[[Sequence[Any]], Iterable[Any]] = iter,
) -> Synced:
    """Mirror each sealed cell that was not mirrored into `directory` with this mode and project before.

    Args:
        cells: the cells; incomplete ones are left out.
        directory: folder of everything W&B writes.
        mode: "online" needs a key, and is offline without.
        project: W&B project.
        group: the sweep; None takes each cell's own.
        again: mirror those that are there too, as the next attempt.
        watch: wraps the cells that are worked on, for a progress bar.

    Raises:
        CorruptRecord: naming a damaged file.
    """
    mode, project = possible_mode(mode), plain_project(project)
    done = {(entry.cell, entry.rows_sha256, entry.mode, entry.project) for entry in mirrored(directory)}
    sealed = [facts for facts in cells if facts.summary is not None]
    skipped = [
        facts.id for facts in sealed if not again and (facts.id, facts.summary["rows_sha256"], mode, project) in done
    ]
    left = set(skipped)
    written, failed = [], []
    for facts in watch([facts for facts in sealed if facts.id not in left]):
        attempt = free_attempt(directory, facts.id) if again else None
        run = mirror(
            facts.source if facts.source.is_dir() else _published(facts),
            mode=mode,
            project=project,
            directory=directory,
            group=group,
            attempt=attempt,
        )
        if run is None:
            failed.append(facts.id)
        else:
            written.append(run)
    return Synced(tuple(written), tuple(skipped), tuple(failed))


def _published(facts: Facts) -> Cell:
    return next(cell for cell in read_published(facts.source) if cell.id == facts.id)
