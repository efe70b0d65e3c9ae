"""How far cells are: the union of what files of records say of them."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple, TypeVar

from inertia.records.attempts import DuplicateRow, last_attempts
from inertia.records.canonical import canonical_json
from inertia.records.schema import NewerSchema, check_version, make_row
from inertia.records.store import CorruptRecord, reading, rows

# What is wrong with one cell or one file, and no matter of the others.
HURT = (CorruptRecord, DuplicateRow, NewerSchema, sqlite3.Error, ValueError, TypeError, KeyError)


T = TypeVar("T")


class IdentityClash(RuntimeError):
    """Two identities have the same cell id."""


class Damage(NamedTuple):
    """A file, or cells in it, that cannot be read.

    Attributes:
        source: the file.
        reason: what is wrong.
        cells: ids of the cells that it hurts; None where they cannot be known.
    """

    source: Path
    reason: str
    cells: tuple[str, ...] | None


@dataclass(frozen=True)
class Progress:
    """One cell as all files say together.

    Attributes:
        id: its id.
        label: for people.
        identity: canonical JSON of everything that can change an output.
        manifest: with the config.
        planned: ids of all planned examples: of the newest plan, then any other that was tried.
        good: ids of the examples that have an ok row.
        failed: example id -> its last attempt, for those without an ok row.
        attempts: how many attempts are recorded.
        summary: of the seal, where it covers all that is planned and recorded.
        session: of the newest plan.
        sources: the files that hold something of it.
    """

    id: str
    label: str
    identity: str
    manifest: Mapping[str, Any]
    planned: tuple[str, ...]
    good: frozenset[str]
    failed: Mapping[str, Mapping[str, Any]]
    attempts: int
    summary: Mapping[str, Any] | None
    session: str
    sources: tuple[Path, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Ids of the planned examples without an ok row, in planned order."""
        return tuple(name for name in self.planned if name not in self.good)

    def __str__(self) -> str:
        """Return "complete 20/20" or "incomplete 17/20"."""
        word = "incomplete" if self.missing else "complete"
        return f"{word} {len(self.planned) - len(self.missing)}/{len(self.planned)}"


class _Part(NamedTuple):
    """What one file says of one cell."""

    cell: Mapping[str, Any]
    good: frozenset[str]
    failed: Mapping[str, Mapping[str, Any]]
    attempts: int
    seal: Mapping[str, Any] | None


def progress(
    paths: Iterable[Path], wanted: Collection[str] | None = None, *, check: bool = True
) -> tuple[dict[str, Progress], list[Damage]]:
    """Return cell id -> how far it is, sorted by id, and what could not be read.

    A cell that is hurt in one file is in the damage, and as far as the other files know it among the cells.

    Args:
        paths: the files.
        wanted: ids of the cells to read; all where None.
        check: whether to hold every row against its hash; listing is quick without.
    """
    parts, damage = _gather(paths, wanted, partial(_part, check=check))
    found = {}
    for cell in sorted(parts):
        try:
            found[cell] = _union(cell, parts[cell])
        except (*HURT, IdentityClash) as error:
            places = ", ".join(map(str, parts[cell]))
            damage.append(Damage(next(iter(parts[cell])), f"{places}: cell {cell}: {error}", (cell,)))
    return found, damage


def attempts(
    paths: Iterable[Path], wanted: Collection[str] | None = None
) -> tuple[dict[str, dict[Path, list[dict[str, Any]]]], list[Damage]]:
    """Return cell id -> file -> the rows of all its attempts there, checked, in order; and what is damaged."""
    return _gather(paths, wanted, _rows)


def plan_sha256(planned: Collection[str]) -> str:
    """Return the hash of a plan: of its ids in any order."""
    return hashlib.sha256(canonical_json(sorted(planned)).encode("ascii")).hexdigest()


def with_tried(planned: Iterable[str], tried: Collection[str]) -> tuple[str, ...]:
    """Return a plan and every example that was tried, so that a failure cannot be planned away."""
    return tuple(dict.fromkeys([*planned, *sorted(tried)]))


