"""Where a cell lies on disk, and what is written there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from inertia.records.identity import identity_sha256
from inertia.records.journal import CorruptRecord
from inertia.records.schema import check_version

MANIFEST = "manifest.json"
JOURNAL = "samples.jsonl"
SAMPLES = "samples.parquet"
SUMMARY = "summary.json"
_CELL = re.compile(r".*__(c[0-9a-f]{11})")


class DuplicateCell(RuntimeError):
    """Two folders claim one cell."""


def cell_folders(root: Path) -> dict[str, Path]:
    """Return cell id -> folder of every cell below `root`, sorted by id; anything else there is ignored.

    Raises:
        FileNotFoundError: when `root` is no folder.
        DuplicateCell: when two folders carry one id.
    """
    found: dict[str, Path] = {}
    for cell, folder in named_folders(root):
        if cell in found:
            raise DuplicateCell(f"{found[cell]} and {folder} are the same cell: move one of them away")
        found[cell] = folder
    return dict(sorted(found.items()))


def named_folders(root: Path) -> list[tuple[str, Path]]:
    """Return (cell id, folder) of everything below `root` that is named like a cell, twins included.

    Raises:
        FileNotFoundError: when `root` is no folder.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"no records at {root}: the folder does not exist; run an experiment first")
    matches = [(_CELL.fullmatch(folder.name), folder) for folder in sorted(root.iterdir())]
    return [(match[1], folder) for match, folder in matches if match is not None and folder.is_dir()]


def find_cell(root: Path, cell: str) -> Path | None:
    """Return the folder of a cell id, whatever its label, or None.

    Raises:
        DuplicateCell: when there are two.
    """
    folders = sorted(folder for folder in root.glob(f"*__{cell}") if folder.is_dir())
    if len(folders) > 1:
        raise DuplicateCell(f"{folders[0]} and {folders[1]} are the same cell: move one of them away")
    return folders[0] if folders else None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object with a schema version.

    Raises:
        CorruptRecord: when it is none.
        NewerSchema: when the version is newer than ours.
    """
    try:
        value = json.loads(path.read_bytes())
        if not isinstance(value, dict):
            raise ValueError(f"expected an object, got {type(value).__name__}")
        check_version(value.get("schema_version"), path)
    except ValueError as error:
        raise CorruptRecord(f"{path}: no readable JSON object ({error})") from None
    return value


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a cell, or None where none was written yet.

    Raises:
        CorruptRecord: when its identity is not the one it was hashed from, or rows exist without a manifest.
    """
    path = folder / MANIFEST
    if not path.exists():
        orphans = [name for name in (JOURNAL, SAMPLES, SUMMARY) if (folder / name).exists()]
        if orphans:
            raise CorruptRecord(
                f"{folder}: {orphans} without {MANIFEST}, which is always written first: restore it"
            )
        return None
    manifest = read_json(path)
    missing = [
        key
        for key in ("cell_id", "identity", "identity_sha256", "planned", "sessions")
        if key not in manifest
    ]
    if missing:
        raise CorruptRecord(f"{path}: {missing} are missing")
    if identity_sha256(manifest["identity"]) != manifest["identity_sha256"]:
        raise CorruptRecord(
            f"{path}: the identity was edited, its sha256 is not {manifest['identity_sha256']}"
        )
    return manifest
