"""The life of a cell: open, append example by example, seal."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inertia.records import journal
from inertia.records.atomic import remove_leftovers, sync_directory, write_atomic, write_json
from inertia.records.canonical import canonical_json
from inertia.records.faults import fault
from inertia.records.group import lost_rows
from inertia.records.identity import cell_id, file_name, identity_sha256
from inertia.records.layout import JOURNAL, MANIFEST, SAMPLES, SUMMARY, find_cell, read_manifest
from inertia.records.load import check_rows, load_own_rows, load_seal, load_sealed_rows
from inertia.records.lock import exclusive
from inertia.records.redact import redact, redact_text
from inertia.records.schema import SCHEMA_VERSION, make_row
from inertia.records.settle import DuplicateRow, settle
from inertia.records.summary import summarise
from inertia.records.table import to_parquet
from inertia.records.termination import terminable

_log = logging.getLogger(__name__)
_ERROR_LENGTH = 2000


class IdentityClash(RuntimeError):
    """Two identities have the same cell id; the full hashes differ."""


class Incomplete(RuntimeError):
    """A cell cannot be sealed: planned examples are not ok."""


@dataclass
class CellWriter:
    """An open cell; made by `open_cell`, used inside its block only.

    Attributes:
        id: the cell's id.
        directory: its folder.
        planned: ids of all planned examples. May hold more than was asked for: an example that was tried
            stays.
        rows: example id -> its ok row.
        failures: example id -> its last failed row.
        sealed: whether the cell is complete; then appending is an error and `seal` returns what there is.
        summary: the summary of a sealed cell.
    """

    id: str
    directory: Path
    planned: tuple[str, ...]
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: dict[str, dict[str, Any]] = field(default_factory=dict)
    sealed: bool = False
    summary: dict[str, Any] | None = None
    _manifest: dict[str, Any] = field(default_factory=dict, repr=False)
    _attempts: int = 0
    _unsynced: bool = False

    @property
    def missing(self) -> tuple[str, ...]:
        """Ids of the planned examples without an ok row, in planned order: what is left to run."""
        return tuple(name for name in self.planned if name not in self.rows)

    @property
    def progress(self) -> str:
        """Return "complete 20/20" or "incomplete 17/20"."""
        word = "incomplete" if self.missing else "complete"
        return f"{word} {len(self.rows)}/{len(self.planned)}"

    @property
    def origin(self) -> str:
        """What tells this folder from an earlier one of the same id that was removed."""
        return self._manifest["origin"]

    def append(self, row: Mapping[str, Any]) -> None:
        """Record one finished example durably; cell id, version, status and attempt are filled in.

        Raises:
            DuplicateRow: when the example is ok already.
            ValueError: when it is not planned, or the row does not fit the schema.
            OSError: when it could not be written; the journal is as it was before.
        """
        self.keep(self.row(row))

    def append_failure(
        self, example_id: str, index: int, error: str | BaseException, *, task: str, **columns: Any
    ) -> None:
        """Record durably that an example failed, and why; the arguments are those of `failure_row`.

        It stays in the denominator and is tried again next time.

        Raises:
            DuplicateRow, ValueError, OSError: as `append`.
        """
        self.keep(self.failure_row(example_id, index, error, task=task, **columns))

    def row(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row of a finished example as it will stand in the records; nothing is written.

        Raises:
            DuplicateRow, ValueError: as `append`.
            TypeError: when a value has the wrong type.
        """
        return self._filled({**values, "status": "ok"})

    def failure_row(
        self, example_id: str, index: int, error: str | BaseException, *, task: str, **columns: Any
    ) -> dict[str, Any]:
        """Return the row of an example that failed; nothing is written.

        Args:
            example_id: the planned example.
            index: its place in the data.
            error: the reason, without secrets and private paths.
            task: its task.
            **columns: further columns known at that point, such as length, references or prompt_tokens.

        Raises:
            DuplicateRow, ValueError: as `append`.
        """
        reason = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        row = {**columns, "example_id": example_id, "index": index, "task": task, "status": "failed"}
        return self._filled({**row, "error": redact_text(reason)[:_ERROR_LENGTH]})

    def keep(self, row: dict[str, Any], *, durable: bool = True) -> None:
        """Append a row that `row` or `failure_row` made.

        Args:
            row: the row.
            durable: False where another file holds the row until `sync`.

        Raises:
            OSError: when it could not be written; the journal is as it was before.
        """
        journal.append(self.directory / JOURNAL, [row], durable=durable)
        self._unsynced = self._unsynced or not durable
        self._attempts += 1
        if row["status"] == "failed":
            self.failures[row["example_id"]] = row
        else:
            self.failures.pop(row["example_id"], None)
            self.rows[row["example_id"]] = row

    def sync(self) -> None:
        """Make every row durable.

        Raises:
            OSError: as the file system gave it.
        """
        if self._unsynced:
            journal.sync(self.directory / JOURNAL)
            self._unsynced = False

    def seal(self) -> dict[str, Any]:
        """Write the table, then the summary, and return the summary; a sealed cell returns its own.

        Raises:
            Incomplete: "incomplete 17/20" with the reasons, when a planned example is not ok.
            OSError: when a file could not be written; the cell is then not sealed and loses nothing.
        """
        if self.summary is not None:
            return self.summary
        if self.missing:
            raise Incomplete(
                f"cell {self.id} is {self.progress}: {self._reasons()}; repeat the command, or change what is refused"
            )
        self.sync()
        rows = list(settle(self.rows.values(), self.directory).values())
        summary = summarise(self._manifest, rows, self._attempts)
        write_atomic(self.directory / SAMPLES, to_parquet(rows))
        self._close("complete", None)
        fault("seal")
        write_json(self.directory / SUMMARY, summary)
        self.sealed, self.summary = True, summary
        return summary

    def _filled(self, values: Mapping[str, Any]) -> dict[str, Any]:
        name = values.get("example_id")
        if self.sealed:
            raise DuplicateRow(f"cell {self.id} is sealed: example {name!r} cannot be appended")
        if name not in self.planned:
            raise ValueError(f"example {name!r} is not planned in cell {self.id} ({len(self.planned)} examples)")
        if name in self.rows:
            raise DuplicateRow(f"cell {self.id}: example {name!r} is recorded as ok already")
        failed = self.failures.get(name)
        filled = {
            "schema_version": SCHEMA_VERSION,
            "cell_id": self.id,
            "attempt": 1 if failed is None else failed["attempt"] + 1,
        }
        return make_row({**values, **filled})

    def _reasons(self) -> str:
        shown = [
            f"{name} ({self.failures[name]['error'].splitlines()[0] if name in self.failures else 'not run'})"
            for name in self.missing[:3]
        ]
        more = len(self.missing) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")

    def _close(self, status: str, error: BaseException | None) -> None:
        self.sync()
        reason = None if error is None else redact_text(f"{type(error).__name__}: {error}")[:_ERROR_LENGTH]
        ended = {"ended": _now(), "status": status, "error": reason}
        sessions = [*self._manifest["sessions"][:-1], {**self._manifest["sessions"][-1], **ended}]
        self._manifest = {**self._manifest, "status": status, "sessions": sessions}
        write_json(self.directory / MANIFEST, self._manifest)


