"""One SQLite file per writer: what is written to it, in one transaction at a time, and read back row by row.

Every row carries a hash over all its columns, so that a changed byte is found wherever it lies. Opening a file for
reading takes no part in its locks beyond SQLite's own; readers of a folder take the union of its files (`read`).
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inertia.records.canonical import canonical_json
from inertia.records.faults import fault
from inertia.records.lock import CellLocked, exclusive

VERSION = 1
_APPLICATION = 0x696E7274  # "inrt": tells our files from any other SQLite database
_BUSY_SECONDS = 10

# Table -> its columns with their types; the first `_KEYS[table]` of them are the key. JSON columns hold canonical JSON.
TABLES: Mapping[str, Mapping[str, str]] = {
    # One command that wrote to this file.
    "session": {
        "id": "TEXT",
        "started": "TEXT",
        "ended": "TEXT",
        "status": "TEXT",
        "error": "TEXT",
        "provenance": "TEXT",
    },
    # What a cell is; `manifest` holds the resolved config, `planned` the ids of all planned examples.
    "cell": {
        "id": "TEXT",
        "label": "TEXT",
        "identity": "TEXT",
        "manifest": "TEXT",
        "planned": "TEXT",
        "session": "TEXT",
    },
    # Which rows (cell, example) decode together, from before they are decoded.
    "batch": {"id": "TEXT", "plan": "TEXT", "session": "TEXT"},
    # One attempt at an example; `row` holds the whole of it under its schema version.
    "sample": {
        "cell": "TEXT",
        "example": "TEXT",
        "attempt": "INTEGER",
        "session": "TEXT",
        "batch": "TEXT",
        "status": "TEXT",
        "score": "REAL",
        "row": "TEXT",
    },
    # A complete cell: the hashes of its plan and rows, and the numbers it is known by.
    "seal": {"cell": "TEXT", "plan_sha256": "TEXT", "rows_sha256": "TEXT", "summary": "TEXT", "session": "TEXT"},
    # A cell's place in an experiment.
    "listing": {"experiment": "TEXT", "profile": "TEXT", "cell": "TEXT", "entry": "TEXT", "listed": "TEXT"},
    # A sealed cell that W&B has.
    "mirrored": {"cell": "TEXT", "rows_sha256": "TEXT", "run": "TEXT"},
}
_KEYS = {"sample": 3, "listing": 3, "mirrored": 2}


class Damaged(RuntimeError):
    """A file of records, or a row of it, is not what was written."""


def schema() -> list[str]:
    """Return the statements that make an empty file."""
    made = []
    for table, columns in TABLES.items():
        key = ", ".join(list(columns)[: _KEYS.get(table, 1)])
        typed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        made.append(f"CREATE TABLE {table} ({typed}, hash TEXT, PRIMARY KEY ({key})) WITHOUT ROWID")
    return made


def row_hash(table: str, values: Iterable[Any]) -> str:
    """Return the hash that stands beside a row: over its table and all its columns."""
    return hashlib.sha256(canonical_json([table, *values]).encode("ascii")).hexdigest()


@dataclass(frozen=True)
class Store:
    """A writer's open file; made by `open_store`.

    Attributes:
        path: the file.
        connection: the open connection.
    """

    path: Path
    connection: sqlite3.Connection

    def write(self, **rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows of any tables, `table=[row, ...]`, in one durable transaction: all of them or none.

        A row that is there under the same key is replaced, except a sample: an attempt is never rewritten.

        Raises:
            sqlite3.IntegrityError: an attempt is recorded already.
            OSError, sqlite3.OperationalError: it could not be written; the file is as it was before.
        """
        with self.connection:
            self.connection.execute("BEGIN IMMEDIATE")
            for table, many in rows.items():
                verb = "INSERT" if table == "sample" else "INSERT OR REPLACE"
                columns = TABLES[table]
                marks = ", ".join("?" * (len(columns) + 1))
                for row in many:
                    values = [row[name] for name in columns]
                    self.connection.execute(f"{verb} INTO {table} VALUES ({marks})", (*values, row_hash(table, values)))
            fault("commit")
        fault("committed")


@contextmanager
def open_store(folder: Path, name: str) -> Iterator[Store]:
    """Open the first of `name`.db, `name`-2.db, ... that no other process writes, made where there is none.

    Raises:
        Damaged: the file is no file of ours.
        OSError, sqlite3.Error: it cannot be opened or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = folder / (f"{name}.db" if number == 1 else f"{name}-{number}.db")
        held = exclusive(path.with_suffix(".lock"), str(path))
        try:
            held.__enter__()
        except CellLocked:
            number += 1
            continue
        try:
            with closing(_connect(path, "rwc")) as connection:
                connection.execute("PRAGMA journal_mode = TRUNCATE")
                connection.execute("PRAGMA synchronous = FULL")
                if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    with connection:
                        connection.execute("BEGIN IMMEDIATE")
                        for statement in schema():
                            connection.execute(statement)
                        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                        connection.execute(f"PRAGMA user_version = {VERSION}")
                check_file(connection, path)
                yield Store(path, connection)
        finally:
            held.__exit__(None, None, None)
        return


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file to read it in one snapshot, beside its writer if there is one.

    What a killed writer left half done is rolled back first, which SQLite does only where the file may be written.

    Raises:
        Damaged: the file is no file of ours, is of a newer version, or cannot be read.
    """
    try:
        with closing(_connect(path, "ro")) as connection:
            try:
                check_file(connection, path)
                connection.execute("BEGIN")
            except sqlite3.OperationalError:
                with suppress(sqlite3.Error), closing(_connect(path, "rw")) as other:
                    other.execute("SELECT count(*) FROM sqlite_master")
                check_file(connection, path)
                connection.execute("BEGIN")
            yield connection
    except sqlite3.Error as error:
        raise Damaged(f"{path}: {error}") from error


def check_file(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse what is no file of this version.

    Raises:
        Damaged: naming the file and what it is.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != _APPLICATION:
        raise Damaged(f"{path}: no file of inertia's records; move it away")
    if version > VERSION:
        raise Damaged(f"{path}: version {version} of the records is newer than {VERSION}: update inertia")
    if version != VERSION:
        raise Damaged(f"{path}: version {version} of the records is unknown; expected {VERSION}")


def rows(
    connection: sqlite3.Connection, table: str, where: str = "", parameters: Iterable[Any] = ()
) -> Iterator[dict[str, Any]]:
    """Yield rows of a table whose hash holds, in the order of the key.

    Raises:
        Damaged: naming the key of the first row whose hash does not hold.
    """
    columns = list(TABLES[table])
    key = ", ".join(columns[: _KEYS.get(table, 1)])
    found = connection.execute(
        f"SELECT {', '.join(columns)}, hash FROM {table} {where} ORDER BY {key}", tuple(parameters)
    )
    for *values, stated in found:
        if row_hash(table, values) != stated:
            raise Damaged(f"{table} {values[: _KEYS.get(table, 1)]}: the row is not what was written")
        yield dict(zip(columns, values, strict=True))


def files(folder: Path) -> list[Path]:
    """Return the files of records of a folder, sorted by name."""
    return sorted(path for path in folder.glob("*.db") if path.is_file())


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    from urllib.parse import quote

    uri = f"file:{quote(str(path.absolute()))}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
