"""From records to the tidy frame: one row per estimate, ours and the printed ones beside them.

Columns: source ("ours" or "paper"), scale, backbone, benchmark, task ("mean" over several), length, method, the further
settings that make a row or column, quantity, value, low, high (95%), test, p, p_holm, n, planned, status ("ok",
"incomplete 17/20", "not run", "as printed", "from printed values"), note, commit, recorded, cells (ids and blanks).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from inertia.reports.declaration import FULL_CACHE, SCORE, Comparison, Quantity, Table
from inertia.reports.informative import why_uninformative
from inertia.reports.layout import MEAN, Key, Spot, agrees, holds, ordered, pick, spots
from inertia.reports.reference import printed
from inertia.reports.source import Cell, Source
from inertia.statistics import holm, interval, macro_mean, paired_difference, sign_flip

Row = dict[str, Any]

# One type per column, whatever is missing: a column of nothing but blanks must not change it.
TYPES = {
    "source": "string",
    "scale": "string",
    "backbone": "string",
    "benchmark": "string",
    "task": "string",
    "length": "Int64",
    "method": "string",
    "quantity": "string",
    "value": "Float64",
    "low": "Float64",
    "high": "Float64",
    "test": "string",
    "p": "Float64",
    "p_holm": "Float64",
    "n": "Int64",
    "planned": "Int64",
    "status": "string",
    "note": "string",
    "commit": "string",
    "recorded": "string",
    "cells": "string",
}
SETTINGS = {"alpha": "Float64", "compression_ratio": "Float64", "question_visible": "boolean"}


def estimates(source: Source, table: Table) -> list[Row]:
    """Return the rows of the tidy frame: ours by quantity, row and column, then differences, then the paper's.

    Beside the frame's columns ours hold `tasks`, what a mean is over, and differences `minus`, the row subtracted.

    Raises:
        ValueError: two cells claim one place, a record lacks a quantity, or policies are not comparable (`Table.same`).
    """
    paper = printed(table)
    found = spots(source, table, paper)
    if table.same is not None:
        check_same([cell for spot in found for cell in spot.cells if cell is not None], table.same)
    notes = uninformative(found) if SCORE in table.quantities else {}
    rows = []
    for quantity in table.quantities:
        for spot in found:
            if not quantity.only_mean or spot.settings["task"] == MEAN:
                note = notes.get((spot.context, spot.column), {}) if quantity is SCORE else {}
                rows.append(named(spot, quantity) | estimate(quantity, spot.cells, source) | note)
    for comparison in table.comparisons:
        rows += differences(found, comparison, table, notes)
    about = {"source": "ours", "scale": source.scale, "commit": source.commit, "recorded": source.recorded}
    names = (*table.reference_columns, *table.rows)
    order = {key: number for number, key in enumerate(ordered({pick(row, names) for row in paper}, names, table))}
    paper.sort(key=lambda row: order[pick(row, names)])
    return [*(about | row for row in rows), *paper, *printed_differences(rows, paper, table)]


def named(spot: Spot, what: Quantity | Comparison) -> Row:
    """Return what says where a number stands."""
    return spot.settings | {"tasks": spot.tasks, "quantity": what.name}


def frame_of(rows: Sequence[Row], table: Table) -> pd.DataFrame:
    """Return rows of the tidy frame as one, with fixed types; the settings stand before `quantity`."""
    extra = [name for name in dict.fromkeys((*table.rows, *table.columns)) if name not in TYPES]
    names = list(TYPES)
    names[names.index("quantity") : names.index("quantity")] = extra
    return pd.DataFrame(rows, columns=names).astype(TYPES | {name: SETTINGS.get(name, "string") for name in extra})


def values(quantity: Quantity, cell: Cell, source: Source | None = None) -> dict[str, float | None]:
    """Return example id -> a quantity's value as recorded, None where the example has none.

    Raises:
        ValueError: an example was recorded without it; the message says how to get it.
    """
    found = {sample["example_id"]: recorded(sample, quantity.path) for sample in cell.samples}
    lacking = [name for name, (there, _) in found.items() if not there]
    if lacking:
        hint = quantity.hint.format(experiment=source.experiment if source else "NAME")
        raise ValueError(
            f"{len(lacking)} examples of cell {cell.id} hold no {quantity.path}, such as {lacking[0]}; {hint}"
        )
    return {name: value for name, (_, value) in found.items()}


def recorded(sample: Mapping[str, Any], path: str) -> tuple[bool, Any]:
    """Return whether a record has a field, and its value; a dotted path goes into the JSON text of a column."""
    column, *names = path.split(".")
    value: Any = sample.get(column)
    if names:
        value = json.loads(value) if isinstance(value, str) else value
    for name in names:
        if not isinstance(value, Mapping) or name not in value:
            return False, None
        value = value[name]
    return column in sample, value


def check_same(cells: Sequence[Cell], path: str) -> None:
    """Refuse cells that differ in a field where all policies must agree: their numbers are not paired."""
    leaders: dict[str, tuple[Any, str]] = {}
    for cell in cells:
        for sample in cell.samples:
            name, value = sample["example_id"], recorded(sample, path)[1]
            leader, leader_id = leaders.setdefault(f"{cell.settings['backbone']}/{name}", (value, cell.id))
            if leader != value:
                raise ValueError(
                    f"cells {leader_id} and {cell.id} followed different answers of the full cache to {name}, as runs "
                    "on different machines may; run both again on one machine"
                )


def status_of(cells: Sequence[Cell | None]) -> Row:
    """Return the denominator of a number: n, planned, status and the cells it is made of."""
    present = [cell for cell in cells if cell is not None]
    ids = " ".join(dict.fromkeys(cell.id for cell in present))
    if not present or len(present) < len(cells):
        return {"n": 0, "planned": 0, "status": "not run", "cells": ids}
    done, planned = sum(len(cell.samples) for cell in present), sum(cell.planned for cell in present)
    status = "ok" if all(cell.complete for cell in present) else f"incomplete {done}/{planned}"
    return {"n": done, "planned": planned, "status": status, "cells": ids}


def estimate(quantity: Quantity, cells: Sequence[Cell | None], source: Source) -> Row:
    """Return the mean of the cells' means over examples, with its interval, and what the row says of its making.

    Complete cells only; without an interval where the quantity has none, or where values that are no shares are all
    alike and so show no spread.
    """
    said = status_of(cells)
    if said["status"] != "ok":
        return said
    read = [values(quantity, cell, source) for cell in cells if cell is not None]
    groups = [[float(value) for value in found.values() if value is not None] for found in read]
    counted = sum(map(len, groups))
    if counted < said["n"]:
        said |= {"n": counted, "note": f"{said['n'] - counted} of {said['n']} {quantity.absent}"}
    if not all(groups):
        return said
    said["value"] = scaled(sum(sum(group) / len(group) for group in groups) / len(groups), quantity)
    exact = quantity.relative and all(cell.settings["method"] == FULL_CACHE for cell in cells if cell is not None)
    if quantity.sign_flip and not exact:
        # A task counts once whatever its n, in the test as in the mean.
        said["p"], said["test"] = sign_flip([value / len(group) for group in groups for value in group])
    if quantity.interval and not exact and (quantity.share or all(len(set(group)) > 1 for group in groups)):
        found = interval(groups[0]) if len(groups) == 1 else macro_mean({str(i): g for i, g in enumerate(groups)})
        said |= {"value": scaled(found.mean, quantity), "low": scaled(found.low, quantity)}
        said["high"] = scaled(found.high, quantity)
    return said


def scaled(value: float | None, quantity: Quantity = SCORE) -> float | None:
    """Return a value in the tidy frame's unit; points are rounded to what rounding noise leaves alone."""
    if value is None or value != value:
        return None
    return value if quantity.scale == 1.0 else round(quantity.scale * value, 6)


