"""The journal of a group: one line for each example that several cells decode together, for all of them at once.

A group's file lies in the folder `groups` of the root that it serves, where readers of cells do not look. Its first
line names its cells and the plans they are under; each later line holds an example: which cells were decoded together,
and the row of every cell that needed one. A line is durable before its rows go on to the journals of the cells, so that
after a kill an example is recorded for all its cells or for none. Rows that did not get that far are found here by
whoever opens the cell. Now and then the journals of the cells are made durable and the lines dropped; the file goes
once its cells are sealed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inertia.records import journal
from inertia.records.atomic import write_atomic
from inertia.records.faults import fault
from inertia.records.journal import CorruptRecord
from inertia.records.layout import SUMMARY
from inertia.records.lock import CellLocked, exclusive
from inertia.records.schema import SCHEMA_VERSION, check_version, make_row

if TYPE_CHECKING:
    from inertia.records.cell import CellWriter

FOLDER = "groups"
# Lines between two moments at which every cell's journal is made durable: a resumed run reads at most as many.
LINES = 64

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """Which cells decode which examples together, from the run that first planned them until all cells are sealed.

    Attributes:
        cells: ids, in the order of the rows of a batch.
        examples: ids.
    """

    cells: tuple[str, ...]
    examples: frozenset[str]


@dataclass(frozen=True)
class Head:
    """The first line of a group's file.

    Attributes:
        path: the file.
        cells: ids of the cells that its lines are for.
        plans: the plans that were made for them.
    """

    path: Path
    cells: tuple[str, ...]
    plans: tuple[Plan, ...]

    def encode(self) -> bytes:
        """Return the line."""
        plans = [{"cells": list(plan.cells), "examples": sorted(plan.examples)} for plan in self.plans]
        return journal.encode({"schema_version": SCHEMA_VERSION, "cells": list(self.cells), "plans": plans})


@dataclass
class Group:
    """The open journal of a group; made by `open_group`.

    Attributes:
        head: what stands in its file before the examples.
        plans: every plan that its cells are under, those of other files included.
        writers: cell id -> writer, for the cells that are open.
        lines: examples in the file.
    """

    head: Head
    plans: tuple[Plan, ...]
    writers: Mapping[str, CellWriter]
    lines: int = 0

    def batches(self, example_id: str, lacking: Collection[str]) -> list[tuple[str, ...]]:
        """Return the cells to decode an example for, batch by batch, so that every one of `lacking` is in a batch.

        A batch is the one that was planned: cells that have the example already are part of it.
        """
        found, left = [], set(lacking)
        for plan in self.plans:
            if example_id in plan.examples and left.intersection(plan.cells):
                found.append(plan.cells)
                left.difference_update(plan.cells)
        return found

    def record(self, example_id: str, batches: Iterable[Sequence[str]], rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Record an example for all its cells at once: durably here, then in the journal of each cell.

        Args:
            example_id: the example.
            batches: ids of the cells that were decoded together, in order.
            rows: cell id -> the row that its writer made.

        Raises:
            OSError: as the file system gave it. The example is recorded for all these cells, if only here, or for none.
        """
        line = {
            "schema_version": SCHEMA_VERSION,
            "example": example_id,
            "batches": [{"batch": batch_id(cells), "cells": list(cells)} for cells in batches],
            "rows": [{"origin": self.writers[cell].origin, "row": row} for cell, row in rows.items()],
        }
        journal.append(self.head.path, [line], name="group")
        self.lines += 1
        for cell, row in rows.items():
            fault("distribute")
            self.writers[cell].keep(row, durable=False)
        if self.lines >= LINES:
            self.settle()

    def settle(self) -> None:
        """Make the journals of all cells durable, then drop the lines, whose rows they have."""
        for writer in self.writers.values():
            writer.sync()
        fault("settle")
        write_atomic(self.head.path, self.head.encode())
        self.lines = 0


def batch_id(cells: Iterable[str]) -> str:
    """Return the id of a set of cells that decode together."""
    return "b" + hashlib.sha256("".join(sorted(cells)).encode("ascii")).hexdigest()[:11]


@contextmanager
def held(root: Path, cells: Iterable[str], what: str) -> Iterator[None]:
    """Hold a group, so that of two runs with the same cells one gets them all.

    Args:
        root: folder of all cells.
        cells: ids of the group's cells.
        what: the group, for people.

    Raises:
        CellLocked: when another process holds it.
    """
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for left in reversed(range(10)):
            try:
                stack.enter_context(exclusive(_lock(root, cells), f"group {batch_id(cells)} ({what})"))
                break
            except CellLocked:
                if left == 0:
                    raise
                time.sleep(0.05)  # whoever removes a finished file holds it for a moment only
        yield


