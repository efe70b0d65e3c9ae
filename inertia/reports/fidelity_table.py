"""How far each policy is from the full cache, token by token: a row per policy, three numbers per task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from inertia.reports.estimates import Estimate
from inertia.reports.grid import Column, Grid, Row
from inertia.reports.index import Cell
from inertia.reports.score_table import FULL, row_labels
from inertia.reports.scores import cell_scores
from inertia.reports.source import Source
from inertia.reports.table import Table
from inertia.statistics import interval, macro_mean, sign_flip

if TYPE_CHECKING:
    from pandas import DataFrame

Slot = tuple[str, int | None]
"""A task at a length."""


class Quantity(NamedTuple):
    """One printed number: its name in the records, its heading, and how people read it.

    ``share`` says that it lies in [0, 1], so that examples which are all alike still have an interval.
    """

    metric: str
    heading: str
    shown: Callable[[float], str]
    share: bool = False


QUANTITIES = (
    Quantity("fidelity_kl", "KL", lambda value: f"{value:.3g}"),
    Quantity("fidelity_agreement", "top-1 %", lambda value: f"{100 * value:.1f}", share=True),
    Quantity("reference_nll_rise", "NLL rise", lambda value: f"{value:+.3g}"),
)

# One type per column, whatever is missing: a column of nothing but blanks must not change it.
COLUMNS = {
    "policy": "string",
    "task": "string",
    "length": "Int64",
    "quantity": "string",
    "value": "Float64",
    "low": "Float64",
    "high": "Float64",
    "p": "Float64",
    "n": "Int64",
    "too_short": "Int64",
    "planned": "Int64",
    "status": "string",
    "scale": "string",
    "backbone": "string",
    "commit": "string",
    "recorded": "string",
    "cells": "string",
}


@dataclass(frozen=True)
class CellFidelity:
    """One cell's finished examples: metric name -> example id -> value, None where the text was too short."""

    cell: Cell
    values: Mapping[str, Mapping[str, float | None]]
    followed: Mapping[str, str]

    @property
    def complete(self) -> bool:
        """True when every planned example is there; a mean over fewer would be a mean over survivors."""
        return len(self.followed) == self.cell.planned

    def present(self, metric: str) -> list[float]:
        """Return the values of a metric where it has one."""
        return [value for value in self.values[metric].values() if value is not None]


def fidelity_table(source: Source) -> Table:
    """Return the fidelity of an experiment's policies: equal records give equal tables.

    Every number compares a policy with the full cache on the same tokens of the same example, so it is paired by
    construction; intervals are over examples. A text too short to compare anything is short under every policy: it is
    left out for all of them, and counted.

    Raises:
        ValueError: the records hold no fidelity, or two policies followed different answers to one example.
    """
    import pandas

    cells = fidelities(source)
    labels = row_labels(cell_scores(source.samples, source.index))
    by_place = {(labels[each.cell.cell_id], (each.cell.task, each.cell.length)): each for each in cells}
    slots = list(dict.fromkeys((each.cell.task, each.cell.length) for each in cells))
    rows = sorted(dict.fromkeys(labels.values()), key=lambda label: not label.startswith(FULL))
    check_paths(by_place, slots)
    columns = [*([None] if len(slots) > 1 else []), *slots]
    frame = [line for label in rows for slot in columns for line in long_rows(label, slot, slots, by_place, source)]
    grid = Grid(
        f"{source.index.experiment}, fidelity to the full cache, {source.index.scale} scale: "
        f"{source.index.backbone_label}",
        "policy",
        tuple(column for slot in columns for column in headings(slot, slots, by_place, rows)),
        tuple(
            Row(
                label,
                tuple(printed(chosen(label, slot, slots, by_place), q) for slot in columns for q in QUANTITIES),
                rule_above=number == 1,
            )
            for number, label in enumerate(rows)
        ),
        tuple(notes(by_place, slots, source)),
    )
    table = pandas.DataFrame(frame, columns=list(COLUMNS)).astype(COLUMNS)
    return Table(f"{source.index.experiment}_fidelity", table, grid)


