"""How far cells are that other processes write, read from their journals."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from inertia.experiments.absorb import roots
from inertia.records.journal import CorruptRecord
from inertia.records.layout import JOURNAL, SUMMARY, cell_folders
from inertia.records.progress import recorded_ids
from inertia.records.settle import DuplicateRow

if TYPE_CHECKING:
    from inertia.experiments.cells import Cell

Stamp = tuple[tuple[int, int] | None, ...]


class Progress:
    """Counts recorded answers; a file that has not changed since the last look is not read again."""

    def __init__(self, results: Path, cells: Sequence[Cell]) -> None:
        self.results = results
        self.wanted: Mapping[str, frozenset[str]] = {cell.id: frozenset(cell.share) for cell in cells}
        self.seen: dict[Path, tuple[Stamp, frozenset[str]]] = {}

    def count(self) -> int:
        """Return how many (cell, example) pairs are recorded by now, in `runs` or in shards."""
        found: dict[str, frozenset[str]] = {}
        for root in roots(self.results):
            for name, folder in (cell_folders(root) if root.is_dir() else {}).items():
                if name in self.wanted:
                    found[name] = found.get(name, frozenset()) | self._recorded(root, name, folder)
        return sum(len(found[name] & self.wanted[name]) for name in found)

    def _recorded(self, root: Path, name: str, folder: Path) -> frozenset[str]:
        stamp = tuple(_stamp(folder / file) for file in (JOURNAL, SUMMARY))
        before, known = self.seen.get(folder, ((), frozenset()))
        if stamp != before:
            # A damaged file, or one that is being moved, is the matter of whoever opens the cell.
            with contextlib.suppress(CorruptRecord, DuplicateRow, OSError):
                known = recorded_ids(root, name)
            self.seen[folder] = (stamp, known)
        return known


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size
