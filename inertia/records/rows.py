"""The rows of cells as columns, with the types of the schema whatever the data: a million in seconds."""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from inertia.records import parquet
from inertia.records.attempts import last_attempts, rows_sha256
from inertia.records.canonical import canonical_json
from inertia.records.progress import HURT, Damage
from inertia.records.read import Cell, refuse, survey
from inertia.records.schema import COLUMNS, check_version, schema_of
from inertia.records.store import CorruptRecord, reading, rows

if TYPE_CHECKING:
    import numpy
    import pyarrow

_KEYS = ("schema_version", "cell_id", "index", "example_id")
_BATCH_BYTES = 2**26
_SESSIONS = (
    "WHERE id IN (SELECT session FROM cell WHERE id = ?1 UNION SELECT session FROM sample WHERE cell = ?1"
    " UNION SELECT session FROM seal WHERE cell = ?1)"
)


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
    cells: list[Cell] = []
    tables = [schema_of(needed).empty_table()]
    for part in (_published if published else _stored)(surveyed, needed, check):
        if isinstance(part, Damage):
            damages.append(part)
        else:
            cells += part[0]
            tables.append(part[1])
    cells.sort(key=lambda cell: cell.id)
    table = pa.concat_tables(tables)
    place = _place(cells, table)
    if (np.diff(place) < 0).any():  # cells of several published files
        order = np.argsort(place, kind="stable")
        table, place = table.take(order), place[order]
    return Rows(cells, table.select(chosen), place, damages)


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


_Part = tuple[list[Cell], "pyarrow.Table"]


def _stored(cells: Sequence[Cell], columns: Sequence[str], check: bool) -> Iterator[_Part | Damage]:
    batch: list[tuple[Cell, list[str]]] = []
    size = 0
    with ExitStack() as stack:
        connection = cache(lambda path: stack.enter_context(reading(path)))
        for cell in cells:
            try:
                batch.append(_rows_of(cell, connection, check))
            except HURT as error:
                yield damage_of(cell, error)
                continue
            size += sum(map(len, batch[-1][1]))
            if size >= _BATCH_BYTES:
                yield from _parsed(batch, columns)
                batch, size = [], 0
    yield from _parsed(batch, columns)


def _rows_of(cell: Cell, connection: Callable[[Path], sqlite3.Connection], check: bool) -> tuple[Cell, list[str]]:
    """Return a cell with its sessions, and the canonical JSON of the rows that count."""
    sessions, found = [], []
    for path in cell.sources:
        store = connection(path)
        try:
            sessions += rows(store, "session", _SESSIONS, (cell.id,))
            if check:
                texts = [row["row"] for row in rows(store, "sample", "WHERE cell = ?", (cell.id,))]
            else:
                asked = "SELECT row FROM sample WHERE cell = ? ORDER BY example, attempt"
                texts = [text for (text,) in store.execute(asked, (cell.id,))]
        except (CorruptRecord, sqlite3.Error) as error:
            raise CorruptRecord(f"{path}: {error}") from None
        found.append((path, texts))
    texts, done = [text for _, each in found for text in each], cell.done
    if not cell.sealed or len(texts) != done:
        # Failed attempts, the same example in two files, or rows that a run has added to a larger plan meanwhile.
        last = last_attempts((path, map(json.loads, each)) for path, each in found)
        rows_by_name = {name: row for name, row in last.items() if name in set(cell.manifest["planned"])}
        done = sum(row["status"] == "ok" for row in rows_by_name.values())
        texts = [canonical_json(row) for row in rows_by_name.values()]
    _check_seal(cell, len(texts), rows_sha256(texts) if check and cell.sealed else None)
    if not sessions:
        raise CorruptRecord(f"{cell.sources[0]}: its session is missing")
    ordered = sorted(sessions, key=lambda session: (session["started"], session["id"]))
    ended = ordered[-1]["status"]
    manifest = {
        **cell.manifest,
        "status": "complete" if cell.sealed else "incomplete" if ended == "ended" else ended,
        "sessions": [
            {
                **{name: session[name] for name in ("started", "ended", "status", "error")},
                "provenance": json.loads(session["provenance"]),
            }
            for session in ordered
        ],
    }
    return replace(cell, manifest=manifest, done=done), texts


