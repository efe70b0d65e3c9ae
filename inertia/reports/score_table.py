"""Any experiment as one grid: a row per policy, a column per task, what it kept and what that took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inertia.reports.estimates import Estimate, mean, mean_over
from inertia.reports.grid import Column, Grid, Row
from inertia.reports.informative import why_uninformative
from inertia.reports.scores import CellScores, cell_scores
from inertia.reports.source import Source
from inertia.reports.table import Table

if TYPE_CHECKING:
    from pandas import DataFrame

    from inertia.reports.index import Index

# Settings that every row shares stand in the title, so only these make a row; the label comes first.
HIDDEN = ("alpha",)
FULL = "full_cache"
# Easier relatives of RULER's tasks, under names of their own.
OURS = "niah_noise"


def score_table(source: Source) -> Table:
    """Return the scores of an experiment: equal records give equal tables, and incomplete cells say so."""
    import pandas

    scores = cell_scores(source.samples, source.index)
    slots = list(dict.fromkeys((each.cell.task, each.cell.length) for each in scores))
    labels = row_labels(scores)
    rows = sorted(dict.fromkeys(labels.values()), key=lambda label: not label.startswith(FULL))
    by_place = {(labels[each.cell.cell_id], (each.cell.task, each.cell.length)): each for each in scores}
    counted = within_plan(source)
    kept = counted.groupby("cell_id")[["retained_tokens", "cache_bytes"]].mean()
    truncated = truncated_share(source.index, counted)
    grid_rows, frame = [], []
    for number, label in enumerate(rows):
        cells = [by_place.get((label, slot)) for slot in slots]
        printed = [printed_score(each) for each in cells]
        finished = [each for each in cells if each is not None and each.complete]
        overall = mean_over([each.values for each in finished]) if len(finished) == len(slots) else None
        ids = [each.cell.cell_id for each in cells if each is not None and each.cell.cell_id in kept.index]
        tokens = kept.loc[ids, "retained_tokens"].mean() if ids else float("nan")
        size = kept.loc[ids, "cache_bytes"].mean() if ids else float("nan")
        memory = ("-",) if pandas.isna(size) else (f"{size / 2**20:.1f}",)
        held = ("-",) if pandas.isna(tokens) else (f"{tokens:.0f}",)
        grid_rows.append(Row(label, (*printed, interval_lines(overall), held, memory), rule_above=number == 1))
        frame += [long_row(label, each, tokens, size, source) for each in cells if each is not None]
    columns = (
        *(task_column(slot, by_place, rows, truncated.get(slot, 0.0)) for slot in slots),
        Column("", "mean", (f"tasks={len(slots)}",)),
        Column("", "tokens kept"),
        Column("", "cache MiB"),
    )
    under = notes(by_place, slots, rows, source, cut=any(truncated.values()))
    title = f"{source.index.experiment}, {source.index.scale} scale: {source.index.backbone_label}"
    return Table(
        f"scores-{source.index.experiment}",
        pandas.DataFrame(frame),
        Grid(title, "policy", columns, tuple(grid_rows), tuple(under)),
    )


def row_labels(scores: Sequence[CellScores]) -> dict[str, str]:
    """Return each cell's row: its method, and those of its settings that tell equal methods apart."""
    axes = {each.cell.cell_id: dict(each.cell.axes) for each in scores}
    labels = {}
    for cell_id, own in axes.items():
        peers = [other for other in axes.values() if other["method"] == own["method"]]
        varied = [
            key for key in own if key not in (*HIDDEN, "method") and len({repr(peer.get(key)) for peer in peers}) > 1
        ]
        settings = ", ".join(f"{short(key)}={plain(own[key])}" for key in varied)
        labels[cell_id] = f"{own['method']} ({settings})" if settings else own["method"]
    return labels


def short(key: str) -> str:
    """Return the last word of a dotted setting."""
    return key.rpartition(".")[2]


