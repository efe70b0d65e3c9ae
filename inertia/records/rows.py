"""The rows of cells as columns, with the types of the schema whatever the data: a million in seconds."""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inertia.records import parquet
from inertia.records.attempts import last_attempts, rows_sha256
from inertia.records.canonical import canonical_json
from inertia.records.progress import _HURT as HURT
from inertia.records.progress import Damage
from inertia.records.read import Cell, refuse, survey
from inertia.records.schema import COLUMNS, check_version
from inertia.records.store import CorruptRecord, reading, rows

if TYPE_CHECKING:
    import numpy
    import pyarrow

_KEYS = ("schema_version", "cell_id", "index", "example_id")
_BATCH_BYTES = 2**26


_Part = tuple[list[tuple[Cell, int]], "pyarrow.Table"]


@dataclass(frozen=True)
class Rows:
    """Rows as columns, and the cells they belong to.

    Attributes:
        cells: the cells, sorted by id.
        table: the chosen columns of the record, cell by cell, each by index and example.
        place: [rows], where each row's cell is in `cells`.
        damages: what could not be read.
    """

    cells: list[Cell]
    table: pyarrow.Table
    place: numpy.ndarray
    damages: list[Damage]


def load(
    source: Path, columns: Sequence[str] | None = None, ids: Collection[str] | None = None, *, check: bool = True
) -> Rows:
    """Return all cells of a results root or of published files, with their rows as columns.

    Args:
        source: results root, published file or folder of such files.
        columns: columns of the record; None for all.
        ids: cells that are wanted; None for all.
        check: hold every row against its hash and every cell against its seal; without, only that a sealed cell has
            as many rows as it planned.

    Raises:
        ValueError: for an unknown column.
        FileNotFoundError, OldRecords: as `read.sources`.
    """
    import numpy as np
    import pyarrow as pa

    unknown = sorted(set(columns) - set(COLUMNS)) if columns is not None else []
    if unknown:
        raise ValueError(f"columns {unknown} are none of a record's: choose among {list(COLUMNS)}")
    chosen = [name for name in COLUMNS if columns is None or name in columns]
    surveyed, damages = survey(source, ids)
    published = bool(surveyed) and surveyed[0].sources[0].suffix == ".parquet"
    needed = [name for name in COLUMNS if name in chosen or name in _KEYS or (published and check)]
    found: list[tuple[Cell, int]] = []
    tables = [parquet.schema_of(needed).empty_table()]
    for part in (_published if published else _stored)(surveyed, needed, check):
        if isinstance(part, Damage):
            damages.append(part)
        else:
            found += part[0]
            tables.append(part[1])
    # Files of published cells come one after another; cells are wanted by id.
    order = sorted(range(len(found)), key=lambda place: found[place][0].id)
    counts = np.array([count for _, count in found], dtype=np.int64)
    rank = np.argsort(order)
    table, place = pa.concat_tables(tables).select(chosen), np.repeat(rank, counts)
    if order != list(range(len(found))):
        rows_in_order = np.argsort(place, kind="stable")
        table, place = table.take(rows_in_order), place[rows_in_order]
    return Rows([found[at][0] for at in order], table, place, damages)


def read_cells(source: Path, ids: Collection[str] | None = None) -> list[Cell]:
    """Read all cells of a results root, a published .parquet file or a folder of such files, sorted by id.

    Args:
        source: where they are.
        ids: cells that are wanted; None for all.

    Raises:
        FileNotFoundError, OldRecords: as `read.sources`.
        CorruptRecord: something that may be one of the wanted cells cannot be read; the message names the file.
    """
    import numpy as np

    read = load(source, ids=ids)
    refuse(read.damages, read.cells, ids)
    ends = np.searchsorted(read.place, np.arange(len(read.cells) + 1)).tolist()
    return [
        replace(cell, rows=tuple(read.table.slice(start, end - start).to_pylist()))
        for cell, start, end in zip(read.cells, ends, ends[1:], strict=False)
    ]


def canonical_hash(source: Path) -> str:
    """Return one sha256 for all records of a root or published file: ids, plans, seals, rows, no timings.

    Equal for two runs exactly when their records say the same.
    """
    lines = [
        canonical_json([cell.id, cell.manifest["identity_sha256"], sorted(cell.planned), cell.sealed])
        + rows_sha256(cell.rows)
        for cell in read_cells(source)
    ]
    return hashlib.sha256("\n".join(lines).encode("ascii")).hexdigest()


