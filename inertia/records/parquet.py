"""Cells in a parquet file that stands alone: rows in the table, manifests and summaries in its metadata."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inertia.records.atomic import write_atomic
from inertia.records.identity import identity_sha256
from inertia.records.schema import COLUMNS, check_version, sample_schema, schema_of
from inertia.records.store import CorruptRecord

if TYPE_CHECKING:
    import pyarrow

CELLS = b"inertia.cells"
SESSIONS = b"inertia.sessions"


def write_table(path: Path, table: pyarrow.Table, cells: Iterable[tuple[Mapping[str, Any], Any]]) -> None:
    """Write rows, and what their cells are, as one file; equal records give equal bytes.

    Args:
        path: the file; its folder is made.
        table: the rows, with at least the columns of the record.
        cells: manifest and summary (None where it is not sealed) of each cell.

    Raises:
        ValueError: for more cells than readers of parquet take in one file (tens of megabytes of manifests).
        OSError: as the file system gave it.
    """
    import pyarrow.parquet as pq

    # Sessions are those of whole commands: each stands there once, whatever it decoded.
    sessions: dict[str, Any] = {}
    entries = []
    for manifest, summary in cells:
        names = [json.dumps(session, sort_keys=True) for session in manifest["sessions"]]
        for name in names:
            sessions.setdefault(name, len(sessions))
        entries.append({"manifest": {**manifest, "sessions": [sessions[name] for name in names]}, "summary": summary})
    about = {CELLS: json.dumps(entries, sort_keys=True), SESSIONS: f"[{', '.join(sessions)}]"}
    buffer = io.BytesIO()
    described = table.replace_schema_metadata({**sample_schema().metadata, **about})
    pq.write_table(described, buffer, compression="zstd", row_group_size=2**15)
    try:
        pq.read_schema(buffer)
    except OSError as error:
        raise ValueError(
            f"{path}: the manifests of {len(entries)} cells are more than readers of parquet take in one file "
            f"({error}); export fewer"
        ) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, buffer.getvalue())


def table_bytes(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the bytes of a parquet file of rows alone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=sample_schema()), buffer)
    return buffer.getvalue()


def read_entries(path: Path) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Return manifest and summary of each cell of a file, read from its footer alone.

    Raises:
        CorruptRecord: it is none of ours, or an identity is not the one it was hashed from.
        NewerSchema: it was written with a newer schema version.
    """
    import pyarrow.parquet as pq

    metadata = _opened(lambda: pq.read_schema(path), path).metadata or {}
    if CELLS not in metadata:
        raise CorruptRecord(f"{path}: carries no cells; publish with inertia.records.export")
    version = metadata.get(b"inertia.schema_version", b"").decode()
    check_version(int(version) if version.isdigit() else version, path)
    try:
        sessions = json.loads(metadata.get(SESSIONS, b"[]"))
        entries = []
        for entry in json.loads(metadata[CELLS]):
            manifest = entry["manifest"]
            check_version(manifest["schema_version"], path)
            written = [sessions[one] if isinstance(one, int) else one for one in manifest["sessions"]]
            if identity_sha256(manifest["identity"]) != manifest["identity_sha256"]:
                raise CorruptRecord(f"{path}: the identity of cell {manifest['cell_id']} was edited")
            entries.append(({**manifest, "sessions": written}, entry["summary"]))
    except (ValueError, TypeError, LookupError) as error:
        raise CorruptRecord(f"{path}: what it says of its cells is damaged ({type(error).__name__}: {error})") from None
    return entries


def read_table(path: Path, columns: Sequence[str]) -> pyarrow.Table:
    """Return columns of the record with the types of the schema.

    Raises:
        CorruptRecord: it is no parquet file, or a column is missing.
    """
    import pyarrow.parquet as pq

    file = _opened(lambda: pq.ParquetFile(path), path)
    missing = sorted(set(COLUMNS) - set(file.schema_arrow.names))
    if missing:
        raise CorruptRecord(f"{path}: columns {missing} are missing")
    return _opened(lambda: file.read(list(columns)).select(list(columns)).cast(schema_of(columns)), path)


def _opened(read: Any, path: Path) -> Any:
    import pyarrow as pa

    try:
        return read()
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the file system's own, not the decoder's
        raise CorruptRecord(f"{path}: no readable parquet file ({error})") from None
