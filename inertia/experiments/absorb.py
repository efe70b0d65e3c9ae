"""From the shards of a cell to the cell: rows are found, copied over, and their shards removed.

A row only ever moves from a shard to `runs`, and a shard's cell goes only when the sealed cell holds all its ok rows.
Whoever looks for rows therefore reads the shards first and `runs` last: what vanished from a shard is then in `runs`.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from inertia.experiments.shards import shard_roots
from inertia.records.cell import CellWriter
from inertia.records.group import remove_finished
from inertia.records.layout import find_cell, read_manifest
from inertia.records.load import load_open_rows, load_seal
from inertia.records.lock import CellLocked, exclusive
from inertia.records.progress import recorded_ids

# Filled in again by the writer that takes a row over.
_OWN = ("schema_version", "cell_id", "status", "attempt")


def roots(results: Path) -> list[Path]:
    """Return every folder that may hold rows of a cell, in the order in which they must be read."""
    return [*shard_roots(results), results / "runs"]


def recorded(results: Path, cell: str) -> frozenset[str]:
    """Return the ids of the examples of a cell that are ok in `runs` or in any shard.

    Raises:
        CorruptRecord: a file of the cell is damaged.
    """
    return frozenset().union(*(_recorded(root, cell) for root in roots(results)))


def adopt(writer: CellWriter, results: Path, *, own: Path) -> int:
    """Copy to an open cell every planned row that it lacks and that is ok elsewhere; return how many there were.

    All attempts of an example come along, so that the copy counts what the original counted.

    Args:
        writer: the cell, open below `own`.
        results: the folder of results.
        own: the root that is left out.
    """
    copied = 0
    for root in roots(results):
        if root == own or not root.is_dir():
            continue
        for name, attempts in _attempts(root, writer.id).items():
            if name in writer.planned and name not in writer.rows and attempts[-1]["status"] == "ok":
                _copy(writer, attempts)
                copied += 1
    return copied


def sessions(results: Path, cell: str) -> dict[str, Any]:
    """Return who decoded a cell's shards, by shard: the sessions of their manifests."""
    found = {}
    for root in shard_roots(results):
        folder = find_cell(root, cell) if root.is_dir() else None
        manifest = None if folder is None else read_manifest(folder)
        if manifest is not None:
            found[root.parent.name] = manifest["sessions"]
    return found


def drop(results: Path, cell: str, sealed: Iterable[str]) -> None:
    """Remove a cell's shards whose ok rows are all among the sealed ones; a shard that is in use stays."""
    kept = frozenset(sealed)
    for root in shard_roots(results):
        with contextlib.suppress(CellLocked, FileNotFoundError), exclusive(root / f".{cell}.lock", f"shard of {cell}"):
            for leftover in root.glob(f".removed-{cell}"):
                shutil.rmtree(leftover)
            folder = find_cell(root, cell)
            if folder is not None and _recorded(root, cell) <= kept:
                # Renamed first: half a folder must never look like a cell.
                shutil.rmtree(folder.rename(root / f".removed-{cell}"))
                remove_finished(root, [cell])


def sealed_summary(root: Path, cell: str, planned: Sequence[str]) -> dict[str, Any] | None:
    """Return the summary of a cell that is sealed with all of `planned`, else None.

    Raises:
        CorruptRecord: a file of the cell is damaged.
    """
    folder = find_cell(root, cell) if root.is_dir() else None
    manifest = None if folder is None else read_manifest(folder)
    if folder is None or manifest is None or not set(planned) <= set(manifest["planned"]):
        return None
    return load_seal(folder, manifest)


def _recorded(root: Path, cell: str) -> frozenset[str]:
    try:
        return recorded_ids(root, cell)
    except FileNotFoundError:  # removed between two looks: its rows are in `runs`
        return frozenset()


def _attempts(root: Path, cell: str) -> dict[str, list[dict[str, Any]]]:
    try:
        folder = find_cell(root, cell)
        rows = [] if folder is None or read_manifest(folder) is None else load_open_rows(folder, cell)
    except FileNotFoundError:
        return {}
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["example_id"], []).append(row)
    return found


def _copy(writer: CellWriter, attempts: Sequence[dict[str, Any]]) -> None:
    name = attempts[0]["example_id"]
    # A copy that was cut off has the first attempts already.
    begun = writer.failures[name]["attempt"] if name in writer.failures else 0
    for row in attempts[min(begun, len(attempts) - 1) :]:
        values = {key: value for key, value in row.items() if key not in _OWN}
        made = writer.row(values) if row["status"] == "ok" else writer.failure_row(**_named(values))
        # Where it came from holds it until the writer syncs, which it does before it seals or closes.
        writer.keep(made, durable=False)


def _named(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
