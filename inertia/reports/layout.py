"""What stands where: the rows and columns of a table, and the cells behind each of its numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from inertia.reports.declaration import Comparison, Settings, Table
from inertia.reports.reference import printed
from inertia.reports.source import Cell, Source

MEAN = "mean"
"""What stands for the task in the mean over several."""

Key = tuple[Any, ...]

_STRATUM = ("benchmark", "task", "length")
_CONTEXT = ("backbone", "benchmark")


class Layout:
    """The rows and columns of a table over an experiment's cells, in order.

    Attributes:
        cells: those that take part, each once.
        rows: the values of `Table.rows` of each row: of our cells, and of printed rows that none of ours matches.
        columns: the values of `Table.columns` of each column; that of the mean has the task "mean".
    """

    def __init__(self, source: Source, table: Table) -> None:
        """Lay out a table.

        Raises:
            ValueError: two cells claim the same place, as when a further setting was swept along.
        """
        self.source, self.table = source, table
        chosen = {cell.id: cell for cell in source.cells if allowed(cell.settings, table.where)}
        self.cells = tuple(chosen.values())
        self.strata = {(cell.settings["backbone"], *pick(cell.settings, _STRATUM)) for cell in self.cells}
        self.methods = {pick(cell.settings, table.rows): cell.settings["method"] for cell in self.cells}
        free = [name for name in table.columns if name not in (*_STRATUM, "backbone")]
        options = {name: {cell.settings.get(name) for cell in self.cells} - {None} for name in free}
        self.places: dict[tuple[Key, Key, Key], Cell] = {}
        columns = set()
        for cell in self.cells:
            row, stratum = pick(cell.settings, table.rows), pick(cell.settings, _STRATUM)
            own = {name: [cell.settings.get(name)] for name in table.columns}
            # A setting that a policy does not have makes no difference to it.
            spread = {n: sorted(options[n], key=str) for n in free if own[n] == [None] and options[n]}
            for column in product(*(own | spread).values()):
                twin = self.places.setdefault((row, self.apart(column), stratum), cell)
                if twin is not cell:
                    raise ValueError(
                        f"cells {twin.id} and {cell.id} share {', '.join((*table.rows, *table.columns))}; report them "
                        "apart, by a further setting in the rows or columns"
                    )
                columns |= {column, self.pooled(column)}
        rows = {pick(cell.settings, table.rows) for cell in self.cells}
        rows |= {pick(p, table.rows) for p in printed(table) if not any(matching(p, table.rows, row) for row in rows)}
        self.rows = sorted(rows, key=lambda row: self.order(table.rows, row))
        self.columns = sorted(columns, key=lambda column: self.order(table.columns, column))

    def order(self, names: Sequence[str], key: Key) -> tuple:
        """Return a key to sort by: declared values first, then others by size or alphabet, the mean last."""
        return tuple(rank(value, self.table.order.get(name, ())) for name, value in zip(names, key, strict=True))

    def apart(self, column: Key) -> Key:
        """Return a column's values without those that tell examples apart rather than policies."""
        return tuple(v for name, v in zip(self.table.columns, column, strict=True) if name not in _STRATUM)

    def pooled(self, column: Key) -> Key:
        """Return the column of the mean that a column belongs to: itself where tasks have no columns."""
        if "task" not in self.table.columns:
            return column
        mean = {"task": MEAN, "length": None}
        return tuple(mean.get(name, v) for name, v in zip(self.table.columns, column, strict=True))

    def pools(self, column: Key) -> bool:
        """Tell whether a column holds means over tasks."""
        return column == self.pooled(column)

    def averaged(self, row: Key, column: Key) -> list[Key]:
        """Return the (benchmark, task, length) that a number is the mean of, in order.

        A row that lacks one of them has no mean: it would be one over other tasks.
        """
        fixed = {**dict(zip(self.table.rows, row, strict=True)), **dict(zip(self.table.columns, column, strict=True))}
        if self.pools(column) and "task" in self.table.columns:
            fixed = {name: value for name, value in fixed.items() if name not in ("task", "length")}
        names = ("backbone", *_STRATUM)
        found = {s[1:] for s in self.strata if all(fixed.get(n, v) == v for n, v in zip(names, s, strict=True))}
        if self.pools(column) and self.table.mean_of_official:
            found = {stratum for stratum in found if not self.table.own(stratum[1])} or found
        return sorted(found, key=lambda stratum: self.order(_STRATUM, stratum))

    def averaged_tasks(self, column: Key) -> list[str]:
        """Return the tasks in a column, each once, however many lengths they were run at."""
        return list(dict.fromkeys(stratum[1] for row in self.rows for stratum in self.averaged(row, column)))

    def at(self, row: Key, column: Key) -> list[Cell | None]:
        """Return the cells that a number is made of, None for one that was not run."""
        return [self.places.get((row, self.apart(column), stratum)) for stratum in self.averaged(row, column)]

    def printed_column(self, entry: Settings) -> Key:
        """Return the column that a printed number stands in."""
        return pick(entry, self.table.reference_columns)

    def printed_rank(self, column: Key) -> tuple:
        """Return a key to sort columns of printed numbers by."""
        return self.order(self.table.reference_columns, column)

    def context(self, row: Key) -> Key:
        """Return the values of a row that change the examples or the model: policies are compared within them."""
        return tuple(v for name, v in zip(self.table.rows, row, strict=True) if name in _CONTEXT)

    def place(self, row: Key, column: Key) -> dict[str, Any]:
        """Return the settings of a number as the tidy frame has them."""
        benchmarks = {stratum[0] for stratum in self.averaged(row, column)}
        named = {
            "backbone": self.source.backbone,
            "benchmark": next(iter(benchmarks)) if len(benchmarks) == 1 else None,
            "task": MEAN,
            "method": self.methods.get(row),
        }
        rows, columns = (zip(n, k, strict=True) for n, k in ((self.table.rows, row), (self.table.columns, column)))
        return named | dict(rows) | dict(columns)

    def pairs(self, comparison: Comparison) -> list[tuple[Key, Key]]:
        """Return the rows that a comparison takes, each with the one to subtract; those without one are left out."""
        named = [dict(zip(self.table.rows, row, strict=True)) for row in self.rows]
        minus, of = (
            [row for row, said in zip(self.rows, named, strict=True) if allowed(said, one_of(wanted))]
            for wanted in (comparison.minus, comparison.of)
        )
        partners = {self.context(row): row for row in reversed(minus)}
        return [(row, partners[self.context(row)]) for row in of if row not in minus and self.context(row) in partners]


