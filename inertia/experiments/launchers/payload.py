"""What is shipped to another process, as plain data, and what is done with it there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from inertia.experiments.cells import Cell, cells_of, groups_of
from inertia.experiments.config import from_plain
from inertia.experiments.launchers.settings import Local
from inertia.experiments.shards import Shard

if TYPE_CHECKING:
    from pathlib import Path

    from inertia.benchmarks.registry import Benchmark


@dataclass(frozen=True)
class Payload:
    """Groups of cells for one process.

    Attributes:
        configs: the resolved configs of the jobs that asked for the cells.
        cells: ids of the cells; the other cells of these jobs are someone else's.
        shard: number and count of the part of their examples, or None for all.
        results: the folder of results, absolute.
    """

    configs: tuple[Mapping[str, Any], ...]
    cells: tuple[str, ...]
    shard: tuple[int, int] | None
    results: str


def divide(cells: Sequence[Cell], *, shards: int, groups_per_job: int, results: Path) -> list[Payload]:
    """Return the work that brings cells to their seal: whole groups, or parts of them, several to a process.

    Groups share a process only if they share backbone and part, so that it loads one model.
    """
    groups, found = groups_of(cells), []
    parts = [None] if shards == 1 else [Shard(number + 1, shards) for number in range(shards)]
    for part in parts:
        wanted = [group for group in groups if part is None or any(part.of(cell.planned) for cell in group)]
        for _, alike in groupby(wanted, key=lambda group: group[0].identity["backbone"]):
            for batch in chunks(list(alike), groups_per_job):
                mine = [cell for group in batch for cell in group]
                asked = part or mine[0].config.shard
                found.append(
                    Payload(
                        # Cells of one job share its config.
                        configs=tuple({id(cell.config): cell.config.resolved for cell in mine}.values()),
                        cells=tuple(cell.id for cell in mine),
                        shard=None if asked is None else (asked.number, asked.count),
                        results=str(results.absolute()),
                    )
                )
    return found


def chunks(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Return items in runs of at most `size`."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def run_payload(payload: Payload) -> dict[str, str]:
    """Bring the cells of a piece of work to their seal; return what is wrong with those that stayed incomplete.

    The results are the records; nothing measured travels back.

    Raises:
        ValueError: the cells are not those of the submitting process: its code or data differ from ours.
    """
    from inertia.experiments.run import run

    shard = None if payload.shard is None else Shard(*payload.shard)
    with results_at(payload.results):
        # The bar is drawn where the work was divided.
        configs = [replace(from_plain(each), shard=shard, launcher=Local(), progress=False) for each in payload.configs]
        shared: dict[Benchmark, Benchmark] = {}
        jobs = [[cell for cell in cells_of(config, shared) if cell.id in payload.cells] for config in configs]
        strange = set(payload.cells) - {cell.id for job in jobs for cell in job}
        if strange:
            raise ValueError(
                f"cells {', '.join(sorted(strange))} are unknown here: this machine has other code or other data than "
                "the one that submitted them; give both the same checkout and the same data"
            )
        outcomes = run(configs, jobs, file=file_of(payload))
    return {outcome.cell.id: outcome.problem for outcome in outcomes if outcome.problem is not None}


def file_of(payload: Payload) -> str:
    """Return the name of the file that a piece of work writes: the same each time that it is started again."""
    digest = hashlib.sha256(" ".join(payload.cells).encode("ascii")).hexdigest()[:8]
    part = "" if payload.shard is None else f"-{payload.shard[0]}of{payload.shard[1]}"
    return f"job-{digest}{part}"


@contextmanager
def results_at(folder: str) -> Iterator[None]:
    """Write results below `folder` inside the block."""
    before = dict(os.environ)
    os.environ["INERTIA_RESULTS"] = folder
    try:
        yield
    finally:
        os.environ.pop("INERTIA_RESULTS")
        os.environ.update({key: value for key, value in before.items() if key == "INERTIA_RESULTS"})
