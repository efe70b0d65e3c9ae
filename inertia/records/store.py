"""One SQLite file per writer: what is written to it, in one transaction at a time, and read back row by row.

Every row carries a hash over all its columns, so that a changed byte is found wherever it lies. Opening a file for
reading takes no part in its locks beyond SQLite's own; readers of a folder take the union of its files (`progress`).
"""

from __future__ import annotations

import hashlib
import logging
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

from inertia.records.canonical import canonical_json
from inertia.records.faults import fault
from inertia.records.lock import CellLocked, exclusive

VERSION = 1
LOCKS = "locks"
_APPLICATION = 0x696E7274  # "inrt": tells our files from any other SQLite database
_READ_SECONDS = 30
# A reader of a large file may hold up a commit; a run does not end for that.
_WRITE_SECONDS = 600
_OLD_CELL = re.compile(r".*__c[0-9a-f]{11}")

_log = logging.getLogger(__name__)

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
    # What a cell is; `manifest` holds the resolved config, `planned` the ids of all planned examples, since `written`.
    "cell": {
        "id": "TEXT",
        "label": "TEXT",
        "identity": "TEXT",
        "manifest": "TEXT",
        "planned": "TEXT",
        "written": "TEXT",
        "session": "TEXT",
    },
    # Which rows (cell, example) decode together, from before they are decoded; `prompts` is what their cells share.
    "batch": {"prompts": "TEXT", "id": "TEXT", "plan": "TEXT", "session": "TEXT"},
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
    # A sealed cell that W&B has, as it confirmed.
    "mirrored": {"cell": "TEXT", "rows_sha256": "TEXT", "mode": "TEXT", "project": "TEXT", "run": "TEXT"},
}
_KEYS = {"batch": 2, "sample": 3, "listing": 3, "mirrored": 4}


class CorruptRecord(RuntimeError):
    """A record on disk is not what this package wrote; the message names the file, and the row where it is known."""


class OldRecords(ValueError):
    """A folder of results was written by a version whose records this one does not read."""