def _parsed(batch: Sequence[tuple[Cell, list[str]]], columns: Sequence[str]) -> Iterator[_Part | Damage]:
    """Yield the rows of some cells as columns, or what is wrong with those that are no rows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.json as pj

    cells, texts = [cell for cell, _ in batch], [text for _, each in batch for text in each]
    if not texts:
        yield cells, schema_of(columns).empty_table()
        return
    parse = pj.ParseOptions(explicit_schema=schema_of(columns), unexpected_field_behavior="ignore")
    read = pj.ReadOptions(block_size=max(2**22, max(map(len, texts)) + 1))
    try:
        data = io.BytesIO("\n".join(texts).encode("ascii"))
        table = _in_order(pj.read_json(data, read_options=read, parse_options=parse).cast(schema_of(columns)))
        expected = np.repeat(np.arange(len(batch)), [len(each) for _, each in batch])
        if not np.array_equal(_place(cells, table), expected):
            raise CorruptRecord("rows of another cell")
        yield cells, table
    except (pa.ArrowException, *HURT) as error:
        if len(batch) == 1:
            yield damage_of(cells[0], f"{error}; `python -m inertia.records verify` says what is wrong")
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
            strangers = set(pc.unique(table["cell_id"]).to_pylist()) - {
                manifest["cell_id"] for manifest, _ in parquet.read_entries(path)
            }
            if strangers:
                raise CorruptRecord(f"{path}: rows of cells it does not describe: {sorted(strangers)[:5]}")
            own = [cell for cell in cells if cell.sources[0] == path]
            wanted = pc.is_in(table["cell_id"], value_set=pa.array([cell.id for cell in own], pa.string()))
            table = _in_order(table.filter(wanted))
        except HURT as error:
            yield Damage(path, str(error), None)
            continue
        ends = np.searchsorted(_place(own, table), np.arange(len(own) + 1)).tolist()
        for cell, start, end in zip(own, ends, ends[1:], strict=False):
            part = table.slice(start, end - start)
            try:
                _check_seal(cell, end - start, rows_sha256(part.to_pylist()) if check and cell.sealed else None)
                yield [cell], part
            except CorruptRecord as error:
                yield damage_of(cell, error)


def damage_of(cell: Cell, problem: object) -> Damage:
    """Return what is wrong with one cell, with the files it is in."""
    return Damage(cell.sources[0], f"{', '.join(map(str, cell.sources))}: cell {cell.id}: {problem}", (cell.id,))


def _check_seal(cell: Cell, count: int, sha256: str | None) -> None:
    if cell.summary is not None and count != len(cell.manifest["planned"]):
        raise CorruptRecord(f"{count} rows of cell {cell.id}, sealed with {len(cell.manifest['planned'])}")
    if cell.summary is not None and sha256 not in (None, cell.summary["rows_sha256"]):
        raise CorruptRecord(f"the rows changed after the seal (sha256 {sha256}, sealed {cell.summary['rows_sha256']})")


def _in_order(table: pyarrow.Table) -> pyarrow.Table:
    """Return rows cell by cell, those of each in order; refuse what is of a newer version."""
    import pyarrow.compute as pc

    check_version(pc.max(table["schema_version"]).as_py() if table.num_rows else 1, "a row")
    return table.sort_by([(name, "ascending") for name in ("cell_id", "index", "example_id")])


def _place(cells: Sequence[Cell], table: pyarrow.Table) -> numpy.ndarray:
    """Return where each row's cell is among the cells, [rows]; -1 where it is not."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = pa.array([cell.id for cell in cells], pa.string())
    return pc.fill_null(pc.index_in(table["cell_id"], value_set=ids), -1).to_numpy().astype("int64")
