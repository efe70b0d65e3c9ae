"""Curves: time over thousands of steps, over the refresh interval, and over batch rows."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any

from bench import plain
from bench.cases import KVPRESS, OURS, PLAIN, Case, together
from bench.figures import paired, slope, typical, windows
from bench.kvpress_client import KVPressFailed
from bench.measure import Setting, Tick, once
from bench.show import digits, show
from bench.timing import LEAD
from inertia.methods import preset

WINDOWS = 10
INTERVALS = (1, 2, 4, 8, 16, 32, 64, 128)
# A tenth of the tokens stays, so ten rows of ours take the memory of one full row.
REMOVED = 0.9
BATCHES = (1, 4)
POLICIES = sorted({*BATCHES, *(10 * rows for rows in BATCHES)})


def flat(setting: Setting, steps: int) -> dict[str, Any]:
    """Return the medians of ten windows over many steps of full refresh, and their slope."""
    case = Case("ours", OURS, policies=(preset("inertiakv", tokens=setting.kept),))
    seconds, run = once(case, replace(setting, steps=steps))
    medians = windows(seconds, WINDOWS)
    return {
        "kept": setting.kept,
        "steps": steps,
        "windows_ms": [1e3 * value for value in medians],
        "slope": slope(medians),
        "checks": {"budget": run.live == (float(setting.kept),)},
    }


def intervals(setting: Setting, repeats: int, tick: Tick) -> list[dict[str, Any]]:
    """Return the mean step by refresh interval, ours and kvpress's, whole periods only.

    Ours evicts at every step and scores every r-th; kvpress scores and evicts every r-th step, and holds up to r - 1
    tokens more than asked for in between.
    """
    seconds: dict[tuple[str, int], list[list[float]]] = {}
    for _ in range(repeats):
        for interval in INTERVALS:
            policy = preset("inertiakv_lazy", tokens=setting.kept, interval=interval)
            cases = [Case("ours", OURS, policies=(policy,))]
            if setting.kvpress is not None:
                cases.append(Case("kvpress", KVPRESS, "tova"))
            for case in cases:
                try:
                    times, _ = once(case, replace(setting, steps=max(setting.steps, 2 * interval)), interval)
                    seconds.setdefault((case.side, interval), []).append(times)
                except KVPressFailed as problem:
                    tick(f"kvpress failed: {problem}")
            tick(f"interval {interval}")
    return [
        {
            "side": side,
            "interval": interval,
            "kept": setting.kept,
            # Ours scores steps 1, 1 + r, ..; kvpress compresses after steps r, 2r, ..
            "ms": 1e3 * typical(values, interval, (-LEAD if side == OURS else -LEAD - 1) % interval),
        }
        for (side, interval), values in seconds.items()
    ]


def batches(setting: Setting, cached: int, repeats: int, tick: Tick) -> list[dict[str, Any]]:
    """Return tokens per second of plain rows that keep everything, and of ours at equal batch and at equal memory.

    Rows are policies of one prompt, which have the shapes and the cost of rows of different prompts: `generate` takes
    one prompt.

    Args:
        setting: its `kept` is not used.
        cached: tokens of the full rows.
        repeats: how often.
        tick: told the name of each row that is done.
    """
    kept = round(cached * (1 - REMOVED))
    full = {rows: Case(f"full cache, {rows} rows", PLAIN, plain.SLOTS_SDPA, rows=rows) for rows in BATCHES}
    less = {rows: together(kept, rows) for rows in POLICIES}
    seconds: dict[str, list[list[float]]] = {}
    held: dict[str, int] = {}
    for _ in range(repeats):
        for case, size in [*((one, cached) for one in full.values()), *((one, kept) for one in less.values())]:
            times, run = once(case, replace(setting, kept=size))
            seconds.setdefault(case.name, []).append(times)
            held[case.name] = run.held
            tick(case.name)
    costs = {name: [median(times) for times in repeated] for name, repeated in seconds.items()}
    found = []
    for rows, base in full.items():
        for other, how in ((base, "full"), (less[rows], "equal batch"), (less[10 * rows], "equal memory")):
            step = median(sum(seconds[other.name], []))
            faster = median(paired(costs[base.name], costs[other.name])) * other.rows / base.rows
            found.append(
                {
                    "row": other.name,
                    "compared": how,
                    "full_rows": rows,
                    "tokens_each": cached if other is base else kept,
                    "kv_bytes": held[other.name],
                    "ms": 1e3 * step,
                    "tokens_per_s": other.rows / step,
                    "throughput_to_full": faster,
                }
            )
    return found


def show_curves(found: dict[str, Any], shape: str) -> None:
    """Print the curves of one shape to stderr."""
    level = found["flat"]
    by_interval = {(row["interval"], row["side"]): digits(row["ms"]) for row in found["intervals"]}
    show(
        [[digits(ms) for ms in level["windows_ms"]]],
        f"{shape}: {level['steps']} steps at {level['kept']} kept, slope over all of them {level['slope']:+.1%}",
        [f"window {number}, ms" for number in range(1, WINDOWS + 1)],
    )
    show(
        [[str(at), *(by_interval.get((at, side), "-") for side in (OURS, KVPRESS))] for at in INTERVALS],
        f"{shape}: mean step by refresh interval, ms",
        ("interval", "ours", "kvpress, TOVA"),
    )
    show(
        [
            (
                row["row"],
                row["compared"],
                str(row["tokens_each"]),
                digits(row["kv_bytes"] / 2**20),
                digits(row["ms"]),
                digits(row["tokens_per_s"]),
                f"{row['throughput_to_full']:.2f}",
            )
            for row in found["batches"]
        ],
        f"{shape}: batch rows",
        ("row", "compared", "tokens each", "K+V MiB", "ms a step", "tokens/s", "x full"),
    )
