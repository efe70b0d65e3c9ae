"""From what was measured to the table's rows, the targets, and what is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from inertia.bench import bandwidth
from inertia.bench.cases import (
    FULL_REFRESH,
    KVPRESS,
    KVPRESS_TOVA,
    LAZY_4,
    OURS,
    SCORE_FREE,
    TOVA,
)
from inertia.bench.figures import paired, share_beyond
from inertia.bench.measure import Measured
from inertia.bench.plain import FLOORS

MIB = 2**20
# What we want of ourselves: (shape or None for all, kept, row, the row it is compared with, most allowed ratio).
TARGETS: Sequence[tuple[str | None, int, str, str, float]] = (
    *((None, kept, FULL_REFRESH, "floor", 1.10) for kept in (1024, 4096)),
    *((None, kept, row, "floor", 1.05) for kept in (1024, 4096) for row in (LAZY_4, SCORE_FREE)),
    *((shape, 4096, TOVA, KVPRESS_TOVA, 1 / 4) for shape in ("4-layers", "llama-8b-4-layers")),
    ("smollm2-135m", 4096, TOVA, KVPRESS_TOVA, 1 / 2.5),
)


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
        entry: dict[str, Any] = {"shape": shape, "kept": kept, "row": row.case.name, "rows": row.case.rows}
        if row.left_out is not None or not row.seconds:
            rows.append({**entry, "left_out": row.left_out or "not measured", "failed": row.failed})
            continue
        floor = floor_of(found, row.case.rows)
        size = bandwidth.step_bytes(weights, token, kept, row.case.rows)
        scored = row.case.side == OURS and row.case.evicts and row.case.rows == 1
        rows.append(
            {
                **entry,
                "ms": 1e3 * row.cost(),
                "quartiles_ms": [1e3 * row.cost(share) for share in (0.25, 0.75)],
                "repeats_ms": [1e3 * value for value in row.costs()],
                "steps": sum(map(len, row.seconds)),
                "period": row.case.period,
                "floor": None if floor is None else floor.case.name,
                "to_floor": None if floor is None else median(paired(row.costs(), floor.costs())),
                "score_share": share_beyond(row.costs(), free.costs()) if scored and free is not None else None,
                "kv_bytes": row.held,
                "peak_bytes": row.peak,
                "live": row.live,
                "step_bytes": size,
                "roofline_ms": None if speed is None else 1e3 * bandwidth.roofline_seconds(size, speed),
                "bandwidth_share": None if speed is None else bandwidth.bandwidth_share(size, row.cost(), speed),
                "checks": row.checks,
            }
        )
    return rows


def targets_of(found: Sequence[Measured], *, shape: str, kept: int) -> list[dict[str, Any]]:
    """Return which of the design's targets these rows meet."""
    by_name = {row.case.name: row for row in found if row.seconds and row.left_out is None}
    floor = floor_of(found)
    met = []
    for of_shape, of_kept, name, against, most in TARGETS:
        other = floor if against == "floor" else by_name.get(against)
        if of_shape not in (None, shape) or of_kept != kept or other is None or name not in by_name:
            continue
        ratio = median(paired(by_name[name].costs(), other.costs()))
        named = f"{name} / {'floor' if against == 'floor' else against}"
        met.append({"shape": shape, "kept": kept, "what": named, "ratio": ratio, "most": most, "met": ratio <= most})
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


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a row as printed."""
    if "left_out" in row:
        return (row["row"], *("-",) * 9, f"left out: {row['left_out']}")
    low, high = row["quartiles_ms"]
    each = "" if row["rows"] == 1 else f" ({digits(row['ms'] / row['rows'])} each)"
    bad = [name for name, good in row["checks"].items() if not good]
    return (
        row["row"],
        digits(row["ms"]) + each,
        f"{digits(low)} to {digits(high)}",
        "-" if row["to_floor"] is None else f"{row['to_floor']:.2f}",
        f"{row['live']:.0f}",
        digits(row["kv_bytes"] / MIB),
        "-" if row["peak_bytes"] is None else digits(row["peak_bytes"] / MIB),
        "-" if row["score_share"] is None else f"{row['score_share']:.0%}",
        digits(row["step_bytes"] / MIB),
        "-" if row["bandwidth_share"] is None else f"{row['bandwidth_share']:.0%}",
        f"not equal: {', '.join(bad)}" if bad else f"{len(row['checks'])} equal",
    )


def digits(value: float) -> str:
    """Return a positive number with about three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


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


def printed(rows: Sequence[Mapping[str, Any]], title: str, columns: Sequence[str] = COLUMNS, of: Any = cells) -> None:
    """Print rows as a table to stderr.

    Args:
        rows: to print.
        title: above.
        columns: names, the first one and the last one flush left.
        of: returns the printed columns of a row.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        left = number == 0 or column == "checks"
        table.add_column(column, justify="left" if left else "right", overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*of(row))
    console = Console(stderr=True)
    # A log file has no width of its own, and a folded table is hard to read there.
    (console if console.is_terminal else Console(stderr=True, width=180)).print(table)
