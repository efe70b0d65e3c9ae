"""From what was measured to the table's rows and the targets, as JSON-able figures and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from bench.cases import FULL_REFRESH, KVPRESS, KVPRESS_TOVA, LAZY_4, OURS, SCORE_FREE, TOVA
from bench.figures import paired, share_beyond
from bench.measure import Measured
from bench.plain import FLOORS
from bench.show import digits

MIB = 2**20
# What we want of ourselves: (shape or None for all, kept, row, the row it is compared with, most allowed ratio).
TARGETS: Sequence[tuple[str | None, int, str, str, float]] = (
    *((None, kept, FULL_REFRESH, "floor", 1.10) for kept in (1024, 4096)),
    *((None, kept, row, "floor", 1.05) for kept in (1024, 4096) for row in (LAZY_4, SCORE_FREE)),
    *((shape, 4096, TOVA, KVPRESS_TOVA, 1 / 4) for shape in ("4-layers", "llama-8b-4-layers")),
    ("smollm2-135m", 4096, TOVA, KVPRESS_TOVA, 1 / 2.5),
)


def target(shape: str, kept: int | None, what: str, ratio: float, most: float) -> dict[str, Any]:
    """Return a target, and whether it is met: a ratio, of which least is best."""
    return {"shape": shape, "kept": kept, "what": what, "ratio": ratio, "most": most, "met": ratio <= most}


def floor_of(found: Sequence[Measured], rows: int = 1) -> Measured | None:
    """Return the fastest plain row over a fixed number of slots, for so many batch rows; None where there is none."""
    candidates = [
        row for row in found if row.seconds and row.case.kind in FLOORS and row.case.rows == rows and not row.left_out
    ]
    return min(candidates, key=Measured.cost, default=None)


def rows_of(
    found: Sequence[Measured], speeds: Sequence[float], *, shape: str, kept: int, weights: int, token: int
) -> list[dict[str, Any]]:
    """Return one JSON-able row of figures per row measured.

    Args:
        found: what was measured.
        speeds: of the memory, bytes per second, one per repeat.
        shape: name of the model's shape.
        kept: tokens.
        weights: bytes of weights that a step reads.
        token: bytes of one token's keys and values.
    """
    free = next((row for row in found if row.case.name == SCORE_FREE and row.seconds), None)
    # What the memory can do is its best repeat: others read as well while something else ran.
    speed = max(speeds, default=None)
    rows = []
    for row in found:
        case, batch = row.case, row.case.rows
        entry: dict[str, Any] = {"shape": shape, "kept": kept, "row": case.name, "rows": batch}
        rows.append(entry)
        if row.left_out is not None or not row.seconds:
            entry |= {"left_out": row.left_out or "not measured", "failed": row.failed}
            continue
        floor, costs = floor_of(found, batch), row.costs()
        # The weights once, and each row's keys and values once.
        size = weights + token * kept * batch
        scored = case.side == OURS and case.evicts and batch == 1
        entry |= {
            "ms": 1e3 * row.cost(),
            "quartiles_ms": [1e3 * row.cost(share) for share in (0.25, 0.75)],
            "repeats_ms": [1e3 * value for value in costs],
            "steps": sum(map(len, row.seconds)),
            "period": case.period,
            "floor": floor and floor.case.name,
            "to_floor": floor and median(paired(costs, floor.costs())),
            "score_share": share_beyond(costs, free.costs()) if scored and free is not None else None,
            "kv_bytes": row.held,
            "peak_bytes": row.peak,
            "live": row.live,
            "step_bytes": size,
            "roofline_ms": speed and 1e3 * size / speed,
            "bandwidth_share": speed and size / row.cost() / speed,
            "checks": row.checks,
        }
    return rows


def targets_of(found: Sequence[Measured], *, shape: str, kept: int) -> list[dict[str, Any]]:
    """Return which of the design's targets these rows meet."""
    by_name = {row.case.name: row for row in found if row.seconds and row.left_out is None}
    by_name["floor"] = floor_of(found)
    met = []
    for of_shape, of_kept, name, against, most in TARGETS:
        one, other = by_name.get(name), by_name.get(against)
        if of_shape in (None, shape) and of_kept == kept and one and other:
            ratio = median(paired(one.costs(), other.costs()))
            met.append(target(shape, kept, f"{name} / {against}", ratio, most))
    return met


def faults(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what failed, in words; how far kvpress agrees with us is shown, but is no fault of a row."""
    return [
        f"{row['shape']}, {row['kept']} kept, {row['row']}: {problem}"
        for row in rows
        if not row["row"].startswith(KVPRESS)
        for problem in problems(row)
    ]


def problems(row: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a row: an error that it raised, or checks that failed."""
    if "left_out" in row:
        return [row["left_out"]] if row["failed"] else []
    return [f"not equal ({name})" for name, good in row["checks"].items() if not good]


COLUMNS = (
    "row",
    "ms a step",
    "quartiles",
    "x floor",
    "live",
    "K+V MiB",
    "peak MiB",
    "in scores",
    "must read MiB",
    "of bandwidth",
    "checks",
)


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a row as printed under COLUMNS."""

    def text(value: float | None, form: str = "{:.0%}") -> str:
        return "-" if value is None else form.format(value)

    if "left_out" in row:
        return (row["row"], *("-",) * 9, f"left out: {row['left_out']}")
    low, high = row["quartiles_ms"]
    each = "" if row["rows"] == 1 else f" ({digits(row['ms'] / row['rows'])} each)"
    bad = [name for name, good in row["checks"].items() if not good]
    return (
        row["row"],
        digits(row["ms"]) + each,
        f"{digits(low)} to {digits(high)}",
        text(row["to_floor"], "{:.2f}"),
        f"{row['live']:.0f}",
        digits(row["kv_bytes"] / MIB),
        "-" if row["peak_bytes"] is None else digits(row["peak_bytes"] / MIB),
        text(row["score_share"]),
        digits(row["step_bytes"] / MIB),
        text(row["bandwidth_share"]),
        f"not equal: {', '.join(bad)}" if bad else f"{len(row['checks'])} equal",
    )
