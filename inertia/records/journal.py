"""The journal of a cell: one JSON object a line, appended and flushed to disk example by example."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from inertia.records.atomic import sync_directory, write_all
from inertia.records.faults import fault
from inertia.records.schema import check_version, make_row

_log = logging.getLogger(__name__)


class CorruptRecord(RuntimeError):
    """A record on disk is not what this package wrote; the message names the file, in a journal the line."""


class Journal(NamedTuple):
    """What a journal holds: its rows in order, and the bytes up to the last complete line."""

    rows: list[dict[str, Any]]
    complete_bytes: int


def read_journal(path: Path) -> Journal:
    """Read a journal; a last line without its newline is a write that was cut off: logged and left out.

    Lines end at a line feed alone: other separators (U+2028) are legal inside text.

    Raises:
        CorruptRecord: when a complete line is no row of ours.
        NewerSchema: when a row has a newer schema version.
    """
    data = path.read_bytes()
    complete = data.rfind(b"\n") + 1
    if complete < len(data):
        _log.warning(
            "%s: dropped a torn last line of %d bytes; its example is redone", path, len(data) - complete
        )
    lines = data[:complete].split(b"\n")[:-1]
    return Journal([_parse(line, path, number) for number, line in enumerate(lines, start=1)], complete)


def truncate_torn(path: Path, journal: Journal) -> None:
    """Cut a torn last line off the file, so that the next row starts on a line of its own."""
    if path.stat().st_size > journal.complete_bytes:
        with path.open("r+b") as file:
            file.truncate(journal.complete_bytes)
            os.fsync(file.fileno())


def encode(row: Mapping[str, Any]) -> bytes:
    """Return the line of a row: strict ASCII JSON and a newline."""
    return (json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n").encode("ascii")


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row durably; on any failure or interrupt the file is as it was before.

    Raises:
        OSError: as the file system gave it (no space left, for instance).
    """
    line = encode(row)
    created = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    start = os.fstat(descriptor).st_size
    try:
        # In two halves, always: the crash tests then stop the very code that runs in earnest.
        write_all(descriptor, line[: len(line) // 2])
        fault("append-half")
        write_all(descriptor, line[len(line) // 2 :])
        fault("append-written")
        os.fsync(descriptor)
    except BaseException:
        os.ftruncate(descriptor, start)
        raise
    finally:
        os.close(descriptor)
    if created:
        sync_directory(path.parent)
    fault("append-synced")


def _parse(line: bytes, path: Path, number: int) -> dict[str, Any]:
    where = f"{path}, line {number}"
    try:
        values = json.loads(line)
    except ValueError as error:
        raise CorruptRecord(
            f"{where}: not JSON ({error}); only a torn last line is repaired by itself: restore the file, or "
            "move the cell's folder away and run it again"
        ) from None
    if not isinstance(values, dict):
        raise CorruptRecord(f"{where}: expected a JSON object, got {type(values).__name__}")
    try:
        check_version(values.get("schema_version"), where)
        return make_row(values)
    except (TypeError, ValueError) as error:
        raise CorruptRecord(f"{where}: {error}") from None