def fidelities(source: Source) -> list[CellFidelity]:
    """Return the fidelity of every cell of the index, in its order.

    Raises:
        ValueError: an example was recorded without.
    """
    groups = dict(tuple(source.samples.groupby("cell_id", sort=False)))
    empty = source.samples.iloc[:0]
    return [one_cell(groups.get(cell.cell_id, empty), cell, source) for cell in source.index.cells]


def one_cell(rows: DataFrame, cell: Cell, source: Source) -> CellFidelity:
    """Return the fidelity of one cell from its samples."""
    done = rows[(rows["index"] < cell.planned) & (rows["status"] == "ok")].sort_values("index")
    metrics = {name: json.loads(text) for name, text in zip(done["example_id"], done["metrics"], strict=True)}
    lacking = [name for name, found in metrics.items() if any(q.metric not in found for q in QUANTITIES)]
    if lacking:
        raise ValueError(
            f"{len(lacking)} examples of cell {cell.cell_id} hold no fidelity, such as {lacking[0]}; run "
            f"`python -m inertia -m experiment={source.index.experiment} benchmark.metrics=[official,fidelity]` first"
        )
    return CellFidelity(
        cell,
        {q.metric: {name: found[q.metric] for name, found in metrics.items()} for q in QUANTITIES},
        {
            name: json.loads(text)["fidelity"]["followed"]
            for name, text in zip(done["example_id"], done["telemetry"], strict=True)
        },
    )


def check_paths(by_place: Mapping[tuple[str, Slot], CellFidelity], slots: Sequence[Slot]) -> None:
    """Refuse policies that followed different answers: their numbers are not paired.

    Raises:
        ValueError: naming the example and both cells.
    """
    for slot in slots:
        leaders: dict[str, tuple[str, str]] = {}
        for (_, place), found in by_place.items():
            for name, path in found.followed.items() if place == slot else ():
                leader, cell_id = leaders.setdefault(name, (path, found.cell.cell_id))
                if leader != path:
                    raise ValueError(
                        f"cells {cell_id} and {found.cell.cell_id} followed different answers of the full cache to "
                        f"{name}, as runs on different machines may; run both again on one machine"
                    )


def chosen(
    label: str, slot: Slot | None, slots: Sequence[Slot], by_place: Mapping[tuple[str, Slot], CellFidelity]
) -> list[CellFidelity] | None:
    """Return the cells that a column's number is made of, None where one was not run; slot None is all of them."""
    found = [by_place.get((label, place)) for place in (slots if slot is None else [slot])]
    return None if any(each is None for each in found) else found


def estimate(cells: Sequence[CellFidelity], quantity: Quantity) -> Estimate | None:
    """Return the mean of the tasks' means over examples, with its interval; None if a task has none.

    Without an interval (NaN ends) where examples that are all alike show no spread, and with the p value of sign flips
    for a rise.
    """
    groups = [each.present(quantity.metric) for each in cells]
    if not all(groups):
        return None
    nan = float("nan")
    value = sum(sum(values) / len(values) for values in groups) / len(groups)
    # A task counts once whatever its n, in the test as in the mean.
    flips = [x / len(values) for values in groups for x in values]
    p = sign_flip(flips)[0] if quantity.metric == "reference_nll_rise" else None
    # What is no share has no Wilson interval to fall back on.
    if not quantity.share and any(len(set(values)) < 2 for values in groups):
        return Estimate(value, nan, nan, p)
    if len(groups) == 1:
        found = interval(groups[0])
    else:
        found = macro_mean({str(number): values for number, values in enumerate(groups)})
    return Estimate(value, found.low, found.high, p)


def printed(cells: Sequence[CellFidelity] | None, quantity: Quantity) -> tuple[str, ...]:
    """Return the lines of one cell of the grid: value and interval, or how incomplete it is."""
    if cells is None:
        return ()
    if not all(each.complete for each in cells):
        done, planned = sum(len(each.followed) for each in cells), sum(each.cell.planned for each in cells)
        return ("incomplete", f"{done}/{planned}")
    found = estimate(cells, quantity)
    if found is None:
        return ()
    if is_full(cells):
        return (quantity.shown(found.value),)
    if found.low != found.low:
        return quantity.shown(found.value), "[-]"
    return quantity.shown(found.value), f"[{quantity.shown(found.low)}, {quantity.shown(found.high)}]"


