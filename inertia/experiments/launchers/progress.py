"""How far cells are that other processes write, read from their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from inertia.records.progress import progress
from inertia.records.store import files

if TYPE_CHECKING:
    from inertia.experiments.cells import Cell

Stamp = tuple[int, int]


class Progress:
    """Counts recorded answers; a file that has not changed since the last look is not read again."""

    def __init__(self, root: Path, cells: Sequence[Cell]) -> None:
        self.root = root
        self.wanted: Mapping[str, frozenset[str]] = {cell.id: frozenset(cell.share) for cell in cells}
        self.seen: dict[Path, tuple[Stamp, Mapping[str, frozenset[str]]]] = {}

    def count(self) -> int:
        """Return how many (cell, example) pairs are recorded by now."""
        parts = [self._recorded(path) for path in files(self.root)]
        found = {name: frozenset().union(*(part.get(name, frozenset()) for part in parts)) for name in self.wanted}
        return sum(len(found[name] & self.wanted[name]) for name in found)

    def _recorded(self, path: Path) -> Mapping[str, frozenset[str]]:
        status = path.stat()
        stamp = (status.st_mtime_ns, status.st_size)
        if path not in self.seen or self.seen[path][0] != stamp:
            # A damaged file is the matter of whoever opens its cells.
            known, _ = progress([path], self.wanted, check=False)
            self.seen[path] = (stamp, {name: each.good for name, each in known.items()})
        return self.seen[path][1]