class _Store:
    """A file that is read: its connection, and the sessions that were asked for."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self.connection = path, connection
        self.sessions: dict[str, dict[str, Any]] = {}

    def session(self, name: str) -> dict[str, Any]:
        """Return a session as a manifest has it; CorruptRecord where it is damaged or missing."""
        if name not in self.sessions:
            row = next(rows(self.connection, "session", "WHERE id = ?", (name,)), None)
            if row is None:
                raise CorruptRecord(f"{self.path}: session {name} is missing")
            kept = {key: row[key] for key in ("started", "ended", "status", "error")}
            self.sessions[name] = {**kept, "provenance": json.loads(row["provenance"])}
        return self.sessions[name]

    def samples(self, cell: str, check: bool) -> list[dict[str, Any]]:
        """Return every attempt at the examples of a cell."""
        where = "WHERE cell = ?"
        if check:
            return list(rows(self.connection, "sample", where, (cell,)))
        asked = f"SELECT example, session, row FROM sample {where} ORDER BY example, attempt"
        return [
            {"example": example, "session": session, "row": row}
            for example, session, row in self.connection.execute(asked, (cell,))
        ]


def _stored(cells: Sequence[Cell], columns: Sequence[str], check: bool) -> Iterator[_Part | Damage]:
    batch: list[tuple[Cell, list[str]]] = []
    size = 0
    with ExitStack() as stack:
        stores: dict[Path, _Store] = {}
        for cell in cells:
            try:
                for path in cell.sources:
                    if path not in stores:
                        stores[path] = _Store(path, stack.enter_context(reading(path)))
                batch.append(_rows_of(cell, [stores[path] for path in cell.sources], check))
            except HURT as error:
                yield Damage(cell.sources[0], f"cell {cell.id}: {error}", (cell.id,))
                continue
            size += sum(map(len, batch[-1][1]))
            if size >= _BATCH_BYTES:
                yield from _parsed(batch, columns)
                batch, size = [], 0
        yield from _parsed(batch, columns)


def _rows_of(cell: Cell, stores: Sequence[_Store], check: bool) -> tuple[Cell, list[str]]:
    """Return a cell with its sessions, and the canonical JSON of the rows that count."""
    found = [(store, store.samples(cell.id, check)) for store in stores]
    texts = [sample["row"] for _, samples in found for sample in samples]
    if len({sample["example"] for _, samples in found for sample in samples}) < len(texts):
        parts = [(store.path, [json.loads(sample["row"]) for sample in samples]) for store, samples in found]
        texts = [canonical_json(row) for row in last_attempts(parts).values()]
    if cell.summary is not None:
        _check_seal(cell, len(texts), rows_sha256(texts) if check else None)
    sessions = {
        name: store.session(name)
        for store, samples in found
        for name in (
            *(name for (name,) in store.connection.execute("SELECT session FROM cell WHERE id = ?", (cell.id,))),
            *(sample["session"] for sample in samples),
            *(name for (name,) in store.connection.execute("SELECT session FROM seal WHERE cell = ?", (cell.id,))),
        )
    }
    ordered = sorted(sessions.values(), key=lambda session: session["started"])
    last = ordered[-1]["status"]
    status = "complete" if cell.sealed else "incomplete" if last == "ended" else last
    return replace(cell, manifest={**cell.manifest, "status": status, "sessions": ordered}), texts


def _parsed(batch: Sequence[tuple[Cell, list[str]]], columns: Sequence[str]) -> Iterator[_Part | Damage]:
    """Yield the rows of some cells as columns, or what is wrong with those that are no rows."""
    import pyarrow as pa
    import pyarrow.json as pj

    schema = parquet.schema_of(columns)
    texts = [text for _, found in batch for text in found]
    counts = [(cell, len(found)) for cell, found in batch]
    if not texts:
        yield counts, schema.empty_table()
        return
    data = "\n".join(texts).encode("ascii")
    parse = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        read = pj.ReadOptions(block_size=max(2**22, max(map(len, texts)) + 1))
        table = pj.read_json(io.BytesIO(data), read_options=read, parse_options=parse).cast(schema)
        if table.num_rows != len(texts):
            raise pa.ArrowInvalid(f"{table.num_rows} rows in {len(texts)} lines")
        yield counts, _sorted(table, [count for _, count in counts])
    except (pa.ArrowException, ValueError, CorruptRecord) as error:
        if len(batch) == 1:
            cell = batch[0][0]
            yield Damage(cell.sources[0], f"cell {cell.id}: {error}; `verify` says what is wrong", (cell.id,))
        else:
            for each in batch:
                yield from _parsed([each], columns)


def _published(cells: Sequence[Cell], columns: Sequence[str], check: bool) -> Iterator[_Part | Damage]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    for path in dict.fromkeys(cell.sources[0] for cell in cells):
        try:
            table = parquet.read_table(path, columns)
            described = {manifest["cell_id"] for manifest, _ in parquet.read_entries(path)}
            strangers = set(pc.unique(table["cell_id"]).to_pylist()) - described
            if strangers:
                raise CorruptRecord(f"{path}: rows of cells it does not describe: {sorted(strangers)[:5]}")
            own = [cell for cell in cells if cell.sources[0] == path]
            place = pc.index_in(table["cell_id"], value_set=pa.array([cell.id for cell in own], pa.string()))
            table = table.append_column("place", place).filter(pc.is_valid(place)).sort_by("place")
            counts = np.bincount(table["place"].to_numpy(), minlength=len(own)).tolist()
            table = _sorted(table.select(list(columns)), counts)
        except HURT as error:
            yield Damage(path, str(error), None)
            continue
        start, good = 0, []
        keep = []
        for cell, count in zip(own, counts, strict=True):
            part = table.slice(start, count)
            start += count
            try:
                if cell.summary is not None:
                    _check_seal(cell, count, rows_sha256(part.to_pylist()) if check else None)
                good.append((cell, count))
                keep.append(part)
            except CorruptRecord as error:
                yield Damage(path, f"{path}, cell {cell.id}: {error}", (cell.id,))
        yield good, pa.concat_tables([table.slice(0, 0), *keep])


def _check_seal(cell: Cell, count: int, sha256: str | None) -> None:
    if count != len(cell.manifest["planned"]):
        raise CorruptRecord(f"{count} rows of cell {cell.id}, sealed with {len(cell.manifest['planned'])}")
    if sha256 is not None and sha256 != cell.summary["rows_sha256"]:
        raise CorruptRecord(
            f"the rows changed after the seal (sha256 {sha256}, sealed {cell.summary['rows_sha256']})"
        )


def _sorted(table: pyarrow.Table, counts: Sequence[int]) -> pyarrow.Table:
    """Return rows that lie cell by cell with those of each cell in order; refuse what is of a newer version."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    check_version(max(1, pc.max(table["schema_version"]).as_py() or 1), "a row")
    place = pa.array(np.repeat(np.arange(len(counts)), counts))
    return table.append_column("place", place).sort_by(
        [(name, "ascending") for name in ("place", "index", "example_id")]
    ).select(table.column_names)
