"""One number and its making: what records hold, means with intervals, paired differences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from inertia.reports.declaration import FULL_CACHE, SCORE, Quantity
from inertia.reports.source import Cell
from inertia.statistics import interval, macro_mean, paired_difference, sign_flip

Row = dict[str, Any]


def values(quantity: Quantity, cell: Cell) -> dict[str, float | None]:
    """Return example id -> a quantity's value as recorded, None where the example has none.

    Raises:
        ValueError: an example was recorded without it; the message says how to get it.
    """
    found = {sample["example_id"]: recorded(sample, quantity.path) for sample in cell.samples}
    lacking = [name for name, (there, _) in found.items() if not there]
    if lacking:
        raise ValueError(
            f"{len(lacking)} examples of cell {cell.id} hold no {quantity.path}, such as {lacking[0]}; {quantity.hint}"
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


def estimate(quantity: Quantity, cells: Sequence[Cell | None]) -> Row:
    """Return the mean of the cells' means over examples, with its interval, and what the row says of its making.

    Complete cells only; without an interval where the quantity has none, or where values that are no shares are all
    alike and so show no spread.
    """
    said = status_of(cells)
    if said["status"] != "ok":
        return said
    read = [values(quantity, cell) for cell in cells if cell is not None]
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
        by_task = {str(number): group for number, group in enumerate(groups)}
        one = len(groups) == 1
        found = interval(groups[0], bounded=quantity.share) if one else macro_mean(by_task, bounded=quantity.share)
        ends = {"value": found.mean, "low": found.low, "high": found.high}
        said |= {name: scaled(end, quantity) for name, end in ends.items()}
    return said


def scaled(value: float | None, quantity: Quantity = SCORE) -> float | None:
    """Return a value in the tidy frame's unit; points are rounded to what rounding noise leaves alone."""
    if value is None or value != value:
        return None
    return value if quantity.scale == 1.0 else round(quantity.scale * value, 6)


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