def open_group(root: Path, cells: Iterable[str], writers: Mapping[str, CellWriter]) -> Group:
    """Open the journal of a group that is held, and plan what its open cells lack and no earlier run has planned.

    Cells that lack an example, and are not planned for it yet, are planned together.

    Args:
        root: folder of all cells.
        cells: ids of the group's cells.
        writers: cell id -> writer, for the cells that are open.

    Raises:
        CorruptRecord: when the file of a group is damaged.
    """
    ids = tuple(sorted(cells))
    path = _path(root, ids)
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):
        leftover.unlink(missing_ok=True)
    heads = [head for head in read_heads(root) if head.path == path or not writers.keys().isdisjoint(head.cells)]
    earlier = [plan for head in heads for plan in head.plans]
    new = _plan_rest(writers, earlier)
    own = [plan for head in heads if head.path == path for plan in head.plans]
    group = Group(Head(path, ids, (*own, *new)), (*earlier, *new), writers)
    if path.exists():
        journal.read_lines(path)  # says so if the last one is torn
    group.settle()
    return group


def lost_rows(folder: Path, manifest: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a cell that the journal of a group holds and the cell's own does not.

    Args:
        folder: the cell's folder.
        manifest: its manifest. Rows of a folder of the same id that was there before it are not its own.
        rows: what its own journal holds.

    Raises:
        CorruptRecord: when the file of a group is damaged.
    """
    cell = manifest["cell_id"]
    attempts = {row["example_id"]: row["attempt"] for row in rows}
    lost = []
    for head in read_heads(folder.parent):
        newest = []
        for row in _rows_backwards(head.path, cell, manifest.get("origin")) if cell in head.cells else ():
            # Rows went on in order: once one arrived, so did all before it.
            if row["attempt"] <= attempts.get(row["example_id"], 0):
                break
            newest.append(row)
        lost += reversed(newest)
    return lost


def remove_finished(root: Path, cells: Collection[str]) -> None:
    """Remove the files of the groups of these cells all of whose cells are sealed or gone; what is in use stays.

    With them go the locks that a killed process left on cells that it had sealed.
    """
    for head in read_heads(root):
        if set(cells).isdisjoint(head.cells):
            continue
        with suppress(CellLocked, OSError), exclusive(_lock(root, head.cells), "group"):
            if not _unfinished(root, head):
                for stale in filter(Path.exists, (root / f".{cell}.lock" for cell in head.cells)):
                    with suppress(CellLocked), exclusive(stale, "cell"):
                        pass
                head.path.unlink(missing_ok=True)


def read_heads(root: Path) -> list[Head]:
    """Return the first line of every group's file below a folder of cells, by name.

    Raises:
        CorruptRecord: when one is damaged.
    """
    heads = []
    for path in sorted((root / FOLDER).glob("*.jsonl")):
        try:
            with path.open("rb") as file:
                line = file.readline()
        except FileNotFoundError:  # finished in this moment
            continue
        if not line.endswith(b"\n"):
            _log.warning("%s: nothing complete in it, left out", path)
            continue
        values = _parse(line, path, 1)
        try:
            plans = tuple(Plan(tuple(each["cells"]), frozenset(each["examples"])) for each in values["plans"])
            heads.append(Head(path, tuple(values["cells"]), plans))
        except (KeyError, TypeError) as error:
            raise _damaged(path, 1, f"no head of a group ({type(error).__name__}: {error})") from None
    return heads


def _plan_rest(writers: Mapping[str, CellWriter], earlier: Iterable[Plan]) -> list[Plan]:
    planned = {(cell, name) for plan in earlier for cell in plan.cells for name in plan.examples}
    lacking: dict[str, list[str]] = {}
    for cell in sorted(writers):
        for name in writers[cell].missing:
            if (cell, name) not in planned:
                lacking.setdefault(name, []).append(cell)
    together: dict[tuple[str, ...], set[str]] = {}
    for name, lack in lacking.items():
        together.setdefault(tuple(lack), set()).add(name)
    return [Plan(lack, frozenset(names)) for lack, names in together.items()]


def _rows_backwards(path: Path, cell: str, origin: str | None) -> Iterator[dict[str, Any]]:
    try:
        lines = journal.split_lines(path.read_bytes())[0]
    except FileNotFoundError:  # finished in this moment
        return
    for number in range(len(lines), 1, -1):
        values = _parse(lines[number - 1], path, number)
        try:
            for each in values["rows"]:
                if each["row"]["cell_id"] == cell and each["origin"] == origin:
                    yield make_row(each["row"])
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(path, number, f"{type(error).__name__}: {error}") from None


def _parse(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        values = json.loads(line)
        if not isinstance(values, dict):
            raise ValueError(f"expected a JSON object, got {type(values).__name__}")
    except ValueError as error:
        raise _damaged(path, number, f"not JSON ({error})") from None
    check_version(values.get("schema_version"), f"{path}, line {number}")
    return values


def _damaged(path: Path, number: int, why: str) -> CorruptRecord:
    return CorruptRecord(
        f"{path}, line {number}: {why}; move the file away: the cells keep their own rows, and at most the last {LINES}"
        " examples are decoded again"
    )


def _unfinished(root: Path, head: Head) -> bool:
    return any(not (folder / SUMMARY).exists() for cell in head.cells for folder in root.glob(f"*__{cell}"))


def _path(root: Path, cells: Iterable[str]) -> Path:
    return root / FOLDER / f"{batch_id(cells)}.jsonl"


def _lock(root: Path, cells: Iterable[str]) -> Path:
    return root / FOLDER / f".{batch_id(cells)}.lock"
