"""What sealed records say of a backbone: how long its prompts and answers were, and how fast it was."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from inertia.experiments.plan.speed import Measured
from inertia.records.canonical import canonical_json
from inertia.records.read import Cell, survey
from inertia.records.rows import load

COLUMNS = (
    "cell_id",
    "example_id",
    "prompt_tokens",
    "new_tokens",
    "prefill_seconds",
    "decode_seconds",
    "batch_rows",
    "telemetry",
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rows:
    """Recorded examples of one sealed cell.

    Attributes:
        backbone: identity of the backbone, as canonical JSON.
        benchmark: name of the benchmark.
        task: its task.
        length: nominal length.
        rows: the ok rows, `COLUMNS` of each.
    """

    backbone: str
    benchmark: str
    task: str
    length: int | None
    rows: tuple[Mapping[str, Any], ...]


def read(results: Path, backbones: Collection[str]) -> list[Rows]:
    """Return the sealed rows of some backbones: runs of one's own, else published ones; each cell once.

    What cannot be read is named in the log and left out: this is history, the run itself will say.

    Args:
        results: the results folder.
        backbones: identities as canonical JSON.
    """
    found: dict[str, Rows] = {}
    for source in (results / "published", results / "runs"):
        for cell, rows in _sealed(source, backbones) if source.is_dir() else ():
            place = cell.identity["benchmark"]
            backbone = canonical_json(cell.identity["backbone"])
            found[cell.id] = Rows(backbone, place["name"], place.get("task"), place.get("length"), rows)
    return list(found.values())


def answers(history: Collection[Rows], benchmark: str, task: str) -> list[int]:
    """Return the recorded numbers of new tokens of a task, at any length and policy."""
    return [
        row["new_tokens"] for each in history if (each.benchmark, each.task) == (benchmark, task) for row in each.rows
    ]


def prompts(history: Collection[Rows], benchmark: str, task: str, length: int | None) -> list[int]:
    """Return the recorded prompt lengths of a task at a nominal length."""
    place = (benchmark, task, length)
    return [
        row["prompt_tokens"]
        for each in history
        if (each.benchmark, each.task, each.length) == place
        for row in each.rows
    ]


def measured(history: Collection[Rows]) -> Measured | None:
    """Return the throughput of one backbone's records, or None where none has a decoded token.

    Rows that decoded together report one wall time; the longest of them says how many steps it took.
    """
    rows = [row for each in history for row in each.rows if row["prefill_seconds"] and row["decode_seconds"]]
    together: dict[tuple[str, str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        batch = json.loads(row["telemetry"]).get("decoded_with", row["cell_id"])
        together.setdefault((batch, row["example_id"], row["batch_rows"]), []).append(row)
    steps: dict[int, list[float]] = {}
    for (_, _, size), mates in together.items():
        count = max(row["new_tokens"] for row in mates) - 1
        if count > 0:
            steps.setdefault(size, []).append(max(row["decode_seconds"] for row in mates) / count)
    if not steps:
        return None
    speed = sum(row["prompt_tokens"] for row in rows) / sum(row["prefill_seconds"] for row in rows)
    return Measured(speed, {size: median(found) for size, found in sorted(steps.items())}, len(together))


def _sealed(source: Path, backbones: Collection[str]) -> Iterator[tuple[Cell, tuple[Mapping[str, Any], ...]]]:
    cells, damages = survey(source)
    wanted = [cell.id for cell in cells if cell.sealed and _is_of(cell, backbones)]
    read = load(source, COLUMNS, wanted, check=False)
    for damage in dict.fromkeys([*damages, *read.damages]):
        log.warning("%s; it is left out of what was measured", damage.reason)
    rows = iter(read.table.to_pylist())
    counts = Counter(read.place.tolist())
    for place, cell in enumerate(read.cells):
        yield cell, tuple(islice(rows, counts[place]))


def _is_of(cell: Cell, backbones: Collection[str]) -> bool:
    identity = cell.identity
    return canonical_json(identity.get("backbone")) in backbones and isinstance(identity.get("benchmark"), Mapping)
