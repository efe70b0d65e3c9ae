"""Journals: one JSON object a line, appended example by example."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
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

    Raises:
        CorruptRecord: when a complete line is no row of ours.
        NewerSchema: when a row has a newer schema version.
    """
    lines, complete = read_lines(path)
    return Journal([_parse(line, path, number) for number, line in enumerate(lines, start=1)], complete)


def read_lines(path: Path) -> tuple[list[bytes], int]:
    """Return the complete lines of a file and how many bytes they take; a torn last line is logged and left out."""
    data = path.read_bytes()
    lines, complete = split_lines(data)
    if complete < len(data):
        _log.warning("%s: dropped a torn last line of %d bytes; its example is redone", path, len(data) - complete)
    return lines, complete


def split_lines(data: bytes) -> tuple[list[bytes], int]:
    """Return the complete lines in `data` and how many bytes they take.

    Lines end at a line feed alone: other separators (U+2028) are legal inside text.
    """
    complete = data.rfind(b"\n") + 1
    return data[:complete].split(b"\n")[:-1], complete


def truncate_torn(path: Path, journal: Journal) -> None:
    """Cut a torn last line off the file, so that the next row starts on a line of its own."""
    if path.stat().st_size > journal.complete_bytes:
        with path.open("r+b") as file:
            file.truncate(journal.complete_bytes)
            os.fsync(file.fileno())


def encode(row: Mapping[str, Any]) -> bytes:
    """Return the line of a row: strict ASCII JSON and a newline."""
    return (json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n").encode("ascii")


def append(path: Path, rows: Iterable[Mapping[str, Any]], *, durable: bool = True, name: str = "append") -> None:
    """Append rows, one line each; on any failure or interrupt the file is as it was before.

    Args:
        path: the file, made if missing.
        rows: one, or all that belong together.
        durable: whether they are on the disk when this returns; without it only a machine that goes down can lose
            them, and `sync` makes them durable later.
        name: the front half of the names of its fault points.

    Raises:
        OSError: as the file system gave it (no space left, for instance).
    """
    data = b"".join(encode(row) for row in rows)
    created = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    start = os.fstat(descriptor).st_size
    try:
        # In two halves, always: the crash tests then stop the very code that runs in earnest.
        write_all(descriptor, data[: len(data) // 2])
        fault(f"{name}-half")
        write_all(descriptor, data[len(data) // 2 :])
        fault(f"{name}-written")
        if durable:
            os.fsync(descriptor)
    except BaseException:
        os.ftruncate(descriptor, start)
        raise
    finally:
        os.close(descriptor)
    if durable:
        if created:
            sync_directory(path.parent)
        fault(f"{name}-synced")


def sync(path: Path) -> None:
    """Make durable whatever was appended to a file, and the file's name in its folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(path.parent)


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
