"""From records to the tidy frame: one row per estimate, ours and the printed ones beside them.

Columns: source ("ours" or "paper"), scale, backbone, benchmark, task ("mean" over several), length, method, the further
settings that make a row or column, quantity, value, low, high (95%), test, p, p_holm, n, planned, status ("ok",
"incomplete 17/20", "not run", "as printed", "from printed values"), note, commit, recorded, cells (ids and blanks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from inertia.reports.declaration import SCORE, Comparison, Quantity, Table
from inertia.reports.estimates import Row, check_same, difference, estimate
from inertia.reports.informative import uninformative
from inertia.reports.layout import MEAN, Key, Spot, agrees, holds, ordered, pick, spots
from inertia.reports.reference import printed
from inertia.reports.source import Source
from inertia.statistics import holm

# One type per column, whatever is missing: a column of nothing but blanks must not change it.
TYPES = {
    **dict.fromkeys(("source", "scale", "backbone", "benchmark", "task"), "string"),
    "length": "Int64",
    **dict.fromkeys(("method", "quantity"), "string"),
    **dict.fromkeys(("value", "low", "high"), "Float64"),
    "test": "string",
    **dict.fromkeys(("p", "p_holm"), "Float64"),
    **dict.fromkeys(("n", "planned"), "Int64"),
    **dict.fromkeys(("status", "note", "commit", "recorded", "cells"), "string"),
}
SETTINGS = {"alpha": "Float64", "compression_ratio": "Float64", "question_visible": "boolean"}


def tidy_rows(source: Source, table: Table) -> list[Row]:
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
                rows.append(named(spot, quantity) | estimate(quantity, spot.cells) | note)
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
