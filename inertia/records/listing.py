"""Cells chosen by name, as lines for people or for programs; and which cells make up an experiment."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from inertia.records.canonical import canonical_json
from inertia.records.names import names
from inertia.records.progress import Damage
from inertia.records.read import Cell, sources
from inertia.records.store import CorruptRecord, reading, rows

STATUSES = ("complete", "incomplete", "damaged")
_log = logging.getLogger(__name__)
_WIDE = 100
_SHORTEST = 8
_GAP = "  "
_NAMES = ("backbone", "benchmark", "policy", "task")
_NARROW = ("cell", "policy", "task", "length", "n", "score", "kept")


@dataclass(frozen=True)
class Filter:
    """Which cells are meant; every pattern may hold * and ?, None lets everything through.

    Attributes:
        backbone: pattern of the backbone's name.
        benchmark: pattern of the benchmark's name.
        task: pattern of the task.
        policy: pattern of the policy's label, with its settings ("inertiakv-0.8-*") or without ("inertiakv").
        status: one of `STATUSES`.
    """

    backbone: str | None = None
    benchmark: str | None = None
    task: str | None = None
    policy: str | None = None
    status: str | None = None

    def __call__(self, cell: Cell | Damage) -> bool:
        """Tell whether a cell is meant; a damaged one has no names, so only the status can leave it out."""
        if self.status is not None and status(cell) != self.status:
            return False
        if isinstance(cell, Damage):
            return True
        found = names(cell.manifest)
        return (
            _matches(self.backbone, found.backbone)
            and _matches(self.benchmark, found.benchmark)
            and _matches(self.task, found.task)
            and _matches(self.policy, found.policy, found.method)
        )


def status(cell: Cell | Damage) -> str:
    """Return one of `STATUSES`."""
    if isinstance(cell, Damage):
        return "damaged"
    return "complete" if cell.sealed else "incomplete"


def as_json(cell: Cell | Damage) -> str:
    """Return a cell as one line of JSON, numbers in full precision, null for what is not known."""
    if isinstance(cell, Damage):
        cells = None if cell.cells is None else list(cell.cells)
        about = {"status": "damaged", "source": str(cell.source), "reason": cell.reason, "cells": cells}
        return json.dumps(about)
    summary = cell.summary if cell.summary is not None else {}
    return json.dumps(
        {
            "cell_id": cell.id,
            "label": cell.label,
            **names(cell.manifest)._asdict(),
            "status": status(cell),
            "ok": cell.done,
            "planned": len(cell.manifest["planned"]),
            "score": summary.get("score"),
            "retained_tokens": summary.get("mean_retained_tokens"),
            "sources": [str(path) for path in cell.sources],
        }
    )


def as_table(cells: Iterable[Cell | Damage], width: int | None) -> list[str]:
    """Return a header and one line a cell, of at most `width` characters; None means as wide as need be.

    Below 100 characters backbone, benchmark and interval are left out. Scores are percentages; an incomplete
    cell shows "17/20" and no score. Names that do not fit end in "~"; what is damaged is named by its file.
    """
    listed = list(cells)
    shown = sorted((_row(cell) for cell in listed if isinstance(cell, Cell)), key=lambda row: row.pop("order"))
    broken = [f"damaged  {cell.reason}" for cell in listed if isinstance(cell, Damage)]
    if not shown:
        return broken
    header = [name for name in shown[0] if width is None or width >= _WIDE or name in _NARROW]
    columns = [[name, *(row[name] for row in shown)] for name in header]
    limits = _fit([max(map(len, column)) for column in columns], [name in _NAMES for name in header], width)
    for name, column, limit in zip(header, columns, limits, strict=True):
        adjust = str.ljust if name == "cell" or name in _NAMES else str.rjust
        column[:] = [adjust(text if len(text) <= limit else text[: limit - 1] + "~", limit) for text in column]
    return [*(_GAP.join(line).rstrip() for line in zip(*columns, strict=True)), *broken]


def listed(root: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return (experiment, profile) -> what makes it up: of a cell, and of equal axes, task and length, what is newest.

    Several jobs may share one experiment; an older entry of equal place and axes is an older run of the same thing.

    Raises:
        FileNotFoundError, OldRecords: as `read.sources`.
    """
    found: list[dict[str, Any]] = []
    for path in sources(root):
        try:
            with reading(path) as connection:
                found += rows(connection, "listing")
        except CorruptRecord as error:
            _log.warning("%s; experiments are listed without it", error)
    latest: dict[tuple[str, ...], str] = {}
    several = sorted(found, key=lambda row: row["listed"])
    for row in several:
        latest |= dict.fromkeys(_places(row), row["listed"])
    current: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in several:
        if all(latest[place] == row["listed"] for place in _places(row)):
            current.setdefault((row["experiment"], row["profile"]), []).append(json.loads(row["entry"]))
    return current


def _places(row: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return what a later listing replaces this one by: its cell, and its axes, task and length."""
    key, entry = (row["experiment"], row["profile"]), json.loads(row["entry"])
    return [(*key, row["cell"]), (*key, canonical_json([entry[name] for name in ("axes", "task", "length")]))]


def _row(cell: Cell) -> dict[str, Any]:
    found, planned = names(cell.manifest), len(cell.manifest["planned"])
    score = cell.summary["score"] if cell.summary is not None else None
    kept = cell.summary["mean_retained_tokens"] if cell.summary is not None else None
    length = -1 if found.length is None else found.length
    return {
        "order": (found.backbone, found.benchmark, found.task, length, found.policy, cell.id),
        "cell": cell.id,
        "backbone": found.backbone,
        "benchmark": found.benchmark,
        "policy": found.policy,
        "task": found.task,
        "length": "-" if found.length is None else str(found.length),
        "n": str(planned) if cell.sealed else f"{cell.done}/{planned}",
        "score": "-" if score is None else f"{100 * score['mean']:.1f}",
        "95%": "-" if score is None else f"[{100 * score['low']:.0f}, {100 * score['high']:.0f}]",
        "kept": "-" if kept is None else f"{kept:.0f}",
    }


def _fit(widths: Sequence[int], may_shrink: Sequence[bool], width: int | None) -> list[int]:
    """Return column widths that add up to `width`: the widest name gives way first; ids never do."""
    limits = list(widths)
    while width is not None and sum(limits) > width - len(_GAP) * (len(limits) - 1):
        widest = max((place for place, may in enumerate(may_shrink) if may), key=lambda place: limits[place])
        if limits[widest] <= _SHORTEST:
            break
        limits[widest] -= 1
    return limits


def _matches(pattern: str | None, *words: str) -> bool:
    return pattern is None or any(fnmatchcase(word, pattern) for word in words)
