"""One session's records: cells are opened together, batches planned, recorded in one transaction each, cells sealed."""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from inertia.records.attempts import DuplicateRow, last_attempts
from inertia.records.canonical import canonical_json
from inertia.records.faults import fault
from inertia.records.identity import cell_id, identity_sha256
from inertia.records.lock import WHOLE, Part, claimed
from inertia.records.progress import Damage, IdentityClash, Progress, attempts, plan_sha256, progress, with_tried
from inertia.records.redact import redact, redact_text
from inertia.records.schema import SCHEMA_VERSION, make_row
from inertia.records.store import LOCKS, CorruptRecord, Store, files, open_store, reading, rows
from inertia.records.summary import summarise
from inertia.records.termination import terminable

_log = logging.getLogger(__name__)
_ERROR_LENGTH = 2000


class Incomplete(RuntimeError):
    """A cell cannot be sealed: planned examples are not ok."""


@dataclass(frozen=True)
class CellPlan:
    """A cell that is to be recorded.

    Attributes:
        identity: everything that can change an output; nested, without NaN.
        label: for people.
        planned: ids of all its examples, unique, in order.
        config: the resolved config, kept without secrets and private paths.
        part: which of the examples are ours: number k of n parts.

    Raises:
        ValueError: for an empty plan or a repeated id.
    """

    identity: Mapping[str, Any]
    label: str
    planned: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    part: Part = WHOLE

    def __post_init__(self) -> None:
        if not self.planned:
            raise ValueError("no example is planned: a cell needs at least one")
        if len(set(self.planned)) < len(self.planned):
            repeated = sorted({name for name in self.planned if self.planned.count(name) > 1})
            raise ValueError(f"example ids are planned twice: {repeated[:5]}; every example needs an id of its own")

    @cached_property
    def id(self) -> str:
        """The cell's id."""
        return cell_id(self.identity)

    def done(self, known: Progress | None) -> bool:
        """Tell whether a cell is sealed with all that is planned here."""
        same = known is not None and known.identity == canonical_json(self.identity)
        return same and known.summary is not None and known.good.issuperset(self.planned)

    def ours(self, planned: Sequence[str]) -> Sequence[str]:
        """Return our part of a plan."""
        return planned[self.part[0] - 1 :: self.part[1]]


@dataclass(frozen=True)
class Batch:
    """Rows (cell, example) that decode together: every cell with every example, in this order.

    Attributes:
        cells: ids.
        examples: ids.
    """

    cells: tuple[str, ...]
    examples: tuple[str, ...]

    @property
    def plan(self) -> str:
        """What is recorded of it, as canonical JSON."""
        return canonical_json({"cells": self.cells, "examples": self.examples})

    @property
    def id(self) -> str:
        """Its id."""
        return "b" + hashlib.sha256(self.plan.encode("ascii")).hexdigest()[:11]

    @property
    def rows(self) -> set[tuple[str, str]]:
        """Its pairs of cell and example."""
        return {(cell, example) for cell in self.cells for example in self.examples}