def schema() -> list[str]:
    """Return the statements that make an empty file."""
    made = []
    for table, columns in TABLES.items():
        typed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        made.append(f"CREATE TABLE {table} ({typed}, hash TEXT, PRIMARY KEY ({_key(table)})) WITHOUT ROWID")
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
            OSError: it could not be written (a full disk, for instance); the file is as it was before.
        """
        try:
            with self.connection:
                self.connection.execute("BEGIN IMMEDIATE")
                for table, many in rows.items():
                    self._insert(table, many)
                fault("commit")
        except sqlite3.OperationalError as error:
            raise OSError(f"{self.path}: {error}") from error
        fault("committed")

    def _insert(self, table: str, many: Iterable[Mapping[str, Any]]) -> None:
        verb = "INSERT" if table == "sample" else "INSERT OR REPLACE"
        marks = ", ".join("?" * (len(TABLES[table]) + 1))
        for row in many:
            values = [row[name] for name in TABLES[table]]
            self.connection.execute(f"{verb} INTO {table} VALUES ({marks})", (*values, row_hash(table, values)))


@contextmanager
def open_store(folder: Path, name: str) -> Iterator[Store]:
    """Open the first of `name`.db, `name`-2.db, ... that no other process writes, made where there is none.

    A file that is damaged, of a newer version or in use by another program is left alone, and said in the log.

    Raises:
        OSError: it cannot be opened or written.
    """
    (folder / LOCKS).mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        store = _first_free(folder, name, stack)
        try:
            yield store
        finally:
            # Leaves nothing beside the file.
            with suppress(sqlite3.Error):
                store.connection.execute("PRAGMA journal_mode = DELETE")


def _first_free(folder: Path, name: str, stack: ExitStack) -> Store:
    for number in count(1):
        path = folder / (f"{name}.db" if number == 1 else f"{name}-{number}.db")
        with ExitStack() as held:
            try:
                held.enter_context(exclusive(folder / LOCKS / f"{path.name}.lock", str(path)))
                connection = held.enter_context(closing(_connect(path, "rwc", seconds=1)))
                _make_ready(connection, path)
            except CellLocked:
                continue
            except (CorruptRecord, sqlite3.DatabaseError) as error:
                busy = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
                if isinstance(error, sqlite3.OperationalError) and not busy:
                    raise OSError(f"{path}: {error}") from error
                _log.warning("%s is left alone (%s); writing to the next file", path, error)
                continue
            stack.push(held.pop_all())
            return Store(path, connection)
    raise AssertionError("unreachable")


def _make_ready(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file; hold another one against what SQLite knows of its own files.

    Raises:
        CorruptRecord, sqlite3.DatabaseError: it is not to be written.
    """
    connection.execute("PRAGMA journal_mode = TRUNCATE")
    connection.execute("PRAGMA synchronous = FULL")
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        if _is_empty(connection):
            for statement in schema():
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            fault("create")
    check_file(connection, path)
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise CorruptRecord(f"{path}: {found}")
    connection.execute(f"PRAGMA busy_timeout = {1000 * _WRITE_SECONDS}")


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file to read it in one snapshot, beside its writer if there is one.

    What a killed writer left half done is rolled back first, which SQLite does only where the file may be written. A
    file whose writer was killed while it made it reads as one without rows.

    Raises:
        CorruptRecord: the file is no file of ours, is of a newer version, or cannot be read.
    """
    try:
        with closing(_connect(path, "ro", _READ_SECONDS)) as connection:
            try:
                connection.execute("BEGIN")
                empty = _is_empty(connection)
            except sqlite3.OperationalError:
                connection.rollback()
                with suppress(sqlite3.Error), closing(_connect(path, "rw", _READ_SECONDS)) as other:
                    _is_empty(other)
                connection.execute("BEGIN")
                empty = _is_empty(connection)
            if not empty:
                check_file(connection, path)
                yield connection
                return
        with closing(sqlite3.connect(":memory:")) as nothing:
            for statement in schema():
                nothing.execute(statement)
            yield nothing
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise CorruptRecord(f"{path}: {error}") from error


def check_file(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse what is no file of this version.

    Raises:
        CorruptRecord: naming the file and what it is.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != _APPLICATION:
        raise CorruptRecord(f"{path}: no file of inertia's records; move it away")
    if version > VERSION:
        raise CorruptRecord(f"{path}: version {version} of the records is newer than {VERSION}: update inertia")
    if version != VERSION:
        raise CorruptRecord(f"{path}: version {version} of the records is unknown; expected {VERSION}")


def rows(
    connection: sqlite3.Connection, table: str, where: str = "", parameters: Iterable[Any] = ()
) -> Iterator[dict[str, Any]]:
    """Yield rows of a table whose hash holds, in the order of the key.

    Raises:
        CorruptRecord: naming the key of the first row whose hash does not hold.
    """
    columns = list(TABLES[table])
    found = connection.execute(
        f"SELECT {', '.join(columns)}, hash FROM {table} {where} ORDER BY {_key(table)}", tuple(parameters)
    )
    for *values, stated in found:
        if row_hash(table, values) != stated:
            key = ", ".join(map(str, values[: _KEYS.get(table, 1)]))
            raise CorruptRecord(f"table {table}, row {key}: not what was written")
        yield dict(zip(columns, values, strict=True))


def files(folder: Path) -> list[Path]:
    """Return the files of records of a folder, sorted by name."""
    return sorted(path for path in folder.glob("*.db") if path.is_file())


def refuse_old(results: Path) -> None:
    """Refuse a folder of results, or of cells, that holds records of release 0.1.0 or before: a folder for each cell.

    Raises:
        OldRecords: saying how to take them along.
    """
    for folder in (results, results / "runs", *results.glob("shards/*/runs"), results / "dataset"):
        cells = (each for each in folder.glob("*__c*/manifest.json") if _OLD_CELL.fullmatch(each.parent.name))
        if any(True for _ in (*cells, *folder.glob("backbone=*/benchmark=*/*.parquet"))):
            raise OldRecords(
                f"{folder} was written by release 0.1.0, whose records this version does not read: with that version, "
                f"run python -m inertia.records export (see its --help), then move {folder} away"
            )


def _key(table: str) -> str:
    return ", ".join(list(TABLES[table])[: _KEYS.get(table, 1)])


def _is_empty(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0


def _connect(path: Path, mode: str, seconds: float) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=seconds, isolation_level=None)
