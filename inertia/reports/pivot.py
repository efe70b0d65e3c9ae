"""From the tidy frame to a grid: rows, columns and printed cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inertia.reports.declaration import FULL_CACHE, SCORE, Comparison, Quantity, Table, value_label
from inertia.reports.grid import Column, Grid, Row
from inertia.reports.informative import REASONS
from inertia.reports.layout import MEAN, Key, Layout, matching, pick
from inertia.reports.source import Source

UNINFORMATIVE = "†"
OWN_TASK = "‡"

Entry = Mapping[str, Any]
What = Quantity | Comparison


def pivot(source: Source, table: Table, rows: Sequence[Entry]) -> Grid:
    """Return the rows of a table's tidy frame (`estimates`) as a grid."""
    layout = Layout(source, table)
    shown = [(column, what) for column in layout.columns for what in shown_in(layout, column)]
    paper = sorted({layout.printed_column(row) for row in rows if row["source"] == "paper"}, key=layout.printed_rank)
    cells, entries = printed_cells(layout, rows), [row for row in rows if row["source"] == "ours"]
    by_column: dict[tuple[Key, str], list[Entry]] = {}
    for entry in entries:
        by_column.setdefault((pick(entry, table.columns), entry["quantity"]), []).append(entry)
    places = [*((column, what.name) for column, what in shown), *(("paper", column) for column in paper)]
    named = {row: dict(zip(table.rows, row, strict=True)) for row in layout.rows}
    full = [layout.methods.get(row, named[row].get("method")) == FULL_CACHE for row in layout.rows]
    lines = [
        Row(table.label(named[row]), tuple(cells.get((row, None, *place), ()) for place in places), rule)
        for row, rule in zip(layout.rows, [False, *(a != b for a, b in zip(full, full[1:], strict=False))], strict=True)
    ]
    for comparison in (comparison for comparison in table.comparisons if not comparison.in_columns):
        for number, (row, other) in enumerate(layout.pairs(comparison)):
            label = f"{table.label(named[row])} minus {table.label(named[other])}"
            differences = tuple(cells.get((row, comparison.name, *place), ()) for place in places)
            lines.append(Row(label, differences, number == 0))
    columns = [header(layout, column, what, by_column) for column, what in shown]
    columns += [Column("paper", title(table, table.reference_columns, column)) for column in paper]
    words = filled_in(layout)
    notes = [*(note.format(**words) for note in table.notes), *marks(layout, entries), f"Records: {words['records']}."]
    return Grid(table.title.format(**words), table.stub, tuple(columns), tuple(lines), tuple(notes))


def shown_in(layout: Layout, column: Key) -> list[What]:
    """Return what is printed in a column, the comparisons in columns after the score."""
    found: list[What] = []
    for quantity in layout.table.quantities:
        if not quantity.in_header and (not quantity.only_mean or layout.pools(column)):
            in_columns = [c for c in layout.table.comparisons if c.in_columns] if quantity is SCORE else []
            found += [quantity, *in_columns]
    return found


def printed_cells(layout: Layout, rows: Sequence[Entry]) -> dict[tuple, tuple[str, ...]]:
    """Return the lines of every cell by row, comparison (None for plain numbers), column and quantity."""
    table, cells = layout.table, {}
    known: dict[str, What] = {what.name: what for what in (*table.quantities, *table.comparisons)}
    for entry in rows:
        if entry["source"] == "ours":
            what, row, column = known[entry["quantity"]], pick(entry, table.rows), pick(entry, table.columns)
            apart = isinstance(what, Comparison) and not what.in_columns
            place = (row, what.name, column, SCORE.name) if apart else (row, None, column, what.name)
            cells[place] = lines_of(entry, what)
        else:
            of, formats = entry.get("comparison"), table.references[0].formats
            spec = next((form for name, form in formats.items() if entry["quantity"].startswith(name)), ".2f")
            for row in (row for row in layout.rows if matching(entry, table.rows, row)):
                place = (row, of, "paper", layout.printed_column(entry))
                cells.setdefault(place, (f"{entry['value']:{'+' if of else ''}{spec}}",))
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


