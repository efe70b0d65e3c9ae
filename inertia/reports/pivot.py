"""From the tidy frame to a grid: rows, columns and printed cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inertia.reports.declaration import FULL_CACHE, SCORE, Comparison, Quantity, Table, value_label
from inertia.reports.grid import Column, Grid, Report, Row
from inertia.reports.informative import REASONS
from inertia.reports.layout import MEAN, Key, agrees, pick
from inertia.reports.source import Source
from inertia.reports.tidy import frame_of, tidy_rows

UNINFORMATIVE = "†"
OWN_TASK = "‡"

Entry = Mapping[str, Any]
What = Quantity | Comparison


def build_table(table: Table, source: Source) -> Report:
    """Return a table of an experiment's records; equal records give equal reports."""
    rows = tidy_rows(source, table)
    return Report(table.name, frame_of(rows, table), pivot(source, table, rows))


def pivot(source: Source, table: Table, rows: Sequence[Entry]) -> Grid:
    """Return the rows of a table's tidy frame (`tidy_rows`) as a grid."""
    ours = [row for row in rows if row["source"] == "ours"]
    labels = {pick(row, table.rows): table.label({n: row.get(n) for n in table.rows}) for row in ours}
    full = {pick(row, table.rows): row["method"] == FULL_CACHE for row in ours}
    by_column: dict[tuple[Key, str], list[Entry]] = {}
    for entry in ours:
        by_column.setdefault((pick(entry, table.columns), entry["quantity"]), []).append(entry)
    whats: list[What] = [quantity for quantity in table.quantities if not quantity.in_header]
    # Differences in columns follow the score that they are of.
    whats[1:1] = [comparison for comparison in table.comparisons if comparison.in_columns]
    keys = dict.fromkeys(column for column, _ in by_column)
    shown = [(column, what) for column in keys for what in whats if (column, what.name) in by_column]
    paper = list(dict.fromkeys(pick(row, table.reference_columns) for row in rows if row["source"] == "paper"))
    places = [*((column, what.name) for column, what in shown), *(("paper", column) for column in paper)]
    cells = printed_cells(table, rows, list(labels))

    def line(label: str, row: Key, of: str | None, rule: bool) -> Row:
        return Row(label, tuple(cells.get((row, of, *place), ()) for place in places), rule)

    before = dict(zip(list(labels)[1:], labels, strict=False))
    lines = [line(label, row, None, full[row] != full[before.get(row, row)]) for row, label in labels.items()]
    for comparison in (comparison for comparison in table.comparisons if not comparison.in_columns):
        entries = (row for row in ours if row["quantity"] == comparison.name)
        pairs = dict.fromkeys((pick(row, table.rows), row["minus"]) for row in entries)
        for number, (row, other) in enumerate(pairs):
            lines.append(line(f"{labels[row]} minus {labels[other]}", row, comparison.name, number == 0))
    columns = [header(table, column, what, by_column, sum(c == column for c, _ in shown)) for column, what in shown]
    columns += [Column("paper", title(table, table.reference_columns, column)) for column in paper]
    words = filled_in(source, ours)
    notes = [*(note.format(**words) for note in table.notes), *marks(table, ours), f"Records: {words['records']}."]
    return Grid(table.title.format(**words), table.stub, tuple(columns), tuple(lines), tuple(notes))


def printed_cells(table: Table, rows: Sequence[Entry], keys: Sequence[Key]) -> dict[tuple, tuple[str, ...]]:
    """Return the lines of every cell by row, comparison (None for plain numbers), column and quantity."""
    cells: dict[tuple, tuple[str, ...]] = {}
    known: dict[str, What] = {what.name: what for what in (*table.quantities, *table.comparisons)}
    for entry in rows:
        if entry["source"] == "ours":
            what, row, column = known[entry["quantity"]], pick(entry, table.rows), pick(entry, table.columns)
            apart = isinstance(what, Comparison) and not what.in_columns
            place = (row, what.name, column, SCORE.name) if apart else (row, None, column, what.name)
            cells[place] = lines_of(entry, what)
        else:
            of = entry.get("comparison")
            for row in (row for row in keys if agrees(entry, table.rows, row)):
                place = (row, of, "paper", pick(entry, table.reference_columns))
                cells.setdefault(place, (f"{entry['value']:{'+' if of else ''}{entry['format']}}",))
    return cells


def lines_of(entry: Entry, what: What) -> tuple[str, ...]:
    """Return the lines of one cell: value, interval and p; how incomplete it is; or nothing."""
    if entry.get("value") is None:
        return tuple(entry["status"].split(" ")) if entry["status"].startswith("incomplete") else ()
    value, low, high = what.shown(entry["value"]), entry.get("low"), entry.get("high")
    ends = "[-]" if low is None else f"[{what.ends(low)}, {what.ends(high)}]"
    if isinstance(what, Comparison):
        p = entry["p"] if entry.get("p_holm") is None else entry["p_holm"]
        return value, ends, "p<.001" if p < 0.001 else f"p={p:.3f}".replace("=0.", "=.")
    exact = not what.interval or (what.relative and entry["method"] == FULL_CACHE)
    return (value,) if exact else (value, ends)


