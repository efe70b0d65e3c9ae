"""Sealed cells gathered into one partitioned parquet data set, and back.

The data set lies beside the runs and is for reading: backbone=<name>/benchmark=<name>/cells-0000.parquet and so on,
each file a published one (`published`), with at most 256 cells. Every file is replaced whole or not at all, and only by
bytes that were read back; killed at any point, the data set is a smaller or an older one, and the same command goes on.
A cell lives in exactly one file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

from inertia.records import journal
from inertia.records.atomic import remove_leftovers, sync_directory, write_atomic, write_json
from inertia.records.canonical import canonical_json
from inertia.records.diff import diff_rows
from inertia.records.facts import Facts, names, read_facts
from inertia.records.faults import fault
from inertia.records.identity import file_name
from inertia.records.journal import CorruptRecord
from inertia.records.layout import JOURNAL, MANIFEST, SAMPLES, SUMMARY, cell_folders, named_folders
from inertia.records.load import check_rows, load_open_rows
from inertia.records.lock import CellLocked, exclusive
from inertia.records.published import describe, described, published_files
from inertia.records.read import Cell, read_cell, read_published
from inertia.records.schema import make_row, sample_schema
from inertia.records.settle import settle
from inertia.records.table import to_parquet

if TYPE_CHECKING:
    import pyarrow

# Manifests stand in a file's footer, which readers load whole: few enough to open at once.
CELLS_A_FILE = 256
ROWS_A_FILE = 65_536
# Of each row's cell, beside the record's own columns; fixed types, so that all files have one schema.
CELL_COLUMNS = ("policy", "cell_label", "cell_planned", "identity")
_REMOVED = ".removed"

Watch = Callable[[Sequence[Any]], Iterable[Any]]


@dataclass
class Compaction:
    """What `compact` did.

    Attributes:
        added: ids of cells that the data set did not have, or had with fewer examples.
        kept: ids of cells that it had already.
        open: cells that are not complete; they stay where they are.
        conflicts: id -> why neither of two versions of a cell may replace the other.
        removed: ids of cells whose folders were removed.
        left: id -> why a folder was not removed.
    """

    added: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    conflicts: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


def compact(root: Path, target: Path, *, remove: bool = False, watch: Watch = iter) -> Compaction:
    """Bring the sealed cells below `root` into the data set `target`, which is made or added to.

    A cell that was reopened with more examples replaces its older version; one that lacks a record of the
    version in the data set, or says something else, is a conflict, and nothing is changed for it.

    Args:
        root: folder of runs.
        target: folder of the data set.
        remove: then remove the folder of each cell whose every record was read back from the data set, as equal
            values with valid hashes. The folder holds nothing that `restore` does not bring back; until then
            the harness sees no such cell and would run it again.
        watch: wraps the files that are worked on, for a progress bar.

    Raises:
        CellLocked: when another process compacts into `target`.
        CorruptRecord, DuplicateCell, DuplicateRow, NewerSchema: naming a damaged file; nothing was lost.
        FileNotFoundError: when `root` does not exist.
        OSError: as the file system gave it.
    """
    cells = {facts.id: facts for facts in read_facts(root)}
    if published_files(root) or (target.is_dir() and named_folders(target)):
        raise ValueError(f"{root} must be a folder of runs and {target} a data set or new: give another of the two")
    target.mkdir(parents=True, exist_ok=True)
    with exclusive(target / ".lock", f"data set {target}"):
        done = Compaction(open=[name for name, facts in cells.items() if not facts.sealed])
        stored = {facts.id: facts for facts in read_facts(target)}
        sealed = {name: facts for name, facts in cells.items() if facts.sealed}
        changed = _changed(sealed, stored, done)
        done.kept = [name for name in sealed if name in stored and name not in changed and name not in done.conflicts]
        added = [facts for name, facts in sealed.items() if name not in stored]
        for path, members in watch(list(_plan(target, changed, added, stored).items())):
            _write(target, path, members)
            done.added += [facts.id for facts in members if facts.source != path]
        if remove:
            _remove_all(root, target, done, watch)
    return done


def restore(source: Path, root: Path, cell_ids: Iterable[str] | None = None, *, watch: Watch = iter) -> list[str]:
    """Write cells of a data set or published file back as folders below `root`, and return their ids.

    A cell that has a folder there already is left alone. Records come back as equal values, failed attempts
    included; each folder appears whole or not at all.

    Raises:
        KeyError: for an id that is not in `source`.
        CellLocked: when a process writes such a cell.
        FileNotFoundError, CorruptRecord, NewerSchema, DuplicateRow, OSError: naming the file.
    """
    wanted = None if cell_ids is None else set(cell_ids)
    files = published_files(source)
    if not files:
        raise FileNotFoundError(f"no data set or published file at {source}: make one with compact or export")
    known = {entry["manifest"]["cell_id"] for path in files for entry in described(path)}
    if wanted is not None and not wanted <= known:
        raise KeyError(f"no such cells in {source}: {sorted(wanted - known)}")
    root.mkdir(parents=True, exist_ok=True)
    restored = []
    for path in watch(files):
        attempts = _attempts_of(path)
        for cell in read_published(path):
            if wanted is not None and cell.id not in wanted:
                continue
            with exclusive(root / f".{cell.id}.lock", f"cell {cell.id}"):
                if cell.id not in cell_folders(root):
                    _restore(root, cell, attempts.get(cell.id, []))
                    restored.append(cell.id)
    return restored


def cell_table(cells: Sequence[Cell], attempts: Mapping[str, list[Any]]) -> pyarrow.Table:
    """Return the table of one file of a data set: the rows of its cells, and what each cell is, beside them."""
    import pyarrow as pa

    schema = sample_schema()
    table = pa.Table.from_pylist([dict(row) for cell in cells for row in cell.rows], schema=schema)
    values: dict[str, list[Any]] = {name: [] for name in CELL_COLUMNS}
    for cell in cells:
        about = (names(cell.manifest).policy, cell.label, len(cell.planned), canonical_json(cell.identity))
        for name, value in zip(CELL_COLUMNS, about, strict=True):
            values[name] += [value] * len(cell.rows)
    for name in CELL_COLUMNS:
        kind = pa.int64() if name == "cell_planned" else pa.string()
        table = table.append_column(pa.field(name, kind, nullable=False), pa.array(values[name], kind))
    return table.replace_schema_metadata({**schema.metadata, **describe(cells, attempts)})


def _changed(sealed: Mapping[str, Facts], stored: Mapping[str, Facts], done: Compaction) -> dict[str, Facts]:
    """Return the cells that replace their version in the data set; what may not is noted as a conflict."""
    found = {}
    files: dict[Path, dict[str, Cell]] = {}
    for name, facts in sealed.items():
        before = stored.get(name)
        if before is None or (before.manifest == facts.manifest and before.summary == facts.summary):
            continue
        if before.source not in files:
            files = {before.source: {cell.id: cell for cell in read_published(before.source)}}
        rows = diff_rows(files[before.source][name].rows, read_cell(facts.source).rows)
        if rows is not None and (rows.only_a or rows.changed):
            lost = [*rows.only_a, *rows.changed]
            done.conflicts[name] = (
                f"{facts.source} lacks or changes {len(lost)} records that {before.source} has, such as {lost[0]}"
            )
        else:
            found[name] = facts
    return found


def _plan(
    target: Path, changed: Mapping[str, Facts], added: Iterable[Facts], stored: Mapping[str, Facts]
) -> dict[Path, list[Facts]]:
    """Return path -> all cells of each file that has to be written, each cell from where its newest version is."""
    files: dict[Path, list[Facts]] = {}
    for name, facts in stored.items():
        files.setdefault(facts.source, []).append(changed.get(name, facts))
    dirty = {stored[name].source for name in changed}
    for facts in sorted(added, key=_order):
        found = names(facts.manifest)
        folder = target / f"backbone={file_name([found.backbone])}" / f"benchmark={file_name([found.benchmark])}"
        numbered = (folder / f"cells-{number:04d}.parquet" for number in count())
        path = next(path for path in numbered if _has_room(files.get(path, ())))
        files.setdefault(path, []).append(facts)
        dirty.add(path)
    return {path: sorted(files[path], key=_order) for path in sorted(dirty)}


def _has_room(members: Sequence[Facts]) -> bool:
    rows = sum(len(facts.manifest["planned"]) for facts in members)
    return len(members) < CELLS_A_FILE and rows < ROWS_A_FILE


def _order(facts: Facts) -> tuple[Any, ...]:
    found = names(facts.manifest)
    length = -1 if found.length is None else found.length
    return (found.backbone, found.benchmark, found.task, length, found.policy, facts.id)


def _write(target: Path, path: Path, members: Sequence[Facts]) -> None:
    """Write one file from the newest version of each member, and read it back."""
    old = {cell.id: cell for cell in read_published(path)} if path.exists() else {}
    attempts = _attempts_of(path) if path.exists() else {}
    cells = []
    for facts in members:
        if facts.source == path:
            cells.append(old[facts.id])
            continue
        cell = read_cell(facts.source)
        if not cell.sealed:
            raise CorruptRecord(f"{facts.source}: reopened by a run meanwhile; repeat the command when it is sealed")
        cells.append(cell)
        attempts[cell.id] = _merged(attempts.get(cell.id, []), _replaced(facts.source, cell))
    table = cell_table(cells, attempts)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    write_atomic(path, _encode(table, path))
    for folder in (target, path.parent.parent):
        sync_directory(folder)


def _encode(table: pyarrow.Table, path: Path) -> bytes:
    """Return the bytes of a file, of which it is certain that they read back as the table."""
    import io

    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", row_group_size=32_768)
    if not pq.ParquetFile(buffer).read().equals(table, check_metadata=True):
        raise CorruptRecord(f"{path}: encoded and read back, the rows are not the same; nothing was written")
    return buffer.getvalue()


def _replaced(folder: Path, cell: Cell) -> list[dict[str, Any]]:
    """Return the rows of a cell's journal that a later attempt at the same example replaced.

    Raises:
        CorruptRecord: when the journal does not end in the rows that were sealed.
    """
    if not (folder / JOURNAL).exists():
        return []
    rows = load_open_rows(folder, cell.id)
    last = settle(rows, folder / JOURNAL)
    check_rows(list(last.values()), cell.summary, folder / JOURNAL)
    return [row for row in rows if row["attempt"] < last[row["example_id"]]["attempt"]]


def _attempts_of(path: Path) -> dict[str, list[dict[str, Any]]]:
    return {
        entry["manifest"]["cell_id"]: [make_row(row) for row in entry["attempts"]]
        for entry in described(path)
        if "attempts" in entry
    }


def _merged(old: Iterable[dict[str, Any]], new: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({canonical_json(row): row for row in (*old, *new)}.values())


def _remove_all(root: Path, target: Path, done: Compaction, watch: Watch) -> None:
    for leftover in root.glob(f".*{_REMOVED}"):
        rmtree(leftover, ignore_errors=True)
    folders = cell_folders(root)
    for path in watch(published_files(target)):
        attempts = _attempts_of(path)
        for stored in read_published(path):
            folder = folders.get(stored.id)
            if folder is None:
                continue
            with suppress(CellLocked), exclusive(root / f".{stored.id}.lock", f"cell {stored.id}"):
                reason = _why_not(folder, stored, attempts.get(stored.id, []))
                if reason is None:
                    # Renamed first: a folder half removed is never taken for a cell.
                    hidden = root / f".{folder.name}{_REMOVED}"
                    folder.rename(hidden)
                    sync_directory(root)
                    fault("remove")
                    rmtree(hidden)
                    done.removed.append(stored.id)
                else:
                    done.left[stored.id] = reason
                continue
            done.left[stored.id] = "a run is writing it"


def _why_not(folder: Path, stored: Cell, attempts: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why a folder may not be removed, None when the data set has every record of it."""
    others = sorted(path.name for path in folder.iterdir() if path.name not in (MANIFEST, JOURNAL, SAMPLES, SUMMARY))
    if others:
        return f"it holds {others}, which is no record"
    cell = read_cell(folder)
    if (cell.manifest, cell.summary, cell.rows) != (stored.manifest, stored.summary, stored.rows):
        return f"{stored.source} has another version of it"
    kept = {canonical_json(row) for row in attempts}
    if not {canonical_json(row) for row in _replaced(folder, cell)} <= kept:
        return f"{stored.source} lacks failed attempts of it"
    return None


def _restore(root: Path, cell: Cell, attempts: Iterable[Mapping[str, Any]]) -> None:
    folder = root / f"{file_name([cell.label])}__{cell.id}"
    making = root / f".{folder.name}.tmp"
    if making.exists():
        rmtree(making)
    making.mkdir()
    rows = sorted((*attempts, *cell.rows), key=lambda row: (row["index"], row["example_id"], row["attempt"]))
    write_json(making / MANIFEST, cell.manifest)
    write_atomic(making / JOURNAL, b"".join(journal.encode(row) for row in rows))
    write_atomic(making / SAMPLES, to_parquet(cell.rows))
    write_json(making / SUMMARY, cell.summary)
    settle(rows, making / JOURNAL)
    fault("restore")
    making.rename(folder)
    sync_directory(root)
