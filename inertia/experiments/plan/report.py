"""A plan for people (tables that fit 80 columns) and for programs (one JSON object)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from inertia import backbones
from inertia.experiments.labels import policy_label
from inertia.experiments.plan.hardware import DECODE_SHARE, LAYER_SECONDS, PREFILL_SHARE, USABLE
from inertia.experiments.plan.memory import cache
from inertia.experiments.plan.plan import Group, Machine, Plan, Section, Work, total
from inertia.experiments.plan.planned import SEALED, STATES, Planned
from inertia.experiments.plan.speed import Roofline, Stated

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

GIB = 2**30
# Policies that are named above a table.
NAMED = 24
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


def print_plan(plan: Plan, console: Console, *, cells: bool) -> None:
    """Print a plan.

    Args:
        plan: the plan.
        console: where to.
        cells: whether to list every cell.
    """
    from rich.markup import escape

    for section in plan.sections:
        config = section.machine.config
        console.print(f"[bold]{config.name}[/bold]: {escape(backbones.label(config))}", highlight=False)
        names = list(dict.fromkeys(policy_label(each.cell.config) for group in section.groups for each in group.cells))
        more = f" and {len(names) - NAMED} more (--cells lists them)" if len(names) > NAMED else ""
        console.print(escape(f"policies: {', '.join(names[:NAMED])}{more}"), highlight=False)
        console.print(work_table(section))
        console.print(memory_table(section))
        for line in (*saying(section), *warnings(section)):
            console.print(line, highlight=False)
        console.print()
    if cells:
        groups = [group for section in plan.sections for group in section.groups]
        console.print(cells_table(each for group in groups for each in group.cells))
    for note in plan.notes:
        console.print(f"[yellow]note[/yellow] {escape(note)}.", highlight=False)
    if len(plan.sections) > 1:
        work, left = (total(getattr(each, name) for each in plan.sections) for name in ("work", "left"))
        console.print(f"All backbones: {hours(work)} h, left {hours(left)} h.", highlight=False)


def work_table(section: Section) -> Table:
    """Return the table of work, a group per line and the total."""
    table = plain_table("work", ("task", "length"), WORK_COLUMNS)
    for group in section.groups:
        length = "-" if group.length is None else str(group.length)
        table.add_row(group.task, length, f"{len(group.cells)}", *work_cells([group], group.work, group.left))
    table.add_section()
    table.add_row("total", "", "", *work_cells(section.groups, section.work, section.left))
    return table


def work_cells(groups: Sequence[Group], work: Work, left: Work | None) -> tuple[str, ...]:
    """Return the numbers of a line of work, but for the number of policies."""
    remaining, cells = total_of(group.answers_left for group in groups), sum(len(group.cells) for group in groups)
    return (
        f"{sum(group.examples for group in groups):,}",
        short(work.prefill),
        ("≤" if work.decode == work.decode_most else "") + short(work.decode),
        f"{'?' if remaining is None else sum(group.count(SEALED) for group in groups)}/{cells}",
        "?" if remaining is None else f"{remaining:,}",
        hours(work),
        hours(left),
    )


def memory_table(section: Section) -> Table:
    """Return the table of memory: the largest need of each nominal length and division of the policies."""
    devices = section.machine.devices
    title = f"memory in GiB, {f'each of {devices} devices' if devices > 1 else 'one device'}"
    table = plain_table(title, ("longest prompt",), ("policies", "weights", "prompt", "slots", "working", "peak"))
    by_size = sorted(section.groups, key=lambda group: group.memory.total)
    for group in reversed({(group.length, group.parts): group for group in by_size}.values()):
        sizes = (*asdict(group.memory).values(), group.memory.total)
        table.add_row(f"{group.lengths.longest:,}", parts_of(group), *map(gib, sizes))
    return table


def cells_table(cells: Iterable[Planned]) -> Table:
    """Return the table of all cells with what is done of each."""
    table = plain_table("cells", ("cell", "backbone", "policy", "task", "length"), ("state", "done"))
    for each in cells:
        line = cell_json(each)
        done = "?" if line["done"] is None else line["done"]
        length = "-" if each.cell.length is None else str(each.cell.length)
        names = (line["cell_id"] or "-", each.cell.config.backbone.name, line["policy"], each.cell.task, length)
        table.add_row(*names, each.state, f"{done}/{line['planned']}")
    return table


def plain_table(title: str, left: Iterable[str], right: Iterable[str]) -> Table:
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
    work, shape, lines = section.work, section.machine.shape, []
    if work.alone > work.prefill:
        share = f"{work.alone / work.prefill:.1f} times"
        lines.append(f"Shared prefills: one by one would read {short(work.alone)} prompt tokens, {share} as many.")
    lengths = "; ".join(dict.fromkeys(group.lengths.source for group in section.groups))
    counted = sum(group.recorded_answers for group in section.groups)
    answers = "every answer is taken to its limit (an upper bound, marked ≤)"
    if counted:
        answers = f"the lengths of {counted:,} recorded answers; ≤ marks upper bounds where a task has none"
    active = f", {shape.active / 1e9:.2f}B of them active" if shape.experts else ""
    return [
        *lines,
        f"Prompt lengths: {lengths}. Decode tokens: {answers}.",
        f"Shape: {shape.parameters / 1e9:.2f}B parameters{active}, {shape.full_layers} of {shape.layers} layers with "
        f"full attention, {shape.query_heads}/{shape.kv_heads} heads of {shape.head_dim}, "
        f"{kv_bytes(section.machine):,} bytes of cache per token. Working memory is an estimate.",
        f"Hours are estimates without loading: {source_of(section.machine)}.",
    ]


def source_of(machine: Machine) -> str:
    """Return where the seconds of a backbone come from."""
    speed = machine.speed
    if isinstance(speed, Stated):
        return f"stated, {speed.prefill_tps:g} prompt tokens/s and {speed.decode_tps:g} new tokens/s over all rows"
    if isinstance(speed, Roofline):
        hardware = speed.hardware
        several = "; layers on several devices work one after another" if machine.devices > 1 else ""
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
    hardware, found = section.machine.hardware, []
    if hardware is None or hardware.usable is None:
        return ["Memory is not checked: no device with a stated memory was named (--gpu)."]
    room = f"{hardware.name} has {hardware.memory:g} GiB, of which {USABLE:.0%} are taken as usable"
    kinds: dict[tuple[bool, tuple[int, ...]], list[Group]] = {}
    for group in sorted(section.groups, key=lambda group: -group.memory.total):
        if not group.fits or len(group.parts) > 1:
            kinds.setdefault((group.fits, group.parts), []).append(group)
    for (fits, parts), groups in kinds.items():
        worst, others = groups[0], "" if len(groups) == 1 else f" (and {len(groups) - 1} more groups)"
        where = f"{worst.task}{'' if worst.length is None else f' at {worst.length}'}{others}"
        enough = [group.devices_needed for group in groups]
        fix = "" if None in enough else f" --devices {max(enough)} would hold all at once."
        said = (
            f"[yellow]split[/yellow] {where}: {sum(parts)} policies run as {parts_of(worst)}, each part reads the "
            f"prompt again (counted above); {room}."
            if fits
            else f"[red]does not fit[/red] {where}: {gib(worst.memory.total)} GiB on one device, and no single policy "
            f"fits either; {room}."
        )
        found.append(said + fix)
    return found or [f"Fits: {room}."]


def parts_of(group: Group) -> str:
    """Return how many policies run at once, such as 13 or 7+6."""
    return "+".join(map(str, group.parts)) if len(group.parts) <= 4 else f"{len(group.parts)} x {max(group.parts)}"


def kv_bytes(machine: Machine) -> int:
    """Return the bytes that one more token takes in the full-attention layers."""
    one, none = (cache(machine.shape, machine.element, tokens) for tokens in (1, 0))
    return one - none


def total_of(counts: Iterable[int | None]) -> int | None:
    """Return the sum of counts; None where one of them is not known."""
    counts = list(counts)
    return None if None in counts else sum(counts)


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
    groups = [group for section in plan.sections for group in section.groups]
    totals = {
        "cells": sum(len(group.cells) for group in groups),
        "states": {state: sum(group.count(state) for group in groups) for state in STATES},
        "groups": len(groups),
        "examples": sum(group.examples for group in groups),
        "answers": sum(group.answers for group in groups),
        "answers_left": total_of(group.answers_left for group in groups),
        "work": plain(total(group.work for group in groups)),
        "left": plain(total(group.left for group in groups)),
    }
    return {"notes": list(plan.notes), "backbones": list(map(section_json, plan.sections)), "totals": totals}


def section_json(section: Section) -> dict[str, Any]:
    """Return one backbone's part."""
    machine = section.machine
    return {
        "backbone": machine.config.name,
        "label": backbones.label(machine.config),
        "shape": {**asdict(machine.shape), "parameters": machine.shape.parameters, "active": machine.shape.active},
        "kv_bytes_per_token": kv_bytes(machine),
        "devices": machine.devices,
        "gpu": plain(machine.hardware),
        "hours_from": source_of(machine),
        "work": plain(section.work),
        "left": plain(section.left),
        "groups": [group_json(group) for group in section.groups],
    }


def group_json(group: Group) -> dict[str, Any]:
    """Return one group."""
    return {
        "benchmark": group.cells[0].cell.benchmark.name,
        "prompt_tokens": plain(group.lengths),
        "max_new_tokens": group.limit,
        "work": plain(group.work),
        "left": plain(group.left),
        "memory": {**asdict(group.memory), "peak": group.memory.total},
        "policies_per_call": list(group.parts),
        "cells": [cell_json(each) for each in group.cells],
        **{name: getattr(group, name) for name in ("task", "length", "examples", "answers", "answers_left")},
        **{name: getattr(group, name) for name in ("recorded_answers", "fits", "devices_needed")},
    }


def cell_json(each: Planned) -> dict[str, Any]:
    """Return one cell."""
    return {
        "cell_id": None if each.done is None else each.cell.id,
        "policy": policy_label(each.cell.config),
        "state": each.state,
        "done": None if each.done is None else len(each.done),
        "planned": len(each.ids),
    }


def plain(value: Any) -> dict[str, Any] | None:
    """Return a dataclass as plain data, None as it is."""
    return None if value is None else asdict(value)