def plain(value: object) -> str:
    """Return a setting as people write it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def printed_score(scores: CellScores | None) -> tuple[str, ...]:
    """Return the lines of one cell: score and interval, or how incomplete it is."""
    if scores is None:
        return ()
    if not scores.complete:
        return ("incomplete", f"{len(scores.values)}/{scores.cell.planned}")
    return interval_lines(mean(scores.values))


def interval_lines(estimate: Estimate | None) -> tuple[str, ...]:
    """Return a score, 0 to 100, and its interval on two lines."""
    if estimate is None:
        return ()
    return f"{100 * estimate.value:.1f}", f"[{100 * estimate.low:.0f}, {100 * estimate.high:.0f}]"


def within_plan(source: Source) -> DataFrame:
    """Return the samples of the planned examples; a cell may hold more of them, for another experiment."""
    planned = {each.cell_id: each.planned for each in source.index.cells}
    return source.samples[source.samples["index"] < source.samples["cell_id"].map(planned)]


def truncated_share(index: Index, samples: DataFrame) -> dict[tuple[str, int | None], float]:
    """Return per (task, length) the share of prompts whose middle was cut out to fit."""
    places = {each.cell_id: (each.task, each.length) for each in index.cells}
    return samples["truncated"].astype("float64").groupby(samples["cell_id"].map(places)).mean().to_dict()


def task_column(slot: tuple[str, int | None], by_place: dict, rows: list[str], truncated: float) -> Column:
    """Return a task's column, with its length, n and the share of truncated prompts."""
    planned = sorted({by_place[row, slot].cell.planned for row in rows if (row, slot) in by_place})
    place = "" if slot[1] is None else f"@{slot[1]}"
    cut = (f"cut {100 * truncated:.0f}%",) if truncated > 0 else ()
    under = (place, "n=" + "/".join(map(str, planned)), *cut)
    return Column("", slot[0], under, dim=bool(reason(slot, by_place, rows)))


def reason(slot: tuple[str, int | None], by_place: dict, rows: list[str]) -> str | None:
    """Return why a task tells no policies apart here, or None."""
    full = next((by_place[row, slot] for row in rows if row.startswith(FULL) and (row, slot) in by_place), None)
    others = [by_place[row, slot] for row in rows if not row.startswith(FULL) and (row, slot) in by_place]
    return why_uninformative(full, others)


def notes(by_place: dict, slots: list, rows: list[str], source: Source, *, cut: bool) -> list[str]:
    """Return what stands under the table."""
    found = [
        "Official score, 0 to 100, with its 95% interval (Wilson; with the effective sample size and Student's t "
        "for the mean over tasks and for scores other than 0 and 1). Tokens kept: after the last step, mean over heads "
        "and layers; cache: keys and values allocated per sequence. Context-only compression keeps the question on top."
    ]
    why: dict[str, list[str]] = {}
    for slot in slots:
        if said := reason(slot, by_place, rows):
            why.setdefault(said, []).append(slot[0])
    for said, tasks in why.items():
        found.append(f"Uninformative at this scale, but not dropped: {', '.join(dict.fromkeys(tasks))} ({said}).")
    if cut:
        found.append("cut: share of prompts whose middle was taken out to fit the window or the official limit.")
    if ours := [slot[0] for slot in slots if slot[0].startswith(OURS)]:
        found.append(f"The mean is over all columns; {', '.join(dict.fromkeys(ours))} is no official task.")
    return [
        *found,
        f"Records: {source.provenance.line()}; {len(source.index.cells)} cells, their ids stand in the CSV.",
    ]


def long_row(label: str, scores: CellScores, tokens: float, size: float, source: Source) -> dict[str, object]:
    """Return one printed number for programs."""
    estimate = mean(scores.values) if scores.complete else None
    return {
        "policy": label,
        "task": scores.cell.task,
        "length": scores.cell.length,
        "n": len(scores.values),
        "planned": scores.cell.planned,
        "score": None if estimate is None else 100 * estimate.value,
        "low": None if estimate is None else 100 * estimate.low,
        "high": None if estimate is None else 100 * estimate.high,
        "retained_tokens": tokens,
        "cache_bytes": size,
        "scale": source.index.scale,
        "backbone": source.index.backbone_label,
        "cell_id": scores.cell.cell_id,
    }
