"""A plan for people (tables that fit 80 columns) and for programs (one JSON object)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from inertia import backbones
from inertia.experiments.cells import variant
from inertia.experiments.plan.hardware import DECODE_SHARE, LAYER_SECONDS, PREFILL_SHARE, USABLE
from inertia.experiments.plan.plan import Plan, Row, Section, Work, labels
from inertia.experiments.plan.planned import SEALED, STATES, Planned
from inertia.experiments.plan.speed import Roofline, Stated

if TYPE_CHECKING:
    from rich.console import Console

GIB = 2**30
# Policies that are named above a table.
NAMED = 24


def print_plan(plan: Plan, console: Console, *, cells: bool) -> None:
    """Print a plan.

    Args:
        plan: the plan.
        console: where to.
        cells: whether to list every cell.
    """
    from rich.markup import escape

    for section in plan.sections:
        print_section(section, console)
    if cells:
        print_cells([each for section in plan.sections for row in section.rows for each in row.cells], console)
    for note in plan.notes:
        console.print(f"[yellow]note[/yellow] {escape(note)}.", highlight=False)
    if len(plan.sections) > 1:
        works = [section.left for section in plan.sections]
        total = sum((section.total for section in plan.sections), Work())
        left = None if None in works else sum(works, Work())
        console.print(f"All backbones: {hours(total)} h, left {hours(left)} h.", highlight=False)


def print_section(section: Section, console: Console) -> None:
    """Print the work, the memory and the assumptions of one backbone."""
    from rich.markup import escape

    console.print(f"[bold]{section.config.name}[/bold]: {escape(backbones.label(section.config))}", highlight=False)
    names = labels(section)
    more = f" and {len(names) - NAMED} more (--cells lists them)" if len(names) > NAMED else ""
    console.print(escape(f"policies: {', '.join(names[:NAMED])}{more}"), highlight=False)
    console.print(work_table(section))
    console.print(memory_table(section))
    for line in (*saying(section), *warnings(section)):
        console.print(line, highlight=False)
    console.print()


def work_table(section: Section) -> Any:
    """Return the table of work, a group per line and the total."""
    table = plain_table("work", ("task", "length"), WORK_COLUMNS)
    for row in section.rows:
        table.add_row(row.task, length_of(row), *work_cells([row], row.total, row.left, f"{len(row.cells)}"))
    table.add_section()
    table.add_row("total", "", *work_cells(section.rows, section.total, section.left, ""))
    return table


WORK_COLUMNS = (
    "poli-\ncies",
    "exam-\nples",
    "prefill\ntokens",
    "decode\ntokens",
    "cells\nsealed",
    "answers\nleft",
    "hours",
    "hours\nleft",
)


def work_cells(rows: Iterable[Row], total: Work, left: Work | None, policies: str) -> tuple[str, ...]:
    """Return the numbers of a line of work."""
    rows = list(rows)
    remaining = [row.answers_left for row in rows]
    known = None not in remaining
    cells = sum(len(row.cells) for row in rows)
    return (
        policies,
        f"{sum(row.examples for row in rows):,}",
        short(total.prefill),
        bounded(total),
        f"{sum(row.states[SEALED] for row in rows)}/{cells}" if known else f"?/{cells}",
        f"{sum(remaining):,}" if known else "?",
        hours(total),
        hours(left),
    )


def memory_table(section: Section) -> Any:
    """Return the table of memory: the largest need of each nominal length and division of the policies."""
    title = f"memory in GiB, {'each of ' + str(section.devices) + ' devices' if section.devices > 1 else 'one device'}"
    table = plain_table(title, ("longest prompt",), ("policies", "weights", "prompt", "slots", "working", "peak"))
    needs: dict[Any, Row] = {}
    for row in sorted(section.rows, key=lambda row: row.memory.total):
        needs[row.length, row.parts] = row
    for row in reversed(needs.values()):
        need = row.memory
        sizes = (need.weights, need.prompt, need.slots, need.working, need.total)
        table.add_row(f"{row.lengths.longest:,}", split_of(row), *(gib(size) for size in sizes))
    return table


def print_cells(cells: Iterable[Planned], console: Console) -> None:
    """Print every cell with what is done of it."""
    table = plain_table("cells", ("cell", "backbone", "policy", "task", "length"), ("state", "done"))
    for each in cells:
        cell = each.cell
        table.add_row(
            id_of(each),
            cell.config.backbone.name,
            variant(cell.config),
            cell.task,
            "-" if cell.length is None else str(cell.length),
            each.state,
            f"{'?' if each.done is None else len(each.done)}/{len(each.ids)}",
        )
    console.print(table)


def plain_table(title: str, left: Iterable[str], right: Iterable[str]) -> Any:
    """Return an empty table whose columns stand close together."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for name in left:
        table.add_column(name, overflow="fold", min_width=min(len(name), 10))
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def saying(section: Section) -> list[str]:
    """Return what the numbers of a section rest on."""
    total = section.total
    lines = []
    if total.alone > total.prefill:
        share = f"{total.alone / total.prefill:.1f} times"
        lines.append(f"Shared prefills: one by one would read {short(total.alone)} prompt tokens, {share} as many.")
    lengths = "; ".join(dict.fromkeys(row.lengths.source for row in section.rows))
    counted = sum(row.recorded_answers for row in section.rows)
    answers = "every answer is taken to its limit (an upper bound, marked ≤)"
    if counted:
        answers = f"the lengths of {counted:,} recorded answers; ≤ marks upper bounds where a task has none"
    lines.append(f"Prompt lengths: {lengths}. Decode tokens: {answers}.")
    shape = section.shape
    active = f", {shape.active / 1e9:.2f}B of them active" if shape.experts else ""
    lines.append(
        f"Shape: {shape.parameters / 1e9:.2f}B parameters{active}, {shape.full_layers} of {shape.layers} layers with "
        f"full attention, {shape.query_heads}/{shape.kv_heads} heads of {shape.head_dim}, "
        f"{kv_bytes(section):,} bytes of cache per token. Working memory is an estimate."
    )
    return [*lines, f"Hours are estimates without loading: {source_of(section)}."]


