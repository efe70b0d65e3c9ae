"""What stands where: the rows and columns of a table in order, and the cells behind each of its numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

from inertia.reports.declaration import Settings, Table
from inertia.reports.source import Cell, Source

MEAN = "mean"
"""What stands for the task in the mean over several."""

Key = tuple[Any, ...]

_STRATUM = ("backbone", "benchmark", "task", "length")  # what tells examples apart rather than policies


class Spot(NamedTuple):
    """Where a number stands: its row and column, all its settings, and the cells it is made of, None if not run."""

    row: Key
    column: Key
    settings: dict[str, Any]
    cells: list[Cell | None]
    tasks: list[str]

    @property
    def context(self) -> Key:
        """Return what policies must share to be compared."""
        return pick(self.settings, ("backbone", "benchmark"))


def spots(source: Source, table: Table, printed: Iterable[Settings]) -> list[Spot]:
    """Return the spots of a table, row by row.

    Rows are those of our cells, and of printed entries that agree with none of these. A mean is over the same tasks in
    every row; a row that lacks one has none, for it would be a mean over other tasks.

    Raises:
        ValueError: two cells claim the same place, as when a further setting was swept along.
    """
    every = {cell.id: cell for cell in source.cells}.values()
    cells = [c for c in every if all(c.settings.get(name) in values for name, values in table.where.items())]
    strata = {pick(cell.settings, _STRATUM) for cell in cells}
    methods = {pick(cell.settings, table.rows): cell.settings["method"] for cell in cells}
    free = [name for name in table.columns if name not in _STRATUM]
    options = {name: sorted({cell.settings.get(name) for cell in cells} - {None}, key=str) for name in free}
    places: dict[tuple[Key, Key, Key], Cell] = {}
    columns = set()
    for cell in cells:
        row, stratum = pick(cell.settings, table.rows), pick(cell.settings, _STRATUM)
        own = {name: [cell.settings.get(name)] for name in table.columns}
        # A setting that a policy does not have makes no difference to it: it stands under every value.
        spread = {name: options[name] for name in free if own[name] == [None] and options[name]}
        for column in product(*(own | spread).values()):
            said = dict(zip(table.columns, column, strict=True))
            twin = places.setdefault((row, pick(said, free), stratum), cell)
            if twin is not cell:
                raise ValueError(
                    f"cells {twin.id} and {cell.id} share {', '.join((*table.rows, *table.columns))}; report them "
                    "apart, by a further setting in the rows or columns"
                )
            pooled = said | {"task": MEAN, "length": None} if "task" in said else said
            columns |= {column, pick(pooled, table.columns)}
    rows = {pick(cell.settings, table.rows) for cell in cells}
    rows |= {pick(entry, table.rows) for entry in printed if not any(agrees(entry, table.rows, row) for row in rows)}
    found = []
    for row in ordered(rows, table.rows, table):
        for column in ordered(columns, table.columns, table):
            said = dict(zip(table.rows, row, strict=True)) | dict(zip(table.columns, column, strict=True))
            pools = said.get("task", MEAN) == MEAN
            fixed = {n: v for n, v in said.items() if not (pools and "task" in said and n in ("task", "length"))}
            mine = [s for s in strata if all(fixed.get(n, v) == v for n, v in zip(_STRATUM, s, strict=True))]
            if pools and table.mean_of_official:
                mine = [s for s in mine if not table.own(s[2])] or mine
            mine = ordered(mine, _STRATUM, table)
            benchmarks = {stratum[1] for stratum in mine}
            named = {"backbone": source.backbone, "task": MEAN, "method": methods.get(row)}
            named["benchmark"] = benchmarks.pop() if len(benchmarks) == 1 else None
            behind = [places.get((row, pick(said, free), stratum)) for stratum in mine]
            found.append(Spot(row, column, named | said, behind, list(dict.fromkeys(stratum[2] for stratum in mine))))
    return found


def pick(settings: Settings, names: Sequence[str]) -> Key:
    """Return the values of some settings, None for those that are not there."""
    return tuple(settings.get(name) for name in names)


def holds(settings: Settings, wanted: Settings) -> bool:
    """Tell whether settings have all the wanted values."""
    return all(settings.get(name) == value for name, value in wanted.items())


def agrees(entry: Settings, names: Sequence[str], key: Key) -> bool:
    """Tell whether a printed entry agrees with a key in everything that is said of it."""
    return all(entry.get(name) in (None, value) for name, value in zip(names, key, strict=True))


def ordered(keys: Iterable[Key], names: Sequence[str], table: Table) -> list[Key]:
    """Return keys in order: by the table's order of their values, others after these, the mean last."""
    return sorted(keys, key=lambda key: tuple(rank(v, table.order.get(n, ())) for n, v in zip(names, key, strict=True)))


def rank(value: Any, known: Sequence[Any]) -> tuple:
    """Return a key that sorts values: known ones in their order, then None, numbers and text, then the mean."""
    word = value.split(" ")[0] if isinstance(value, str) else value
    return (known.index(word) if word in known else len(known) + (value == MEAN)), natural(value)


def natural(value: Any) -> tuple:
    """Return a key under which numbers within text count by size."""
    if value is None:
        return ()
    if not isinstance(value, str):
        return ((0, float(value), ""),)
    parts = [part for part in re.split(r"(\d+\.?\d*)", value) if part]
    return tuple((0, float(part), "") if part[0].isdigit() else (1, 0.0, part) for part in parts)
