"""Rows to and from parquet."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inertia.records.journal import CorruptRecord
from inertia.records.schema import COLUMNS, check_version, make_row, sample_schema

if TYPE_CHECKING:
    import pyarrow


def to_parquet(rows: Iterable[Mapping[str, Any]], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes of a parquet file with the fixed schema; `metadata` joins the schema's own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = sample_schema()
    schema = schema.with_metadata({**schema.metadata, **(metadata if metadata is not None else {})})
    buffer = io.BytesIO()
    pq.write_table(
        pa.Table.from_pylist([dict(row) for row in rows], schema=schema), buffer, compression="zstd"
    )
    return buffer.getvalue()


def from_parquet(path: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the rows of a parquet file of ours and the metadata of its schema; columns beside ours are left out.

    Raises:
        CorruptRecord: when it is no parquet file, or not one of ours.
        NewerSchema: when it was written with a newer schema version.
    """
    table = _read(path)
    metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    version = metadata.get("inertia.schema_version", "")
    check_version(int(version) if version.isdigit() else version, path)
    missing = sorted(set(COLUMNS) - set(table.column_names))
    if missing:
        raise CorruptRecord(f"{path}: columns {missing} are missing")
    try:
        return [make_row(row) for row in table.select(list(COLUMNS)).to_pylist()], metadata
    except (TypeError, ValueError) as error:
        raise CorruptRecord(f"{path}: {error}") from None


def _read(path: Path) -> pyarrow.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path).read()
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the file system's own, not the decoder's
        raise CorruptRecord(f"{path}: no readable parquet file ({error})") from None