def source_of(section: Section) -> str:
    """Return where the seconds of a section come from."""
    speed = section.speed
    if isinstance(speed, Stated):
        return f"stated, {speed.prefill_tps:g} prompt tokens/s and {speed.decode_tps:g} new tokens/s over all rows"
    if isinstance(speed, Roofline):
        hardware = speed.hardware
        several = "; layers on several devices work one after another" if section.devices > 1 else ""
        return (
            f"roofline of {hardware.name}, {PREFILL_SHARE:.0%} of {hardware.tflops[speed.dtype]:g} TFLOP/s "
            f"({speed.dtype}), {DECODE_SHARE:.0%} of {hardware.bandwidth:g} GB/s, at least "
            f"{1000 * LAYER_SECONDS:g} ms per layer and forward{several}"
        )
    steps = ", ".join(f"{1000 * seconds:.0f} ms at {rows}" for rows, seconds in speed.step_seconds.items())
    return (
        f"measured on {speed.examples} batches of sealed records, {speed.prefill_tps:,.0f} prompt tokens/s, a decode "
        f"step of {steps} rows"
    )


def warnings(section: Section) -> list[str]:
    """Return what does not fit, and what then happens."""
    hardware, found = section.hardware, []
    if hardware is None or hardware.usable is None:
        return ["Memory is not checked: no device with a stated memory was named (--gpu)."]
    room = f"{hardware.name} has {hardware.memory:g} GiB, of which {USABLE:.0%} are taken as usable"
    kinds: dict[tuple[bool, tuple[int, ...]], list[Row]] = {}
    for row in sorted(section.rows, key=lambda row: -row.memory.total):
        if not row.fits or len(row.parts) > 1:
            kinds.setdefault((row.fits, row.parts), []).append(row)
    for (fits, parts), rows in kinds.items():
        worst, others = rows[0], "" if len(rows) == 1 else f" (and {len(rows) - 1} more groups)"
        where = f"{worst.task}{'' if worst.length is None else f' at {worst.length}'}{others}"
        enough = [row.devices_needed for row in rows]
        fix = "" if None in enough else f" --devices {max(enough)} would hold all at once."
        if fits:
            found.append(
                f"[yellow]split[/yellow] {where}: {sum(parts)} policies run as {split_of(worst)}, each part reads the "
                f"prompt again (counted above); {room}.{fix}"
            )
        else:
            found.append(
                f"[red]does not fit[/red] {where}: {gib(worst.memory.total)} GiB on one device, and no single policy "
                f"fits either; {room}.{fix}"
            )
    return found or [f"Fits: {room}."]


def split_of(row: Row) -> str:
    """Return how many policies run at once, such as 13 or 7+6."""
    return "+".join(map(str, row.parts)) if len(row.parts) <= 4 else f"{len(row.parts)} x {max(row.parts)}"