def differences(
    found: Sequence[Spot], comparison: Comparison, table: Table, notes: Mapping[tuple[Key, Key], Row]
) -> list[Row]:
    """Return the paired score differences of a comparison, with p corrected within each family."""
    minus = {(s.context, s.column): s for s in reversed(found) if holds(row_of(s.row, table), comparison.minus)}
    rows = []
    for spot in found:
        other = minus.get((spot.context, spot.column))
        said = row_of(spot.row, table)
        if other is not None and holds(said, comparison.of) and not holds(said, comparison.minus):
            pair = difference(spot.cells, other.cells) | notes.get((spot.context, spot.column), {})
            rows.append(named(spot, comparison) | pair | {"minus": other.row})
    for of_means in (False, True):
        family = {str(i): r["p"] for i, r in enumerate(rows) if "p" in r and (r["task"] == MEAN) is of_means}
        for number, p in holm(family).items() if len(family) > 1 else ():
            rows[int(number)]["p_holm"] = p
    return rows


def row_of(row: Key, table: Table) -> Row:
    """Return the settings of a row."""
    return dict(zip(table.rows, row, strict=True))


def difference(first: Sequence[Cell | None], second: Sequence[Cell | None]) -> Row:
    """Return the mean of first minus second over tasks, paired by example."""
    said = status_of([*first, *second])
    if said["status"] != "ok":
        return said
    a, b = (
        {f"{i}/{name}": value for i, cell in enumerate(cells) for name, value in values(SCORE, cell).items()}
        for cells in (first, second)
    )
    strata = {name: name.partition("/")[0] for name in a}
    found = paired_difference(a, b, strata=strata if len(first) > 1 else None)
    if found is None:
        return said
    ends = {"value": scaled(found.difference), "low": scaled(found.low), "high": scaled(found.high)}
    # Pairs, where `status_of` counts the examples of both sides.
    return said | ends | {"n": found.n, "planned": found.n, "p": found.p, "test": found.test}


def printed_differences(rows: Sequence[Row], paper: Sequence[Row], table: Table) -> list[Row]:
    """Return the differences of printed numbers, without interval or test, where both were printed."""
    found = []
    for comparison in table.comparisons:
        ours = (row for row in rows if row["quantity"] == comparison.name)
        for row, minus in dict.fromkeys((pick(row, table.rows), row["minus"]) for row in ours):
            first, second = (
                {pick(entry, table.reference_columns): entry for entry in paper if agrees(entry, table.rows, key)}
                for key in (row, minus)
            )
            for a, b in ((first[column], second[column]) for column in first if column in second):
                name = comparison.name if a["quantity"] == SCORE.name else f"{a['quantity']}_{comparison.name}"
                about = {"comparison": comparison.name, "quantity": name, "status": "from printed values"}
                found.append(a | about | {"value": round(a["value"] - b["value"], 6)})
    return found


def uninformative(found: Sequence[Spot]) -> dict[tuple[Key, Key], Row]:
    """Return a note for each column of a single task that tells no policies apart, by context and column."""
    places: dict[tuple[Key, Key], list[Cell]] = {}
    for spot in (spot for spot in found if spot.settings["task"] != MEAN):
        places.setdefault((spot.context, spot.column), []).extend(cell for cell in spot.cells if cell is not None)
    notes = {}
    for place, cells in places.items():
        full = next((cell for cell in cells if cell.settings["method"] == FULL_CACHE), None)
        if reason := why_uninformative(full, [cell for cell in cells if cell.settings["method"] != FULL_CACHE]):
            notes[place] = {"note": reason}
    return notes
