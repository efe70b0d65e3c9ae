"""Every promise of a record held against the files: hashes, seals, identities, plans."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inertia.records.facts import DAMAGE, steady
from inertia.records.identity import cell_id
from inertia.records.journal import CorruptRecord, read_journal
from inertia.records.layout import JOURNAL, named_folders, read_manifest
from inertia.records.load import check_rows
from inertia.records.published import published_files
from inertia.records.read import Cell, read_cell, read_published
from inertia.records.settle import settle


@dataclass(frozen=True)
class Finding:
    """What was found of one cell, or of one published file that cannot be read.

    Attributes:
        source: its folder or file.
        status: "intact", "incomplete" or "damaged".
        detail: how far the cell is, or what is wrong.
        cell: the cell's id, None where it could not be read.
    """

    source: Path
    status: Literal["intact", "incomplete", "damaged"]
    detail: str
    cell: str | None = None


def places(source: Path) -> list[Path]:
    """Return what `source` has to check: cell folders, twins included, or published files.

    Raises:
        FileNotFoundError: when `source` does not exist.
    """
    files = published_files(source)
    return files if files else [folder for _, folder in named_folders(source)]


def verify(found: list[Path], jobs: int = 1) -> Iterator[list[Finding]]:
    """Yield the findings of each of the `places`, in their order, checked by `jobs` processes.

    A cell that two of the places hold is damaged: nobody can say which of them is meant.
    """
    first: dict[str, Path] = {}
    for place, findings in zip(found, _checked(found, jobs), strict=True):
        twins = []
        for finding in findings:
            other = None if finding.cell is None else first.setdefault(finding.cell, place)
            if other is not None and other != place:
                twins.append(Finding(place, "damaged", f"{other} holds cell {finding.cell} too: move one away"))
        yield [*findings, *twins]


def _checked(found: list[Path], jobs: int) -> Iterator[list[Finding]]:
    if jobs == 1:
        yield from map(check, found)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(check, found, chunksize=8)


def check(source: Path) -> list[Finding]:
    """Return the findings of one folder or published file; none where nothing is recorded yet."""
    try:
        return _file(source) if source.is_file() else steady(_folder, source)
    except (*DAMAGE, KeyError, TypeError) as error:
        return [Finding(source, "damaged", f"{type(error).__name__}: {error}")]


def _file(path: Path) -> list[Finding]:
    cells = read_published(path)
    for cell in cells:
        _hold(cell, path)
    return [Finding(path, "intact", cell.progress, cell.id) for cell in cells]


def _folder(folder: Path) -> list[Finding]:
    if read_manifest(folder) is None:
        return []
    cell = read_cell(folder)
    if not folder.name.endswith(f"__{cell.id}"):
        raise CorruptRecord(f"{folder}: the folder of another cell, its manifest says {cell.id}")
    _hold(cell, folder)
    if not cell.sealed:
        return [Finding(folder, "incomplete", cell.progress, cell.id)]
    journal = folder / JOURNAL
    if journal.exists():
        # A reopened cell goes on from its journal, which must therefore say what was sealed.
        check_rows(list(settle(read_journal(journal).rows, journal).values()), cell.summary, journal)
    return [Finding(folder, "intact", cell.progress, cell.id)]


def _hold(cell: Cell, where: Path) -> None:
    """Hold what the readers do not: id, owner of the rows, plan and the summary's own numbers."""
    if cell.id != cell_id(cell.identity):
        raise CorruptRecord(f"{where}: the cell id is {cell.id}, its identity gives {cell_id(cell.identity)}")
    strangers = sorted({row["cell_id"] for row in cell.rows} - {cell.id})
    if strangers:
        raise CorruptRecord(f"{where}: rows of {strangers} in cell {cell.id}")
    unplanned = sorted({row["example_id"] for row in cell.rows} - set(cell.planned))
    if unplanned:
        raise CorruptRecord(f"{where}: rows of examples that are not planned: {unplanned[:5]}")
    if cell.summary is None:
        return
    ok = [row for row in cell.rows if row["status"] == "ok"]
    if len(ok) != len(cell.planned) or cell.summary["ok"] != len(ok):
        raise CorruptRecord(
            f"{where}: sealed with {cell.summary['ok']} of {len(cell.planned)} examples, {len(ok)} are ok"
        )
    mean = sum(row["score"] for row in ok) / len(ok)
    stated = cell.summary["score"]["mean"]
    if not math.isclose(mean, stated, abs_tol=1e-9):
        raise CorruptRecord(f"{where}: the summary says {stated} as mean score, the rows give {mean}")
