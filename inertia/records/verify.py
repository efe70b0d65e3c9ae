"""Every promise of the records held against the files: SQLite's own check, every hash, identities, plans, seals."""

from __future__ import annotations

import hashlib
import math
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from inertia.records.identity import cell_id
from inertia.records.progress import Damage
from inertia.records.read import Cell, sources
from inertia.records.rows import damage_of, load
from inertia.records.store import TABLES, CorruptRecord, reading, row_hash, schema

_CHECKED = ("example_id", "status", "score")


def verify(source: Path) -> tuple[list[Cell], list[Damage]]:
    """Return the cells that nothing hurts, sorted by id, and everything that is wrong.

    Args:
        source: results root, published file or folder of such files.

    Raises:
        FileNotFoundError, OldRecords: as `read.sources`.
    """
    import numpy as np

    damages = [damage for path in sources(source) if path.suffix != ".parquet" for damage in check_store(path)]
    read = load(source, _CHECKED)
    hurt = {name for damage in damages for name in damage.cells or ()}
    damages += [damage for damage in read.damages if damage.cells is None or not hurt.issuperset(damage.cells)]
    rows = {name: column.to_pylist() for name, column in zip(_CHECKED, read.table.columns, strict=True)}
    start = 0
    for cell, count in zip(read.cells, np.bincount(read.place, minlength=len(read.cells)).tolist(), strict=True):
        own = {name: column[start : start + count] for name, column in rows.items()}
        start += count
        damages += [damage_of(cell, problem) for problem in _problems(cell, own)]
    hurt |= {name for damage in damages for name in damage.cells or ()}
    return [cell for cell in read.cells if cell.id not in hurt], list(dict.fromkeys(damages))


def check_store(path: Path) -> Iterator[Damage]:
    """Yield what is wrong with a store: its structure, its schema, every row's hash and whom the row belongs to."""
    try:
        with reading(path) as connection:
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            known = tuple(name for (name,) in connection.execute("SELECT id FROM cell ORDER BY id"))
            found = [line for (line,) in connection.execute("PRAGMA integrity_check(1)")]
            made = [text for (text,) in connection.execute("SELECT sql FROM sqlite_master ORDER BY rowid")]
            if found != ["ok"]:
                yield Damage(path, f"{path}: {found[0]}", known)
            if made != schema():
                yield Damage(path, f"{path}: its tables are not those that were made", known)
            for table in TABLES:
                for row in _bad_rows(connection, table):
                    hurt = _hurt(connection, table, row, known)
                    said = ", ".join(hurt) if hurt != known else "any of its cells"
                    yield Damage(path, f"{path}: a row of table {table} is not what was written; it hurts {said}", hurt)
    except (CorruptRecord, sqlite3.Error) as error:
        yield Damage(path, str(error) if str(path) in str(error) else f"{path}: {error}", None)


def _bad_rows(connection: sqlite3.Connection, table: str) -> Iterator[dict[str, Any]]:
    columns = list(TABLES[table])
    # The samples of known cells are held against their hashes by `load`, cell by cell.
    where = " WHERE cell NOT IN (SELECT id FROM cell)" if table == "sample" else ""
    for *values, stated in connection.execute(f"SELECT {', '.join(columns)}, hash FROM {table}{where}"):
        try:
            good = row_hash(table, values) == stated
        except (TypeError, ValueError):  # a value that no row of ours holds
            good = False
        if not good or where:
            yield dict(zip(columns, values, strict=True))


def _hurt(
    connection: sqlite3.Connection, table: str, row: Mapping[str, Any], known: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the cells that a damaged row is about, all of the file where that cannot be told."""
    if table == "cell":
        given = "c" + hashlib.sha256(str(row["identity"]).encode("utf-8", "replace")).hexdigest()[:11]
        return tuple({given: None, str(row["id"]): None})
    if table in ("session", "batch"):
        asked = f"SELECT DISTINCT cell FROM sample WHERE {table} = ?"
        found = tuple(sorted(str(name) for (name,) in connection.execute(asked, (row["id"],))))
        return found or known
    return (row["cell"],) if row["cell"] in known else known


def _problems(cell: Cell, rows: Mapping[str, list[Any]]) -> Iterator[str]:
    """Yield what readers do not look at: the id, the plan and the summary's own numbers."""
    if cell.id != cell_id(cell.identity):
        yield f"its identity gives the id {cell_id(cell.identity)}"
    if unplanned := sorted(set(rows["example_id"]) - set(cell.planned)):
        yield f"rows of examples that are not planned: {unplanned[:5]}"
    if cell.summary is None:
        return
    scores = [score for score, status in zip(rows["score"], rows["status"], strict=True) if status == "ok"]
    stated = cell.summary["score"]["mean"]
    if not len(scores) == len(cell.planned) == cell.summary["ok"]:
        yield f"sealed with {cell.summary['ok']} of {len(cell.planned)} examples, {len(scores)} are ok"
    elif not math.isclose(sum(scores) / len(scores), stated, abs_tol=1e-9):
        yield f"the summary says {stated} as mean score, the rows give {sum(scores) / len(scores)}"
