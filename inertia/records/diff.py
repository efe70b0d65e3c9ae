"""What two sets of records say differently, timings left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from inertia.records.attempts import TRANSPORT_COLUMNS
from inertia.records.read import Cell, refuse, survey
from inertia.records.rows import read_cells

_AT_ONCE = 64


class RowDiff(NamedTuple):
    """How the rows of two cells differ.

    Attributes:
        only_a: examples that only the first has.
        only_b: examples that only the second has.
        changed: examples that both have with different columns.
        columns: column -> its two values in the first changed example.
    """

    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    changed: tuple[str, ...]
    columns: Mapping[str, tuple[Any, Any]]

    def lines(self) -> list[str]:
        """Return it in words."""
        found = [
            f"{len(ids)} examples only in the {side}, such as {ids[0]}"
            for side, ids in (("first", self.only_a), ("second", self.only_b))
            if ids
        ]
        if self.changed:
            shown = ", ".join(f"{name} {_short(a)} -> {_short(b)}" for name, (a, b) in self.columns.items())
            found.append(f"{len(self.changed)} examples changed, first {self.changed[0]}: {shown}")
        return found


class Difference(NamedTuple):
    """How two sets of cells differ, by their ids.

    Attributes:
        only_a: cells that only the first has.
        only_b: cells that only the second has.
        changed: label -> how a cell that both have differs, in words.
        equal: how many cells do not differ.
    """

    only_a: list[Cell]
    only_b: list[Cell]
    changed: dict[str, list[str]]
    equal: int


def diff(a: Path, b: Path) -> Difference:
    """Compare cells by id; only those whose seals differ are read in full.

    Raises:
        FileNotFoundError, OldRecords, CorruptRecord: as `read_cells`.
    """
    sides = []
    for source in (a, b):
        cells, damages = survey(source)
        refuse(damages, cells)
        sides.append({cell.id: cell for cell in cells})
    left, right = sides
    both = sorted(left.keys() & right.keys())
    changed = {name: list(_reasons(left[name], right[name])) for name in both}
    unequal = [name for name in both if not _same_seal(left[name], right[name])]
    for names in (unequal[start : start + _AT_ONCE] for start in range(0, len(unequal), _AT_ONCE)):
        for one, other in zip(read_cells(a, names), read_cells(b, names), strict=True):
            found = diff_rows(one.rows, other.rows)
            changed[one.id] += [] if found is None else found.lines()
    return Difference(
        [left[name] for name in sorted(left.keys() - right.keys())],
        [right[name] for name in sorted(right.keys() - left.keys())],
        {f"{name} {left[name].label}": reasons for name, reasons in changed.items() if reasons},
        sum(not reasons for reasons in changed.values()),
    )


def diff_rows(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]], ignored: Iterable[str] = TRANSPORT_COLUMNS
) -> RowDiff | None:
    """Compare rows by example; None when they agree in every column that is not ignored."""
    left, right = {row["example_id"]: row for row in a}, {row["example_id"]: row for row in b}
    hidden = set(ignored)
    columns = {
        name: {
            key: (value, right[name][key])
            for key, value in row.items()
            if key not in hidden and value != right[name][key]
        }
        for name, row in left.items()
        if name in right
    }
    changed = tuple(name for name, unequal in columns.items() if unequal)
    only_a = tuple(name for name in left if name not in right)
    only_b = tuple(name for name in right if name not in left)
    found = RowDiff(only_a, only_b, changed, columns[changed[0]] if changed else {})
    return found if changed or only_a or only_b else None


def _same_seal(a: Cell, b: Cell) -> bool:
    return a.summary is not None and b.summary is not None and a.summary["rows_sha256"] == b.summary["rows_sha256"]


def _reasons(a: Cell, b: Cell) -> Iterator[str]:
    if a.manifest["identity_sha256"] != b.manifest["identity_sha256"]:
        yield "the identities differ"
    if a.progress != b.progress:
        yield f"{a.progress} against {b.progress}"
    elif sorted(a.planned) != sorted(b.planned):
        yield "other examples are planned"


def _short(value: Any, length: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= length else text[: length - 3] + "..."