def pick(settings: Settings, names: Sequence[str]) -> Key:
    """Return the values of some settings, None for those that are not there."""
    return tuple(settings.get(name) for name in names)


def allowed(settings: Settings, where: Mapping[str, Sequence[Any]]) -> bool:
    """Tell whether every named setting has one of its values."""
    return all(settings.get(name) in values for name, values in where.items())


def one_of(settings: Settings) -> dict[str, tuple[Any]]:
    """Return settings as `allowed` takes them."""
    return {name: (value,) for name, value in settings.items()}


def matching(entry: Settings, names: Sequence[str], key: Key) -> bool:
    """Tell whether a printed entry agrees with a key in everything that it says."""
    said = [(entry.get(name), value) for name, value in zip(names, key, strict=True)]
    return all(theirs is None or theirs == ours for theirs, ours in said)


def rank(value: Any, known: Sequence[Any]) -> tuple:
    """Return a key that sorts values: known ones in their order, None first, then numbers, text and the mean."""
    word = value.split(" ")[0] if isinstance(value, str) else value
    if word in known:
        return known.index(word), natural(value)
    return (len(known) + (value == MEAN), natural(value))


def natural(value: Any) -> tuple:
    """Return a key under which numbers within text count by size."""
    if value is None:
        return ()
    if not isinstance(value, str):
        return ((0, float(value), ""),)
    parts = [part for part in re.split(r"(\d+\.?\d*)", value) if part]
    return tuple((0, float(part), "") if part[0].isdigit() else (1, 0.0, part) for part in parts)