def is_full(cells: Sequence[CellFidelity]) -> bool:
    """Tell whether cells are those of the full cache, which is itself by construction."""
    return all(each.cell.axes["method"] == FULL for each in cells)


def headings(
    slot: Slot | None, slots: Sequence[Slot], by_place: Mapping[tuple[str, Slot], CellFidelity], rows: Sequence[str]
) -> Iterator[Column]:
    """Yield the columns of a task, each with the number of examples that count."""
    if slot is None:
        yield from (Column("", q.heading, ("mean", f"tasks={len(slots)}")) for q in QUANTITIES)
        return
    task, length = slot
    cells = [by_place[row, slot] for row in rows if (row, slot) in by_place]
    for q in QUANTITIES:
        counts = sorted({len(each.present(q.metric)) for each in cells if each.complete})
        size = "n=" + ("/".join(map(str, counts)) or "-")
        yield Column(task if length is None else f"{task} @{length}", q.heading, (size,))


def long_rows(
    label: str,
    slot: Slot | None,
    slots: Sequence[Slot],
    by_place: Mapping[tuple[str, Slot], CellFidelity],
    source: Source,
) -> Iterator[dict[str, Any]]:
    """Yield one row per printed number, for programs."""
    places = slots if slot is None else [slot]
    cells = [by_place[label, place] for place in places if (label, place) in by_place]
    whole = len(cells) == len(places) and all(each.complete for each in cells)
    done, planned = sum(len(each.followed) for each in cells), sum(each.cell.planned for each in cells)
    for q in QUANTITIES:
        found = estimate(cells, q) if whole else None
        # The full cache is itself by construction: nothing was estimated there.
        shown = None if found is None or is_full(cells) else found
        counted = sum(len(each.present(q.metric)) for each in cells)
        yield {
            "policy": label,
            "task": "mean" if slot is None else slot[0],
            "length": None if slot is None else slot[1],
            "quantity": q.metric,
            "value": None if found is None else found.value,
            "low": None if shown is None or shown.low != shown.low else shown.low,
            "high": None if shown is None or shown.high != shown.high else shown.high,
            "p": None if shown is None else shown.p,
            "n": counted,
            "too_short": done - counted,
            "planned": planned,
            "status": "not run" if len(cells) < len(places) else "ok" if whole else f"incomplete {done}/{planned}",
            "scale": source.index.scale,
            "backbone": source.index.backbone_label,
            "commit": source.provenance.commit,
            "recorded": source.provenance.recorded,
            "cells": " ".join(each.cell.cell_id for each in cells),
        }


def notes(by_place: Mapping[tuple[str, Slot], CellFidelity], slots: Sequence[Slot], source: Source) -> Iterator[str]:
    """Yield what stands under the table."""
    yield (
        "Along the full cache's own greedy answer, fed token by token under every policy: KL(full cache || policy) of "
        "the next-token distributions in nats, mean per token, and the share of tokens at which both would choose the "
        "same. NLL rise: negative log-likelihood of the reference answer in nats per token, minus the full cache's."
    )
    yield (
        "Tokens 0 and 1 are left out: every policy that acts while decoding still sees the whole prompt there. An "
        "example counts once, whatever its length; 95% intervals are over examples (Student's t, for shares Wilson "
        "with the effective sample size; [-] where other values are all alike). The full cache is "
        "itself by construction."
    )
    for slot in slots:
        cells = [found for (_, place), found in by_place.items() if place == slot and found.complete]
        for q in (QUANTITIES[0], QUANTITIES[2]) if cells else ():
            short = len(cells[0].followed) - len(cells[0].present(q.metric))
            if short:
                what = "answers of the full cache" if q is QUANTITIES[0] else "reference answers"
                yield f"{slot[0]}: {short} of {cells[0].cell.planned} {what} have at most two tokens and do not count."
    yield f"Records: {source.provenance.line()}; {len(source.index.cells)} cells, their ids stand in the CSV."