@contextmanager
def open_cell(
    root: Path,
    identity: Mapping[str, Any],
    *,
    label: str,
    planned: Sequence[str],
    config: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> Iterator[CellWriter]:
    """Open the cell of `identity` below `root`: for writing, or as a no-op if sealed with all of `planned`.

    The manifest is on disk before the block starts. A journal of an earlier run is continued; a sealed cell
    that lacks planned examples is opened again (how many examples is transport, not identity). The plan of an
    unsealed cell is the new one and every example that was tried, so that a failure cannot be planned away.
    When the block ends without a seal the manifest says why: "interrupted" (SIGINT, SIGTERM), "failed" or
    "incomplete"; a manifest that still says "started" is that of a killed process. Nothing is swallowed.

    Several cells may be open at once; leave them in reverse order (`contextlib.ExitStack`).

    Args:
        root: folder of all cells (results/runs), made if missing.
        identity: everything that can change an output; nested, without NaN.
        label: for people, the front half of the folder's name; an existing folder keeps its own.
        planned: ids of the examples, unique, in order.
        config: the resolved config, kept in the manifest without secrets and private paths.
        provenance: of this session (`provenance.collect`).

    Raises:
        CellLocked: when another process writes this cell.
        IdentityClash: when the folder holds another identity with the same id.
        CorruptRecord: when a file of the cell is damaged; the message names it and the line.
        ValueError: for an empty plan or a repeated id.
    """
    root, plan, label = Path(root), _check_plan(planned), redact_text(label)
    cell = cell_id(identity)
    done = sealed_cell(root, identity, plan)
    if done is not None:
        yield done
        return
    root.mkdir(parents=True, exist_ok=True)
    with terminable(), exclusive(root / f".{cell}.lock", f"cell {cell} ({file_name([label])})"):
        done = sealed_cell(root, identity, plan)
        if done is not None:
            yield done
            return
        found = find_cell(root, cell)
        folder = found if found is not None else root / f"{file_name([label])}__{cell}"
        folder.mkdir(exist_ok=True)
        sync_directory(root)
        writer = _start(folder, cell, identity, label, plan, config, provenance)
        try:
            fault("manifest")
            yield writer
        except BaseException as error:
            if not (folder / SUMMARY).exists():
                status = "interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else "failed"
                _close_quietly(writer, status, error)
            raise
        if not writer.sealed:
            writer._close("incomplete", None)


def sealed_cell(root: Path, identity: Mapping[str, Any], planned: Sequence[str]) -> CellWriter | None:
    """Return a cell that is sealed with all of `planned`, or None; nothing is locked or written.

    Raises:
        IdentityClash, CorruptRecord: as `open_cell`.
    """
    plan, cell = _check_plan(planned), cell_id(identity)
    folder = find_cell(root, cell)
    manifest = read_manifest(folder) if folder is not None else None
    if folder is None or manifest is None:
        return None
    _check_identity(folder, manifest, identity)
    summary = load_seal(folder, manifest)
    if summary is None or not set(plan) <= set(manifest["planned"]):
        return None
    _log.info("cell %s is sealed with n = %d (asked for %d): nothing to do", cell, summary["planned"], len(plan))
    rows = load_sealed_rows(folder, summary)
    return CellWriter(cell, folder, tuple(manifest["planned"]), rows, sealed=True, summary=summary)


def _start(
    folder: Path,
    cell: str,
    identity: Mapping[str, Any],
    label: str,
    plan: tuple[str, ...],
    config: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> CellWriter:
    remove_leftovers(folder)
    old = read_manifest(folder)
    rows = _reopen(folder, cell, old) if old is not None else []
    settled = settle(rows, folder / JOURNAL)
    before = old["planned"] if old is not None and (folder / SUMMARY).exists() else ()
    planned = tuple(dict.fromkeys((*plan, *before, *settled)))
    # The seal is broken first: a summary must never stand beside a plan it does not cover.
    if (folder / SUMMARY).exists():
        (folder / SUMMARY).unlink()
        sync_directory(folder)
    session = {
        "started": _now(),
        "ended": None,
        "status": "started",
        "error": None,
        "provenance": redact(provenance),
    }
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "cell_id": cell,
        "label": old["label"] if old is not None else label,
        "status": "started",
        "identity_sha256": identity_sha256(identity),
        "identity": json.loads(canonical_json(identity)),
        "config": redact(config),
        "planned": list(planned),
        "origin": old["origin"] if old is not None and "origin" in old else secrets.token_hex(8),
        "sessions": [*(old["sessions"] if old is not None else []), session],
    }
    write_json(folder / MANIFEST, manifest)
    ok = {name: row for name, row in settled.items() if row["status"] == "ok"}
    failed = {name: row for name, row in settled.items() if row["status"] == "failed"}
    # What a killed process left in the journal may still be on its way to the disk.
    unsynced = (folder / JOURNAL).exists()
    return CellWriter(cell, folder, planned, ok, failed, _manifest=manifest, _attempts=len(rows), _unsynced=unsynced)


def _reopen(folder: Path, cell: str, manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    path = folder / JOURNAL
    if path.exists():
        journal.truncate_torn(path, journal.read_journal(path))
    rows = load_own_rows(folder, cell)
    summary = load_seal(folder, manifest)
    if summary is not None:
        check_rows(list(settle(rows, path).values()), summary, path if path.exists() else folder / SAMPLES)
    if rows and not path.exists():
        write_atomic(path, b"".join(journal.encode(row) for row in rows))
    lost = lost_rows(folder, manifest, rows)
    if lost:
        _log.info("cell %s: took over %d examples from the journal of its group", cell, len(lost))
        journal.append(path, lost, name="replay")
    return [*rows, *lost]


def _check_plan(planned: Sequence[str]) -> tuple[str, ...]:
    plan = tuple(planned)
    if not plan:
        raise ValueError("no example is planned: a cell needs at least one")
    repeated = sorted({name for name in plan if plan.count(name) > 1}) if len(set(plan)) < len(plan) else []
    if repeated:
        raise ValueError(f"example ids are planned twice: {repeated[:5]}; every example needs an id of its own")
    return plan


def _check_identity(folder: Path, manifest: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    wanted = identity_sha256(identity)
    if manifest["identity_sha256"] != wanted:
        raise IdentityClash(
            f"{folder} holds identity {manifest['identity_sha256']}, this run is {wanted}, and both have "
            "the same cell id: keep them under two roots"
        )


def _close_quietly(writer: CellWriter, status: str, error: BaseException) -> None:
    try:
        writer._close(status, error)
    except OSError as failure:
        _log.warning("%s: could not record the status %r (%s)", writer.directory / MANIFEST, status, failure)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