def kv_bytes(section: Section) -> int:
    """Return the bytes that one more token takes in the full-attention layers."""
    return cache_bytes(section, 1) - cache_bytes(section, 0)


def cache_bytes(section: Section, tokens: int) -> int:
    """Return the bytes of a row's cache."""
    from inertia.experiments.plan.memory import cache
    from inertia.experiments.plan.shape import ELEMENT_BYTES

    return cache(section.shape, ELEMENT_BYTES[section.config.dtype], tokens)


def length_of(row: Row) -> str:
    """Return a row's nominal length for a table."""
    return "-" if row.length is None else str(row.length)


def id_of(each: Planned) -> str:
    """Return a cell's id; a stand-in has none."""
    return "-" if each.done is None else each.cell.id


def gib(size: float) -> str:
    """Return bytes in GiB with three significant digits or one decimal."""
    value = size / GIB
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def short(count: float) -> str:
    """Return a count such as 950, 12.3k or 4.56M."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:.3g}{name}" if count < 999.5 * unit else f"{count / unit:.0f}{name}"
    return f"{count:.0f}"


def bounded(work: Work) -> str:
    """Return the expected decode tokens, marked where they are an upper bound."""
    return ("≤" if work.decode == work.decode_most else "") + short(work.decode)


def hours(work: Work | None) -> str:
    """Return hours, marked where they are an upper bound; "?" where it cannot be known."""
    if work is None:
        return "?"
    value = work.seconds / 3600
    if 0 < value < 0.0005:
        return "<0.001"
    text = "0" if value == 0 else f"{value:.0f}" if value >= 99.5 else f"{value:.3f}" if value < 0.1 else f"{value:.2g}"
    return ("≤" if 0 < work.seconds == work.seconds_most else "") + text


def as_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain data; bytes, tokens and seconds in full precision, None for what cannot be known."""
    return {
        "notes": list(plan.notes),
        "backbones": [section_json(section) for section in plan.sections],
        "totals": totals(plan),
    }


def totals(plan: Plan) -> dict[str, Any]:
    """Return the sums over all backbones."""
    rows = [row for section in plan.sections for row in section.rows]
    lefts = [section.left for section in plan.sections]
    remaining = [row.answers_left for row in rows]
    return {
        "cells": sum(len(row.cells) for row in rows),
        "states": {state: sum(row.states[state] for row in rows) for state in STATES},
        "groups": len(rows),
        "examples": sum(row.examples for row in rows),
        "answers": sum(row.answers for row in rows),
        "answers_left": None if None in remaining else sum(remaining),
        "work": asdict(sum((section.total for section in plan.sections), Work())),
        "left": None if None in lefts else asdict(sum(lefts, Work())),
    }


def section_json(section: Section) -> dict[str, Any]:
    """Return one backbone's part."""
    hardware = section.hardware
    return {
        "backbone": section.config.name,
        "label": backbones.label(section.config),
        "shape": {**asdict(section.shape), "parameters": section.shape.parameters, "active": section.shape.active},
        "kv_bytes_per_token": kv_bytes(section),
        "devices": section.devices,
        "gpu": None if hardware is None else asdict(hardware),
        "hours_from": source_of(section),
        "work": asdict(section.total),
        "left": None if section.left is None else asdict(section.left),
        "groups": [row_json(row) for row in section.rows],
    }


def row_json(row: Row) -> dict[str, Any]:
    """Return one group."""
    return {
        "benchmark": row.benchmark,
        "task": row.task,
        "length": row.length,
        "examples": row.examples,
        "answers": row.answers,
        "answers_left": row.answers_left,
        "prompt_tokens": asdict(row.lengths),
        "max_new_tokens": row.limit,
        "recorded_answers": row.recorded_answers,
        "work": asdict(row.total),
        "left": None if row.left is None else asdict(row.left),
        "memory": {**asdict(row.memory), "peak": row.memory.total},
        "policies_per_call": list(row.parts),
        "fits": row.fits,
        "devices_needed": row.devices_needed,
        "cells": [cell_json(each) for each in row.cells],
    }


def cell_json(each: Planned) -> dict[str, Any]:
    """Return one cell."""
    return {
        "cell_id": None if each.done is None else each.cell.id,
        "policy": variant(each.cell.config),
        "state": each.state,
        "done": None if each.done is None else len(each.done),
        "planned": len(each.ids),
    }
