"""Small experiments with scores that are known by construction, in memory and on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from inertia.records import cell_id, open_cell
from inertia.records.writer import writing
from inertia.reports.index import Cell, Index
from inertia.reports.provenance import Provenance
from inertia.reports.source import Source

ALPHAS = (0.0, 0.3, 0.6, 0.8, 0.9, 0.95)
LABEL = "Tiny-1M, exact, fp32"
Scores = Mapping[tuple[str, float | None], Sequence[float | None]]
"""(task, alpha or None for the full cache) -> score of each example; None for one that failed."""


def needle_scores(tasks: Sequence[str] = ("niah_single_1", "vt", "niah_noise_3keys"), n: int = 8) -> dict:
    """The first floor(alpha * n) examples are solved; the full cache solves all but the last."""
    return {
        (task, alpha): [float(i < (n - 1 if alpha is None else int(alpha * n))) for i in range(n)]
        for task in tasks
        for alpha in (None, *ALPHAS)
    }


def memory_source(scores: Scores, length: int = 1024) -> Source:
    """A source without files."""
    cells, rows = [], []
    for number, ((task, alpha), values) in enumerate(scores.items()):
        name = f"c{number:011x}"
        cells.append(Cell(name, _axes(alpha), task, length, len(values)))
        rows += [
            {
                "cell_id": name,
                "example_id": f"{task}/{length}/{i:04d}",
                "task": task,
                "index": i,
                "status": "failed" if value is None else "ok",
                "score": value,
                "policy.aggregation.alpha": "none" if alpha is None else alpha,
                "policy.budget.compression_ratio": "none" if alpha is None else 0.9,
            }
            for i, value in enumerate(values)
        ]
    index = Index("table05", "laptop", "laptop", "tiny", LABEL, tuple(cells))
    return Source(
        index,
        pd.DataFrame(rows),
        Provenance("0123456789abcdef" * 2 + "01234567", "2026-01-02T03:04:05+00:00"),
    )


def write_runs(results: Path, scores: Scores, profile: str = "laptop", length: int = 1024) -> list[str]:
    """Run cells through the record keeper into results/runs, with their index; returns the cell ids."""
    entries = []
    for (task, alpha), values in scores.items():
        identity = {
            "score_version": 1,
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
        ) as cell:
            for i, value in enumerate(values):
                if planned[i] in cell.good:
                    continue
                if value is None:
                    cell.append_failure(planned[i], i, "it broke", task=task, length=length)
                else:
                    row = {"example_id": planned[i], "task": task, "length": length, "index": i}
                    cell.append(
                        {**row, "prediction": "x", "references": ["x"], "tokens": [1], "score": value}
                    )
            if not cell.missing:
                cell.seal()
        entries.append(
            {
                "cell_id": cell_id(identity),
                "axes": _axes(alpha),
                "task": task,
                "length": length,
                "planned": len(values),
                "scale": profile,
                "backbone": "tiny",
                "backbone_label": LABEL,
                "profile": profile,
            }
        )
    list_entries(results / "runs", "table05", profile, entries)
    return [entry["cell_id"] for entry in entries]


def list_entries(runs: Path, experiment: str, profile: str, entries: Sequence[Mapping]) -> None:
    """List cells in an experiment as a run does."""
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    key = {"experiment": experiment, "profile": profile, "listed": now}
    with writing(runs, "local", dict) as writer:
        writer.write(
            listing=[{**key, "cell": each["cell_id"], "entry": json.dumps(each)} for each in entries]
        )


def _axes(alpha: float | None) -> dict:
    return {"method": "full_cache" if alpha is None else "inertiakv", "alpha": alpha}
