"""What two sets of records say differently, timings left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inertia.records.facts import Facts
from inertia.records.read import Cell, read_cell, read_published
from inertia.records.settle import TRANSPORT_COLUMNS

_Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class CellDiff:
    """How one cell differs.

    Attributes:
        id: cell id.
        label: its label.
        reasons: how plan, identity or seal differ, in words; often empty.
        rows: how its rows differ, None when they agree.
    """

    id: str
    label: str
    reasons: tuple[str, ...]
    rows: RowDiff | None


@dataclass(frozen=True)
class RowDiff:
    """How the rows of two cells differ.

    Attributes:
        only_a: examples that only the first has.
        only_b: examples that only the second has.
        changed: examples that both have with different columns.
        first: the first changed example, None when none changed.
        columns: column -> its two values there.
    """

    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    changed: tuple[str, ...]
    first: str | None
    columns: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Difference:
    """How two sets of cells differ; `cells` come one by one, since only those whose hashes differ are read."""

    only_a: tuple[Facts, ...]
    only_b: tuple[Facts, ...]
    both: tuple[tuple[Facts, Facts], ...]

    def cells(self) -> Iterator[CellDiff | None]:
        """Yield, for each cell that both have, how it differs, or None where it does not."""
        read = _reader()
        for a, b in self.both:
            yield _cell(a, b, read)


def diff(a: Iterable[Facts], b: Iterable[Facts]) -> Difference:
    """Compare cells by id."""
    left, right = {cell.id: cell for cell in a}, {cell.id: cell for cell in b}
    return Difference(
        tuple(left[name] for name in sorted(left.keys() - right.keys())),
        tuple(right[name] for name in sorted(right.keys() - left.keys())),
        tuple((left[name], right[name]) for name in sorted(left.keys() & right.keys())),
    )


def diff_rows(a: _Rows, b: _Rows, ignored: Iterable[str] = TRANSPORT_COLUMNS) -> RowDiff | None:
    """Compare rows by example; None when they agree in every column that is not ignored."""
    left, right = {row["example_id"]: row for row in a}, {row["example_id"]: row for row in b}
    hidden = set(ignored)

    def columns(name: str) -> dict[str, tuple[Any, Any]]:
        ours, theirs = left[name], right[name]
        return {key: (value, theirs[key]) for key, value in ours.items() if key not in hidden and value != theirs[key]}

    changed = tuple(name for name in left if name in right and columns(name))
    only_a = tuple(name for name in left if name not in right)
    only_b = tuple(name for name in right if name not in left)
    if not (changed or only_a or only_b):
        return None
    first = changed[0] if changed else None
    return RowDiff(only_a, only_b, changed, first, columns(first) if first is not None else {})


def _cell(a: Facts, b: Facts, read: Callable[[Facts], Cell]) -> CellDiff | None:
    reasons = tuple(_reasons(a, b))
    if a.summary is not None and b.summary is not None and a.summary["rows_sha256"] == b.summary["rows_sha256"]:
        rows = None
    else:
        rows = diff_rows(read(a).rows, read(b).rows)
    return CellDiff(a.id, a.label, reasons, rows) if reasons or rows is not None else None


def _reasons(a: Facts, b: Facts) -> Iterator[str]:
    if a.manifest["identity_sha256"] != b.manifest["identity_sha256"]:
        yield "the identities differ"
    if a.progress != b.progress:
        yield f"{a.progress} against {b.progress}"
    elif sorted(a.manifest["planned"]) != sorted(b.manifest["planned"]):
        yield "other examples are planned"


def _reader() -> Callable[[Facts], Cell]:
    """Return a function that reads a cell in full; of published files it keeps the last few, not all."""
    kept: dict[Path, dict[str, Cell]] = {}

    def read(facts: Facts) -> Cell:
        if facts.source.is_dir():
            return read_cell(facts.source)
        if facts.source not in kept:
            if len(kept) >= 4:
                kept.pop(next(iter(kept)))
            kept[facts.source] = {cell.id: cell for cell in read_published(facts.source)}
        return kept[facts.source][facts.id]

    return read