def header(
    table: Table, column: Key, what: What, by_column: Mapping[tuple[Key, str], Sequence[Entry]], things: int
) -> Column:
    """Return a column's header: what it is over, what it shows, its length and marks, and how many examples count.

    What it shows is left out where it is the only one of the `things` that stand there.
    """
    entries = by_column[column, what.name]
    said = dict(zip(table.columns, column, strict=True))
    length = said.pop("length", None)
    place = [] if length is None else [value_label("length", length)]
    words = [title(table, (name,), (value,)) for name, value in said.items()]
    signs = mark(table, entries)
    if words and things == 1:
        group, name, details = " ".join(words[:-1]), words[-1], [" ".join([*place, *([signs] if signs else [])])]
    else:
        group, name, details = " ".join([*words, *place]), what.heading, [signs]
    if isinstance(what, Quantity) and what.interval:
        details += [f"tasks={len(entries[0]['tasks'])}"] if entries[0]["task"] == MEAN else []
        counts = sorted({entry["n"] if entry["status"] == "ok" else entry["planned"] for entry in entries} - {0})
        details.append("n=" + ("/".join(map(str, counts)) or "0"))
        for quantity in (quantity for quantity in table.quantities if quantity.in_header):
            found = [entry.get("value") or 0.0 for entry in by_column[column, quantity.name]]
            details += [f"{quantity.heading} {quantity.shown(sum(found) / len(found))}"] if any(found) else []
    return Column(group, name, tuple(detail for detail in details if detail), dim=UNINFORMATIVE in signs)


def mark(table: Table, entries: Sequence[Entry]) -> str:
    """Return the marks of a column: uninformative at this scale, a task of our own."""
    tells_nothing = any((entry.get("note") or "").startswith(REASONS) for entry in entries)
    own = any(entry["task"] != MEAN and table.own(entry["task"]) for entry in entries)
    return UNINFORMATIVE * tells_nothing + OWN_TASK * own


def marks(table: Table, ours: Sequence[Entry]) -> list[str]:
    """Return a note for each reason why examples do not count, for each mark, and for what headers show."""
    short: dict[str, None] = {}
    why: dict[str, dict[str, None]] = {}
    for entry in (entry for entry in ours if entry["task"] != MEAN and entry.get("note")):
        place = title(table, ("task", "length") if entry.get("length") else ("task",), pick(entry, ("task", "length")))
        if entry["note"].startswith(REASONS):
            why.setdefault(entry["note"], {})[place] = None
        else:
            short[f"{place}: {entry['note']}."] = None
    uninformative = f"{UNINFORMATIVE} uninformative at this scale, but not dropped:"
    found = [f"{uninformative} {', '.join(places)} ({reason})." for reason, places in why.items()]
    own = sorted({entry["task"] for entry in ours if entry["task"] != MEAN and table.own(entry["task"])})
    if own:
        averaged = {task for entry in ours if entry["task"] == MEAN for task in entry["tasks"]}
        where = "in the mean like the others" if averaged & set(own) else "not in the mean"
        found.append(f"{OWN_TASK} a task of our own, no official one, {where}: {', '.join(own)}.")
    seen = {entry["quantity"] for entry in ours if entry.get("value")}
    return [*short, *found, *(f"{q.heading}: {q.absent}." for q in table.quantities if q.in_header and q.name in seen)]


def title(table: Table, names: Sequence[str], key: Key) -> str:
    """Return the values of a column as its header says them."""
    said = zip(names, key, strict=False)
    return " ".join(table.titles.get(n, {}).get(v, MEAN if v is None else value_label(n, v)) for n, v in said)


def filled_in(source: Source, ours: Sequence[Entry]) -> dict[str, str]:
    """Return what titles and notes may name."""
    ids = {name for entry in ours for name in entry["cells"].split()}
    ratios = {cell.settings.get("compression_ratio") for cell in source.cells if cell.id in ids} - {None}
    averaged = [task for entry in ours if entry["task"] == MEAN for task in entry["tasks"]]
    return {
        "experiment": source.experiment,
        "scale": source.scale,
        "backbone": source.backbone_label,
        "ratio": f" at {100 * ratios.pop():g}% compression" if len(ratios) == 1 else "",
        "averaged": ", ".join(dict.fromkeys(averaged)),
        "records": f"{source.records}; {len(ids)} cells, their ids stand in the CSV",
    }