def decode(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the typed row of a sample as it was recorded.

    Raises:
        NewerSchema, ValueError, TypeError: it is no row of this version.
    """
    values = json.loads(sample["row"])
    check_version(values.get("schema_version"), f"example {sample['example']}")
    return make_row(values)


def _gather(
    paths: Iterable[Path], wanted: Collection[str] | None, read: Callable[[sqlite3.Connection, str], T]
) -> tuple[dict[str, dict[Path, T]], list[Damage]]:
    """Return cell id -> file -> what `read` makes of the cell there; each file is opened once."""
    found: dict[str, dict[Path, T]] = {}
    damage: list[Damage] = []
    for path in paths:
        try:
            with reading(path) as connection:
                for cell in _cells(connection, wanted):
                    try:
                        found.setdefault(cell, {})[path] = read(connection, cell)
                    except HURT as error:
                        damage.append(Damage(path, f"{path}: {error}", (cell,)))
        except CorruptRecord as error:
            damage.append(Damage(path, str(error), None))
    return {cell: each for cell, each in found.items() if each}, damage


def _cells(connection: sqlite3.Connection, wanted: Collection[str] | None) -> list[str]:
    if wanted is None:
        return [intern(name) for (name,) in connection.execute("SELECT id FROM cell ORDER BY id")]
    return [name for name in wanted if connection.execute("SELECT 1 FROM cell WHERE id = ?", (name,)).fetchone()]


def _rows(connection: sqlite3.Connection, cell: str) -> list[dict[str, Any]]:
    return [decode(sample) for sample in rows(connection, "sample", "WHERE cell = ?", (cell,))]


def _part(connection: sqlite3.Connection, cell: str, *, check: bool) -> _Part:
    (described,) = rows(connection, "cell", "WHERE id = ?", (cell,))
    seal = next(rows(connection, "seal", "WHERE cell = ?", (cell,)), None)
    if check:
        samples = rows(connection, "sample", "WHERE cell = ?", (cell,))
        told = [(each["example"], each["status"], each["row"]) for each in samples]
    else:
        text = "CASE status WHEN 'failed' THEN row END"
        asked = f"SELECT example, status, {text} FROM sample WHERE cell = ? ORDER BY example, attempt"
        told = connection.execute(asked, (cell,)).fetchall()
    good = frozenset(intern(example) for example, status, _ in told if status == "ok")
    failed = {example: json.loads(row) for example, status, row in told if status == "failed" and example not in good}
    return _Part(described, good, failed, len(told), seal)


def _union(cell: str, parts: Mapping[Path, _Part]) -> Progress:
    """Return what files say together.

    Raises:
        IdentityClash, DuplicateRow, NewerSchema: they contradict each other, or one is of a newer version.
    """
    newest = max((part.cell for part in parts.values()), key=lambda row: (row["written"], len(row["planned"])))
    for path, part in parts.items():
        if part.cell["identity"] != newest["identity"]:
            raise IdentityClash(f"{path} and another file hold different identities under this id: keep them apart")
        check_version(json.loads(part.cell["manifest"])["schema_version"], path)
    good = frozenset().union(*(part.good for part in parts.values()))
    if sum(len(part.good) for part in parts.values()) > len(good):
        # Raises where they differ.
        last_attempts(attempts(parts, [cell])[0].get(cell, {}).items())
    failed: dict[str, Mapping[str, Any]] = {}
    for part in parts.values():
        for example, row in part.failed.items():
            if example not in good and (example not in failed or row["attempt"] > failed[example]["attempt"]):
                failed[example] = row
    planned = with_tried(json.loads(newest["planned"]), good | failed.keys())
    seals = [part.seal for part in parts.values() if part.seal and part.seal["plan_sha256"] == plan_sha256(planned)]
    return Progress(
        id=cell,
        label=newest["label"],
        identity=newest["identity"],
        manifest=json.loads(newest["manifest"]),
        planned=planned,
        good=good,
        failed=failed,
        attempts=sum(part.attempts for part in parts.values()),
        summary=json.loads(seals[0]["summary"]) if seals and good.issuperset(planned) else None,
        session=newest["session"],
        sources=tuple(parts),
    )
