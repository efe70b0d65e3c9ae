"""Curves: time over thousands of steps, over the refresh interval, and over batch rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from inertia.bench import plain
from inertia.bench.cases import KVPRESS, OURS, PLAIN, Case, together
from inertia.bench.figures import paired, slope, typical, windows
from inertia.bench.kvpress_side import KVPressFailed
from inertia.bench.measure import Setting, once
from inertia.bench.runs import LEAD
from inertia.bench.table import digits, printed

WINDOWS = 10
INTERVALS = (1, 2, 4, 8, 16, 32, 64, 128)
# A tenth of the tokens stays, so ten rows of ours take the memory of one full row.
REMOVED = 0.9
BATCHES = (1, 4)


def flat(setting: Setting, steps: int) -> dict[str, Any]:
    """Return the medians of ten windows over many steps of full refresh, and their slope."""
    from inertia.methods import preset

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


def intervals(setting: Setting, repeats: int, tick: Callable[[str], None] = lambda name: None) -> list[dict[str, Any]]:
    """Return the mean step by refresh interval, ours and kvpress's, whole periods only.

    Ours evicts at every step and scores every r-th; kvpress scores and evicts every r-th step, and holds up to r - 1
    tokens more than asked for in between.
    """
    from inertia.methods import preset

    named = [
        (interval, preset("inertiakv_lazy", tokens=setting.kept, interval=interval)) for interval in INTERVALS
    ]
    seconds: dict[tuple[str, int], list[list[float]]] = {}
    for _ in range(repeats):
        for interval, policy in named:
            longer = replace(setting, steps=max(setting.steps, 2 * interval))
            times, _ = once(Case("ours", OURS, policies=(policy,)), longer)
            seconds.setdefault((OURS, interval), []).append(times)
            if setting.kvpress is not None:
                try:
                    length = setting.length(Case("kvpress", KVPRESS))
                    times, _ = setting.kvpress.run("tova", setting.kept, length, longer.steps, interval)
                    seconds.setdefault((KVPRESS, interval), []).append(times)
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


def batches(
    setting: Setting, cached: int, repeats: int, tick: Callable[[str], None] = lambda name: None
) -> list[dict[str, Any]]:
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
    less = {rows: together(kept, rows) for rows in sorted({*BATCHES, *(10 * rows for rows in BATCHES)})}
    seconds: dict[str, list[list[float]]] = {}
    held: dict[str, int] = {}
    for _ in range(repeats):
        for case, size in [*((one, cached) for one in full.values()), *((one, kept) for one in less.values())]:
            times, run = once(case, replace(setting, kept=size))
            seconds.setdefault(case.name, []).append(times)
            held[case.name] = run.held
            tick(case.name)

    def costs(case: Case) -> list[float]:
        return [median(times) for times in seconds[case.name]]

    found = []
    for rows, base in full.items():
        for other, how in ((base, "full"), (less[rows], "equal batch"), (less[10 * rows], "equal memory")):
            faster = median(paired(costs(base), costs(other))) * other.rows / base.rows
            found.append(
                {
                    "row": other.name,
                    "compared": how,
                    "full_rows": rows,
                    "tokens_each": cached if other is base else kept,
                    "kv_bytes": held[other.name],
                    "ms": 1e3 * median(sum(seconds[other.name], [])),
                    "tokens_per_s": other.rows / median(sum(seconds[other.name], [])),
                    "throughput_to_full": faster,
                }
            )
    return found


def show(found: dict[str, Any], shape: str) -> None:
    """Print the curves of one shape to stderr."""
    level = found["flat"]
    printed(
        [level],
        f"{shape}: {level['steps']} steps at {level['kept']} kept, slope over all of them {level['slope']:+.1%}",
        [f"window {number + 1}, ms" for number in range(WINDOWS)],
        lambda row: [digits(value) for value in row["windows_ms"]],
    )
    printed(
        by_interval(found["intervals"]),
        f"{shape}: mean step by refresh interval, ms",
        ("interval", "ours", "kvpress, TOVA"),
        lambda row: (str(row["interval"]), *(digits(row[side]) if side in row else "-" for side in (OURS, KVPRESS))),
    )
    printed(
        found["batches"],
        f"{shape}: batch rows",
        ("row", "compared", "tokens each", "K+V MiB", "ms a step", "tokens/s", "x full"),
        lambda row: (
            row["row"],
            row["compared"],
            str(row["tokens_each"]),
            digits(row["kv_bytes"] / 2**20),
            digits(row["ms"]),
            digits(row["tokens_per_s"]),
            f"{row['throughput_to_full']:.2f}",
        ),
    )


def by_interval(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per interval, with the milliseconds of each side under its name."""
    return [
        {"interval": interval, **{row["side"]: row["ms"] for row in rows if row["interval"] == interval}}
        for interval in dict.fromkeys(row["interval"] for row in rows)
    ]
