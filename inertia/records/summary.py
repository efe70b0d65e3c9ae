"""The few numbers a sealed cell is known by."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from inertia.records.attempts import rows_sha256
from inertia.records.schema import SCHEMA_VERSION
from inertia.statistics.interval import interval


def summarise(manifest: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], attempts: int) -> dict[str, Any]:
    """Return the summary of a cell from its settled rows.

    The denominator is the plan: as long as one planned example is not ok, `score` and `metrics` are null, for
    a mean over the survivors would be another number. Examples that share a `group_id` are resampled
    together. `attempts` counts every recorded row, failed ones included. Times are each row's share of its
    batch.
    """
    settled = list(rows)
    ok = [row for row in settled if row["status"] == "ok"]
    complete = len(ok) == len(manifest["planned"])
    return {
        "schema_version": SCHEMA_VERSION,
        "cell_id": manifest["cell_id"],
        "identity_sha256": manifest["identity_sha256"],
        "label": manifest["label"],
        "status": "complete" if complete else "incomplete",
        "planned": len(manifest["planned"]),
        "ok": len(ok),
        "failed": len(settled) - len(ok),
        "attempts": attempts,
        "score": _score(ok) if complete else None,
        "metrics": _metrics(ok) if complete else None,
        "totals": {
            **{name: _over(sum, ok, name) for name in ("prompt_tokens", "new_tokens", "evictions", "truncated")},
            **{name: _seconds(ok, name) for name in ("prefill_seconds", "decode_seconds")},
        },
        "maxima": {name: _over(max, ok, name) for name in ("peak_tokens", "cache_bytes")},
        "mean_retained_tokens": _over(_mean, ok, "retained_tokens"),
        "rows_sha256": rows_sha256(settled),
    }


def _score(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    groups = [row["group_id"] for row in rows]
    clusters = groups if len(set(groups)) < len(groups) else None
    result = interval([row["score"] for row in rows], clusters=clusters)
    return asdict(result) if result is not None else None


def _metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in json.loads(row["metrics"]).items():
            if isinstance(value, int | float):
                values.setdefault(name, []).append(value)
    return {name: {"mean": _mean(found), "n": len(found)} for name, found in sorted(values.items())}


def _over(fold: Callable[[list[Any]], Any], rows: Sequence[Mapping[str, Any]], name: str) -> Any:
    present = [row[name] for row in rows if row[name] is not None]
    return fold(present) if present else None


def _seconds(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    shares = [row[name] / (row["batch_rows"] if row["batch_rows"] else 1) for row in rows if row[name] is not None]
    return sum(shares) if shares else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