@dataclass
class CellWriter:
    """A cell that is ours to record; made by `Writer.open`, used inside its block only.

    Attributes:
        plan: what was asked for.
        planned: ids of all planned examples. May hold more than was asked for: an example that was tried stays.
        good: ids of the examples with an ok row, whoever recorded it.
        failed: example id -> its last failed row.
        writer: where it is recorded.
    """

    plan: CellPlan
    planned: tuple[str, ...]
    good: set[str]
    failed: dict[str, Mapping[str, Any]]
    writer: Writer = field(repr=False)

    @property
    def id(self) -> str:
        """The cell's id."""
        return self.plan.id

    @property
    def missing(self) -> tuple[str, ...]:
        """Ids of our planned examples without an ok row, in planned order: what is left to run."""
        return tuple(name for name in self.plan.ours(self.planned) if name not in self.good)

    def lacks(self, example: str) -> bool:
        """Tell whether an example is missing."""
        return example in self._ours and example not in self.good

    @cached_property
    def _ours(self) -> frozenset[str]:
        return frozenset(self.plan.ours(self.planned))

    def row(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row of a finished example as it will stand in the records; nothing is written.

        Cell id, version, status and attempt are filled in.

        Raises:
            DuplicateRow: when the example is ok already.
            ValueError: when it is not planned, or the row does not fit the schema.
            TypeError: when a value has the wrong type.
        """
        name = values.get("example_id")
        if name not in self.planned:
            raise ValueError(f"example {name!r} is not planned in cell {self.id} ({len(self.planned)} examples)")
        if name in self.good:
            raise DuplicateRow(f"cell {self.id}: example {name!r} is recorded as ok already")
        attempt = self.failed[name]["attempt"] + 1 if name in self.failed else 1
        filled = {"schema_version": SCHEMA_VERSION, "cell_id": self.id, "attempt": attempt}
        return make_row({"status": "ok", **values, **filled})

    def failure_row(
        self, example_id: str, index: int, error: str | BaseException, *, task: str, **columns: Any
    ) -> dict[str, Any]:
        """Return the row of an example that failed; nothing is written.

        It stays in the denominator and is tried again next time.

        Args:
            example_id: the planned example.
            index: its place in the data.
            error: the reason; secrets and private paths are taken out.
            task: its task.
            **columns: further columns known at that point, such as length, references or prompt_tokens.

        Raises:
            DuplicateRow, ValueError: as `row`.
        """
        reason = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        row = {**columns, "example_id": example_id, "index": index, "task": task, "status": "failed"}
        return self.row({**row, "error": redact_text(reason)[:_ERROR_LENGTH]})

    def append(self, values: Mapping[str, Any]) -> None:
        """Record one finished example by itself: `row`, then `Writer.record`."""
        self._record(self.row(values))

    def append_failure(self, *given: Any, **columns: Any) -> None:
        """Record by itself that an example failed, and why; the arguments are those of `failure_row`."""
        self._record(self.failure_row(*given, **columns))

    def seal(self) -> dict[str, Any]:
        """Seal the cell and return its summary; raise what `Writer.close` says instead."""
        closed = self.writer.close([self.plan])[self.id]
        if isinstance(closed, Exception):
            raise closed
        return closed.summary

    def _record(self, row: dict[str, Any]) -> None:
        self.writer.record(Batch((self.id,), (row["example_id"],)).id, [(self, row)])


@dataclass(frozen=True)
class Group:
    """Cells that are open together; made by `Writer.open`.

    Attributes:
        cells: id -> a cell that is ours to record.
        problems: id -> why another one is not.
        batches: the planned batches that hold what our cells lack.
    """

    cells: Mapping[str, CellWriter]
    problems: Mapping[str, Exception]
    batches: Sequence[Batch]


class Closed(NamedTuple):
    """A cell, or our part of it, whose examples are all recorded."""

    summary: Mapping[str, Any]
    sealed: bool


@dataclass
class Writer:
    """A session and its file, which is made when something is first written; made by `writing`."""

    root: Path
    name: str
    provenance: Callable[[], Mapping[str, Any]]
    stack: ExitStack = field(repr=False)
    store: Store | None = None
    session: dict[str, Any] = field(default_factory=dict)

    def opened(self) -> Store:
        """Return our file, with our session in it.

        Raises:
            OSError, sqlite3.Error: as `open_store` and `Store.write`.
        """
        if self.store is None:
            store = self.stack.enter_context(open_store(self.root, self.name))
            started = {"id": f"s{secrets.token_hex(6)}", "started": _now(), "status": "started"}
            provenance = canonical_json(redact(self.provenance()))
            self.session = {**started, **dict.fromkeys(("ended", "error")), "provenance": provenance}
            store.write(session=[self.session])
            self.store = store
        return self.store

    def write(self, **rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows of any tables in one durable transaction, signed by our session.

        Raises:
            OSError, sqlite3.Error: as `open_store` and `Store.write`.
        """
        store = self.opened()
        store.write(**{table: [{**row, "session": self.session["id"]} for row in many] for table, many in rows.items()})

    @contextmanager
    def open(self, plans: Sequence[CellPlan], prompts: str, what: str) -> Iterator[Group]:
        """Hold cells that read the same prompts while the block runs, and plan the batches of what they lack.

        All of it is recorded before the block starts. What another process holds, or damage hurts, is left out. The
        plan of a cell is the one asked for and every example that was tried, so that a failure cannot be planned away.

        Args:
            plans: the cells, all with the same part.
            prompts: what tells their prompts from others.
            what: the cells in words.
        """
        ids = [plan.id for plan in plans]
        with claimed(self.root / LOCKS, ids, plans[0].part, what) as taken:
            found, damage = progress(files(self.root), ids)
            problems: dict[str, Exception] = {**taken, **hurt(damage)}
            cells = {}
            for plan in plans:
                try:
                    if plan.id not in problems:
                        cells[plan.id] = self._cell(plan, found.get(plan.id))
                except IdentityClash as error:
                    problems[plan.id] = error
            key = hashlib.sha256(prompts.encode()).hexdigest()[:16]
            batches, new = _planned(list(cells.values()), _recorded_batches(self.root, key))
            if batches:
                own = self.opened().path
                fresh = [
                    _cell_row(cell.plan, cell.planned)
                    for cell in cells.values()
                    if cell.missing and not _says(found.get(cell.id), own, cell.planned)
                ]
                if fresh or new:
                    self.write(cell=fresh, batch=[{"prompts": key, "id": each.id, "plan": each.plan} for each in new])
            yield Group(cells, problems, batches)

    def record(self, batch: str, made: Sequence[tuple[CellWriter, Mapping[str, Any]]]) -> None:
        """Record the rows of one batch, for all its cells at once.

        Args:
            batch: the id of the planned batch.
            made: cells, and the rows that they made.

        Raises:
            OSError, sqlite3.Error: none of the rows is recorded.
        """
        self.write(sample=[_sample(batch, row) for _, row in made])
        for cell, row in made:
            if row["status"] == "ok":
                cell.good.add(row["example_id"])
                cell.failed.pop(row["example_id"], None)
            else:
                cell.failed[row["example_id"]] = row

    def close(self, plans: Sequence[CellPlan]) -> dict[str, Closed | Exception]:
        """Return cell id -> its summary, or what is wrong with it; seal those of which all is there by now.

        A part whose examples are all recorded, of a cell that is not complete, has a summary of its own. `Incomplete`
        says "incomplete 17/20" with the reasons; whatever it is, the cell loses nothing.
        """
        found, damage = progress(files(self.root), [plan.id for plan in plans])
        problems = hurt(damage)
        closed: dict[str, Closed | Exception] = {}
        for plan in plans:
            try:
                closed[plan.id] = problems.get(plan.id) or _closed(plan, found.get(plan.id))
            except (Incomplete, IdentityClash, DuplicateRow, CorruptRecord) as error:
                closed[plan.id] = error
        complete = [plan for plan in plans if isinstance(closed[plan.id], Closed) and closed[plan.id].sealed]
        new = [plan for plan in complete if not plan.done(found[plan.id])]
        if new:
            fault("seal")
            try:
                self._seal([(plan, found[plan.id], closed[plan.id].summary) for plan in new])
            except OSError as error:
                closed |= {plan.id: error for plan in new}
        return closed

    def end(self, status: str, error: BaseException | None = None) -> None:
        """Note how the session ended, if it wrote anything."""
        if self.store is None:
            return
        reason = None if error is None else redact_text(f"{type(error).__name__}: {error}")[:_ERROR_LENGTH]
        self.session |= {"ended": _now(), "status": status, "error": reason}
        try:
            self.store.write(session=[self.session])
        except sqlite3.Error as failure:
            _log.warning("%s: could not record that the session ended (%s)", self.store.path, failure)

    def _cell(self, plan: CellPlan, known: Progress | None) -> CellWriter:
        if known is None:
            return CellWriter(plan, plan.planned, set(), {}, self)
        return CellWriter(plan, _whole_plan(plan, known), set(known.good), dict(known.failed), self)

    def _seal(self, complete: Iterable[tuple[CellPlan, Progress, Mapping[str, Any]]]) -> None:
        own = self.opened().path
        cells, seals = [], []
        for plan, known, summary in complete:
            planned = _whole_plan(plan, known)
            if not _says(known, own, planned):
                cells.append(_cell_row(plan, planned))
            hashes = {"plan_sha256": plan_sha256(planned), "rows_sha256": summary["rows_sha256"]}
            seals.append({"cell": plan.id, **hashes, "summary": canonical_json(summary)})
        self.write(cell=cells, seal=seals)


@contextmanager
def writing(root: Path, name: str, provenance: Callable[[], Mapping[str, Any]]) -> Iterator[Writer]:
    """Be a session that writes below `root`, to a file of the given name that no other process writes.

    SIGTERM ends the block like an interrupt. How it ended is noted: "ended", "interrupted" or "failed"; a session that
    still says "started" is that of a living or a killed process. Nothing is swallowed.
    """
    with terminable(), ExitStack() as stack:
        writer = Writer(root, name, provenance, stack)
        try:
            yield writer
        except BaseException as error:
            writer.end("interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else "failed", error)
            raise
        writer.end("ended")


@contextmanager
def open_cell(
    root: Path,
    identity: Mapping[str, Any],
    *,
    label: str,
    planned: Sequence[str],
    config: Mapping[str, Any],
    provenance: Mapping[str, Any],
    name: str = "local",
) -> Iterator[CellWriter]:
    """Open one cell by itself, in a session of its own; the arguments are those of `CellPlan` and `writing`.

    Raises:
        CellLocked, CorruptRecord, IdentityClash: it is held elsewhere, damaged, or another one has its id.
    """
    plan = CellPlan(identity, label, tuple(planned), config)
    with writing(root, name, lambda: provenance) as writer, writer.open([plan], plan.id, label) as group:
        if plan.id in group.problems:
            raise group.problems[plan.id]
        yield group.cells[plan.id]


def hurt(damage: Iterable[Damage]) -> dict[str, Exception]:
    """Return cell id -> the error that says what is wrong with it."""
    return {cell: CorruptRecord(each.reason) for each in damage for cell in each.cells or ()}


def _whole_plan(plan: CellPlan, known: Progress) -> tuple[str, ...]:
    """Return all that is planned of a cell from now on.

    Raises:
        IdentityClash: another identity has the cell's id.
    """
    if known.identity != canonical_json(plan.identity):
        raise IdentityClash(f"the records hold another identity under the id {plan.id}: keep them under two roots")
    return known.planned if plan.done(known) else with_tried(plan.planned, known.good | known.failed.keys())


def _closed(plan: CellPlan, known: Progress | None) -> Closed:
    """Return the summary of a cell that is complete, or of our part of it.

    Raises:
        Incomplete: an example of our part is not ok.
        IdentityClash, DuplicateRow: as the records say.
    """
    if known is None:
        raise Incomplete(f"cell {plan.id} is incomplete 0/{len(plan.planned)}: not run; repeat the command")
    if plan.done(known):
        return Closed(known.summary, True)
    planned = _whole_plan(plan, known)
    ours = plan.ours(planned)
    lacking = [name for name in ours if name not in known.good]
    if lacking:
        done = sum(name in known.good for name in planned)
        raise Incomplete(
            f"cell {plan.id} is incomplete {done}/{len(planned)}: {_reasons(lacking, known.failed)}; repeat the "
            "command, or change what is refused"
        )
    rows = last_attempts(attempts(known.sources, [plan.id])[0][plan.id].items())
    if known.good.issuperset(planned):
        return Closed(summarise({**known.manifest, "planned": planned}, rows.values(), known.attempts), True)
    part = [row for name, row in rows.items() if name in set(ours)]
    return Closed(summarise({**known.manifest, "planned": ours}, part, len(part)), False)


def _planned(cells: Sequence[CellWriter], recorded: Iterable[Batch]) -> tuple[list[Batch], list[Batch]]:
    """Return the batches that hold what cells lack, in the order of their examples, and those of them that are new.

    What an earlier session planned together is decoded together: rows that decode in other company can differ in the
    last bits. What is not planned yet is planned now, example by example, for all cells that lack it.
    """
    lacking = {(cell.id, name): None for cell in sorted(cells, key=lambda cell: cell.id) for name in cell.missing}
    found = []
    for batch in recorded:
        mine = [row for row in batch.rows if row in lacking]
        if mine:
            found.append(batch)
            for row in mine:
                del lacking[row]
    together: dict[str, list[str]] = {}
    for cell, name in lacking:
        together.setdefault(name, []).append(cell)
    new = [Batch(tuple(ids), (name,)) for name, ids in together.items()]
    return [*found, *new], new


def _recorded_batches(root: Path, prompts: str) -> list[Batch]:
    found: dict[str, Batch] = {}
    for path in files(root):
        try:
            with reading(path) as connection:
                for row in rows(connection, "batch", "WHERE prompts = ?", (prompts,)):
                    plan = json.loads(row["plan"])
                    found.setdefault(row["id"], Batch(tuple(plan["cells"]), tuple(plan["examples"])))
        except CorruptRecord as error:
            _log.warning("%s: %s; what was planned there is planned again", path, error)
    return list(found.values())


def _says(known: Progress | None, path: Path, planned: tuple[str, ...]) -> bool:
    """Tell whether a file holds a cell already, and the records its plan."""
    return known is not None and path in known.sources and known.planned == planned


def _cell_row(plan: CellPlan, planned: Sequence[str]) -> dict[str, Any]:
    label = redact_text(plan.label)
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "cell_id": plan.id,
        "identity_sha256": identity_sha256(plan.identity),
        "label": label,
        "config": redact(plan.config),
    }
    return {
        "id": plan.id,
        "label": label,
        "identity": canonical_json(plan.identity),
        "manifest": canonical_json(manifest),
        "planned": canonical_json(planned),
        "written": datetime.now(UTC).isoformat(timespec="microseconds"),
    }


def _sample(batch: str, row: Mapping[str, Any]) -> dict[str, Any]:
    typed = {"cell": row["cell_id"], "example": row["example_id"], "batch": batch}
    return {**typed, **{name: row[name] for name in ("attempt", "status", "score")}, "row": canonical_json(row)}


def _reasons(lacking: Sequence[str], failed: Mapping[str, Mapping[str, Any]]) -> str:
    shown = [f"{name} ({failed[name]['error'].splitlines()[0] if name in failed else 'not run'})" for name in lacking]
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