def header(layout: Layout, column: Key, what: What, by_column: Mapping[tuple[Key, str], Sequence[Entry]]) -> Column:
    """Return a column's header: what it is over, what it shows, its length and marks, and how many examples count."""
    entries = by_column.get((column, what.name), ())
    said = dict(zip(layout.table.columns, column, strict=True))
    length = said.pop("length", None)
    place = [] if length is None else [value_label("length", length)]
    words = [title(layout.table, (name,), (value,)) for name, value in said.items()]
    signs = mark(layout, entries)
    if words and len(shown_in(layout, column)) == 1:
        group, name, details = " ".join(words[:-1]), words[-1], [" ".join([*place, *([signs] if signs else [])])]
    else:
        group, name, details = " ".join([*words, *place]), what.heading, [signs]
    if isinstance(what, Quantity) and what.interval:
        if layout.pools(column):
            details.append(f"tasks={len(layout.averaged_tasks(column))}")
        counts = sorted({entry["n"] if entry["status"] == "ok" else entry["planned"] for entry in entries} - {0})
        details.append("n=" + ("/".join(map(str, counts)) or "0"))
        for quantity in (quantity for quantity in layout.table.quantities if quantity.in_header):
            found = [entry.get("value") or 0.0 for entry in by_column.get((column, quantity.name), ())]
            details += [f"{quantity.heading} {quantity.shown(sum(found) / len(found))}"] if any(found) else []
    return Column(group, name, tuple(detail for detail in details if detail), dim=UNINFORMATIVE in signs)


def mark(layout: Layout, entries: Sequence[Entry]) -> str:
    """Return the marks of a column: uninformative at this scale, a task of our own."""
    tells_nothing = any((entry.get("note") or "").startswith(REASONS) for entry in entries)
    own = any(entry["task"] != MEAN and layout.table.own(entry["task"]) for entry in entries)
    return UNINFORMATIVE * tells_nothing + OWN_TASK * own


def marks(layout: Layout, entries: Sequence[Entry]) -> list[str]:
    """Return a note for each reason why examples do not count, for each mark, and for what headers show."""
    table = layout.table
    short: dict[str, None] = {}
    why: dict[str, dict[str, None]] = {}
    for entry in (entry for entry in entries if entry["task"] != MEAN and entry.get("note")):
        place = title(table, ("task", "length") if entry.get("length") else ("task",), pick(entry, ("task", "length")))
        if entry["note"].startswith(REASONS):
            why.setdefault(entry["note"], {})[place] = None
        else:
            short[f"{place}: {entry['note']}."] = None
    uninformative = f"{UNINFORMATIVE} uninformative at this scale, but not dropped:"
    found = [f"{uninformative} {', '.join(places)} ({reason})." for reason, places in why.items()]
    own = sorted({cell.settings["task"] for cell in layout.cells if table.own(cell.settings["task"])})
    averaged = {task for column in layout.columns for task in layout.averaged_tasks(column) if layout.pools(column)}
    if own and "task" in table.columns:
        where = "in the mean like the others" if averaged & set(own) else "not in the mean"
        found.append(f"{OWN_TASK} a task of our own, no official one, {where}: {', '.join(own)}.")
    seen = {entry["quantity"] for entry in entries if entry.get("value")}
    return [*short, *found, *(f"{q.heading}: {q.absent}." for q in table.quantities if q.in_header and q.name in seen)]


def title(table: Table, names: Sequence[str], key: Key) -> str:
    """Return the values of a column as its header says them."""
    said = zip(names, key, strict=False)
    return " ".join(table.titles.get(n, {}).get(v, MEAN if v is None else value_label(n, v)) for n, v in said)


def filled_in(layout: Layout) -> dict[str, str]:
    """Return what titles and notes may name."""
    ratios = {cell.settings.get("compression_ratio") for cell in layout.cells} - {None}
    averaged = [task for column in layout.columns if layout.pools(column) for task in layout.averaged_tasks(column)]
    return {
        "experiment": layout.source.experiment,
        "scale": layout.source.scale,
        "backbone": layout.source.backbone_label,
        "ratio": f" at {100 * next(iter(ratios)):g}% compression" if len(ratios) == 1 else "",
        "averaged": ", ".join(dict.fromkeys(averaged)),
        "records": f"{layout.source.records}; {len(layout.cells)} cells, their ids stand in the CSV",
    }
