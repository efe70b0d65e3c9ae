"""How far a cell is, read without opening it."""

from __future__ import annotations

from pathlib import Path

from inertia.records.layout import find_cell, read_manifest
from inertia.records.load import load_open_rows, load_seal
from inertia.records.settle import settle


def recorded_ids(root: Path, cell: str) -> frozenset[str]:
    """Return the ids of the examples of a cell that have an ok row; none where there is no such cell.

    Raises:
        CorruptRecord: a file of the cell is damaged.
    """
    folder = find_cell(root, cell) if root.exists() else None
    manifest = read_manifest(folder) if folder is not None else None
    if folder is None or manifest is None:
        return frozenset()
    if load_seal(folder, manifest) is not None:
        return frozenset(manifest["planned"])
    rows = settle(load_open_rows(folder, cell), folder)
    return frozenset(name for name, row in rows.items() if row["status"] == "ok")
