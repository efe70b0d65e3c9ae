"""The rows a cell's folder holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inertia.records.group import lost_rows
from inertia.records.journal import CorruptRecord, read_journal
from inertia.records.layout import JOURNAL, SAMPLES, SUMMARY, read_json, read_manifest
from inertia.records.settle import rows_sha256, settle
from inertia.records.table import from_parquet


def load_seal(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the summary of a sealed cell, or None: the summary is written last, so its presence is the seal.

    Raises:
        CorruptRecord: when the summary belongs to another identity or plan than the manifest.
    """
    path = folder / SUMMARY
    if not path.exists():
        return None
    summary = read_json(path)
    expected = {"identity_sha256": manifest["identity_sha256"], "planned": len(manifest["planned"])}
    for key, value in expected.items():
        if summary.get(key) != value:
            raise CorruptRecord(f"{path}: {key} is {summary.get(key)!r}, the manifest says {value!r}")
    return summary


def load_sealed_rows(folder: Path, summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return example id -> row of a sealed cell, checked against the hash in its summary.

    Raises:
        CorruptRecord: when the rows are missing or not the sealed ones.
    """
    path = folder / SAMPLES
    if not path.exists():
        raise CorruptRecord(f"{path}: missing, though {SUMMARY} says the cell is sealed")
    rows = from_parquet(path)[0]
    check_rows(rows, summary, path)
    return settle(rows, path)


def check_rows(rows: list[dict[str, Any]], summary: Mapping[str, Any], where: object) -> None:
    """Hold sealed rows against the hash in their summary.

    Raises:
        CorruptRecord: when they differ.
    """
    found = rows_sha256(rows)
    if found != summary.get("rows_sha256"):
        raise CorruptRecord(
            f"{where}: the rows changed after the seal (sha256 {found}, sealed {summary.get('rows_sha256')})"
        )


def load_open_rows(folder: Path, cell: str) -> list[dict[str, Any]]:
    """Return every recorded attempt of an unsealed cell: its own rows, and those that only its group's journal has.

    Raises:
        CorruptRecord: when a row belongs to another cell or a file is damaged.
    """
    own = load_own_rows(folder, cell)
    manifest = read_manifest(folder)
    return own if manifest is None else [*own, *lost_rows(folder, manifest, own)]


def load_own_rows(folder: Path, cell: str) -> list[dict[str, Any]]:
    """Return every attempt in the folder of an unsealed cell: its journal, or the parquet if only that was kept.

    Raises:
        CorruptRecord: when a row belongs to another cell or the file is damaged.
    """
    journal, samples = folder / JOURNAL, folder / SAMPLES
    if journal.exists():
        path, rows = journal, read_journal(journal).rows
    elif samples.exists():
        path, rows = samples, from_parquet(samples)[0]
    else:
        return []
    for number, row in enumerate(rows, start=1):
        if row["cell_id"] != cell:
            raise CorruptRecord(f"{path}, line {number}: a row of cell {row['cell_id']}, this is {cell}")
    return rows
