"""Small experiments with scores that are known by construction, in memory and on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inertia.records import cell_id, open_cell
from inertia.records.writer import writing
from inertia.reports.source import Cell, Source

ALPHAS = (0.0, 0.3, 0.6, 0.8, 0.9, 0.95)
LABEL = "Tiny-1M, exact, fp32"
COMMIT = "0123456789abcdef" * 2 + "01234567"
Scores = Mapping[tuple[str, float | None], Sequence[float | None]]
"""(task, alpha or None for the full cache) -> score of each example; None for one that failed."""


def needle_scores(tasks: Sequence[str] = ("niah_single_1", "vt", "niah_noise_3keys"), n: int = 8) -> dict:
    """The first floor(alpha * n) examples are solved; the full cache solves all but the last."""
    return {
        (task, alpha): [float(i < (n - 1 if alpha is None else int(alpha * n))) for i in range(n)]
        for task in tasks
        for alpha in (None, *ALPHAS)
    }


def sample(task: str, length: int | None, index: int, score: float, **columns: Any) -> dict[str, Any]:
    """A finished example's record, as far as reports read it."""
    said = {"truncated": False, "retained_tokens": 100.0, "cache_bytes": 2**20, **columns}
    return {"example_id": f"{task}/{length}/{index:04d}", "index": index, "status": "ok", "score": score, **said}


def cell(
    number: int, values: Sequence[float | None], *, columns: Callable[[int], dict] = lambda i: {}, **settings: Any
) -> Cell:
    """A cell of one policy on one task; None is an example that failed, and is no sample."""
    said = {"backbone": "tiny", "benchmark": "ruler", "length": 1024, "alpha": None, "compression_ratio": 0.9}
    said |= {"question_visible": True, "policy": settings["method"], **settings}
    if said["method"] == "full_cache":
        said |= {"alpha": None, "compression_ratio": None, "question_visible": None}
    task, length = said["task"], said["length"]
    samples = tuple(sample(task, length, i, v, **columns(i)) for i, v in enumerate(values) if v is not None)
    return Cell(f"c{number:011x}", said, len(values), samples)


def source_of(cells: Iterable[Cell], experiment: str = "mine") -> Source:
    """An experiment in memory."""
    return Source(experiment, "laptop", "tiny", LABEL, tuple(cells), COMMIT, "2026-01-02T03:04:05+00:00")


def memory_source(scores: Scores, length: int = 1024) -> Source:
    """The alpha sweep in memory."""
    return source_of(
        (
            cell(number, values, task=task, length=length, alpha=alpha, policy=policy(alpha), method=method(alpha))
            for number, ((task, alpha), values) in enumerate(scores.items())
        ),
        "table05",
    )


def method(alpha: float | None) -> str:
    """The method of a row of the sweep."""
    return "full_cache" if alpha is None else "inertiakv"


def policy(alpha: float | None) -> str:
    """The policy of a row of the sweep."""
    return "full_cache" if alpha is None else f"inertiakv (alpha={alpha:g})"


def entry(frame, **wanted):
    """The one row of a tidy frame with these values; None is a missing one."""
    rows = frame
    for column, value in wanted.items():
        rows = rows[rows[column].isna() if value is None else (rows[column] == value).fillna(False)]
    assert len(rows) == 1, f"{len(rows)} rows for {wanted}"
    return rows.iloc[0]


def grid_rows(report) -> dict[str, tuple]:
    """A report's printed rows by label."""
    return {row.label: row.cells for row in report.grid.rows}


def write_runs(
    results: Path, scores: Scores, profile: str = "laptop", length: int = 1024, score_version: int = 1
) -> list[str]:
    """Run cells through the record keeper into results/runs, with their index; returns the cell ids."""
    entries = []
    for (task, alpha), values in scores.items():
        identity = {
            "score_version": score_version,
            "backbone": {"name": "tiny"},
            "benchmark": {"name": "ruler", "task": task, "length": length},
            "policy": {
                "aggregation": {"kind": "ema", "alpha": alpha},
                "budget": {"kind": "ratio", "compression_ratio": None if alpha is None else 0.9},
            },
            "seed": 0,
        }
        planned = [f"{task}/{length}/{i:04d}" for i in range(len(values))]
        provenance = {"code": {"commit": "ab" * 20, "dirty": False, "diff_sha256": None}}
        with open_cell(
            results / "runs", identity, label=f"{task}", planned=planned, config={}, provenance=provenance
        ) as opened:
            for i, value in enumerate(values):
                if planned[i] in opened.good:
                    continue
                if value is None:
                    opened.append_failure(planned[i], i, "it broke", task=task, length=length)
                else:
                    row = {"example_id": planned[i], "task": task, "length": length, "index": i}
                    opened.append({**row, "prediction": "x", "references": ["x"], "tokens": [1], "score": value})
            if not opened.missing:
                opened.seal()
        axes = {"method": method(alpha), "alpha": alpha, "aggregation.alpha": alpha}
        axes["budget.compression_ratio"] = None if alpha is None else 0.9
        about = {"scale": profile, "backbone": "tiny", "backbone_label": LABEL, "profile": profile}
        place = {"task": task, "length": length, "planned": len(values)}
        entries.append({"cell_id": cell_id(identity), "axes": axes, **place, **about})
    list_entries(results / "runs", "table05", profile, entries)
    return [listed["cell_id"] for listed in entries]


def list_entries(runs: Path, experiment: str, profile: str, entries: Iterable[Mapping[str, Any]]) -> None:
    """List cells in an experiment as a run does."""
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    key = {"experiment": experiment, "profile": profile, "listed": now}
    with writing(runs, "local", dict) as writer:
        writer.write(listing=[{**key, "cell": each["cell_id"], "entry": json.dumps(each)} for each in entries])
