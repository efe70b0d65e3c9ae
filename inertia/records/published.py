"""Cells in parquet files that stand alone: rows in the table, manifests and summaries in its metadata.

One such file is what `export` makes; a folder of them, partitioned by backbone and benchmark, is a data set
made by `compact`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inertia.records.identity import identity_sha256
from inertia.records.journal import CorruptRecord
from inertia.records.schema import check_version

if TYPE_CHECKING:
    from inertia.records.read import Cell

CELLS = "inertia.cells"
PARTITIONS = "backbone=*/benchmark=*/*.parquet"


def published_files(source: Path) -> list[Path]:
    """Return the published files that `source` is or holds as a data set, sorted; none for a folder of runs."""
    if source.is_file():
        return [source]
    return sorted(path for path in source.glob(PARTITIONS) if not path.name.startswith("."))


def describe(cells: Iterable[Cell], attempts: Mapping[str, list[Any]] | None = None) -> dict[str, str]:
    """Return the metadata that makes a parquet file of the cells' rows a published file.

    Args:
        cells: sealed cells.
        attempts: cell id -> rows that a later attempt at the same example replaced, kept with the cell.
    """
    kept = attempts if attempts is not None else {}
    entries = [
        {
            "manifest": cell.manifest,
            "summary": cell.summary,
            **({"attempts": kept[cell.id]} if kept.get(cell.id) else {}),
        }
        for cell in cells
    ]
    return {CELLS: json.dumps(entries, sort_keys=True)}


def described(path: Path) -> list[dict[str, Any]]:
    """Return what a published file says of its cells, read from its footer alone.

    Raises:
        CorruptRecord: when it is no published file, or an identity is not the one it was hashed from.
        NewerSchema: when it was written with a newer schema version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the file system's own, not the decoder's
        raise CorruptRecord(f"{path}: no readable parquet file ({error})") from None
    return entries_of({key.decode(): value.decode() for key, value in metadata.items()}, path)


def entries_of(metadata: Mapping[str, str], path: Path) -> list[dict[str, Any]]:
    """Return the cells that a file's metadata describes; raises as `described`."""
    if CELLS not in metadata:
        raise CorruptRecord(f"{path}: carries no cells; publish with inertia.records.export")
    entries = json.loads(metadata[CELLS])
    for entry in entries:
        manifest = entry["manifest"]
        check_version(manifest.get("schema_version"), path)
        if identity_sha256(manifest["identity"]) != manifest["identity_sha256"]:
            raise CorruptRecord(f"{path}: the identity of cell {manifest['cell_id']} was edited")
    return entries
