"""Ten thousand cells and a million rows: the times are printed, only the results are checked.

`pytest -m slow -s tests/test_records_scale.py` shows the figures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pytest

from inertia.records import cell_id, export, identity_sha256, read_samples, sample_table, verify
from inertia.records.attempts import rows_sha256
from inertia.records.canonical import canonical_json
from inertia.records.progress import plan_sha256
from inertia.records.read import survey
from inertia.records.schema import make_row
from inertia.records.store import open_store
from inertia.records.summary import summarise

EXAMPLES = 100
TASKS = ("vt", "cwe", "fwe", "niah_single_1", "niah_multikey_2")
POLICIES = 20
CELLS_A_FILE = 500
NOBODY = "c00000000000"
T = TypeVar("T")


def write_root(root: Path, cells: int) -> None:
    """Write sealed cells as the writer would, but many to a transaction.

    The rows of five cells are made and summarised in full; the others differ from one of them in the cell's id, and
    `verify` says that their hashes are right.
    """
    models = {task: [row(task, index) for index in range(EXAMPLES)] for task in TASKS}
    texts = {task: [canonical_json(each) for each in rows] for task, rows in models.items()}
    summaries: dict[str, dict[str, Any]] = {}
    provenance = canonical_json({"packages": {f"package{place}": "1.2.3" for place in range(60)}})
    session = {"id": "s1", "started": "2026-01-01T00:00:00+00:00", "ended": None, "status": "ended", "error": None}
    for start in range(0, cells, CELLS_A_FILE):
        rows: dict[str, list[dict[str, Any]]] = {"cell": [], "sample": [], "seal": []}
        for place in range(start, min(cells, start + CELLS_A_FILE)):
            task, policy = TASKS[place % len(TASKS)], place // len(TASKS) % POLICIES
            manifest = manifest_of(task, policy, seed=place // (len(TASKS) * POLICIES))
            about = {name: manifest[name] for name in ("cell_id", "identity_sha256", "label")}
            if task not in summaries:
                summaries[task] = summarise(manifest, models[task], EXAMPLES)
            own = [text.replace(NOBODY, manifest["cell_id"]) for text in texts[task]]
            summary = {**summaries[task], **about, "rows_sha256": rows_sha256(own)}
            rows["cell"].append(
                {
                    "id": manifest["cell_id"],
                    "label": manifest["label"],
                    "identity": canonical_json(manifest.pop("identity")),
                    "planned": canonical_json(planned := manifest.pop("planned")),
                    "manifest": canonical_json(manifest),
                    "written": session["started"],
                    "session": "s1",
                }
            )
            rows["sample"] += [
                {
                    "cell": manifest["cell_id"],
                    "example": each["example_id"],
                    "attempt": 1,
                    "session": "s1",
                    "batch": "b1",
                    "status": "ok",
                    "score": each["score"],
                    "row": text,
                }
                for each, text in zip(models[task], own, strict=True)
            ]
            seal = {"cell": manifest["cell_id"], "plan_sha256": plan_sha256(planned), "session": "s1"}
            rows["seal"].append({**seal, "rows_sha256": summary["rows_sha256"], "summary": canonical_json(summary)})
        with open_store(root, f"job-{start:05d}") as store:
            store.write(session=[{**session, "provenance": provenance}], **rows)


def manifest_of(task: str, policy: int, seed: int) -> dict[str, Any]:
    """Return a manifest of usual size; policy 0 is the full cache."""
    about = {
        "score_version": 1,
        "backbone": {"source": "embedded", "dtype": "float32", "sha256": "b" * 64},
        "benchmark": {"name": "ruler", "task": task, "length": 1024, "seed": 42, "wording_sha256": "f" * 64},
        "policy": {
            "scorer": {"kind": "attention"},
            "aggregation": {"kind": "coupled_ema", "alpha": policy / POLICIES if policy else None},
            "budget": {"kind": "ratio", "compression_ratio": 0.9} if policy else {"kind": "unlimited"},
            "protect": {"sinks": 0, "recent": 0, "question": False},
        },
        "seed": seed,
    }
    return {
        "schema_version": 1,
        "cell_id": cell_id(about),
        "label": f"smollm2-135m__ema-{policy / POLICIES}__{task}-1024",
        "identity_sha256": identity_sha256(about),
        "identity": about,
        "config": {"backbone": {"name": "smollm2-135m"}, "label": "ema"},
        "planned": [f"{task}/1024/{index:04d}" for index in range(EXAMPLES)],
    }


def row(task: str, index: int) -> dict[str, Any]:
    return make_row(
        {
            "schema_version": 1,
            "cell_id": NOBODY,
            "example_id": f"{task}/1024/{index:04d}",
            "task": task,
            "length": 1024,
            "index": index,
            "status": "ok",
            "attempt": 1,
            "prediction": f" The special number is {index * 7919 % 10_000}.",
            "references": ["7421"],
            "score": (index + len(task)) % 5 / 4,
            "metrics": {"precision": 0.5, "references_found": 1},
            "prompt_tokens": 900,
            "new_tokens": 16,
            "tokens": [index * place % 49_152 for place in range(16)],
            "stop": "eos",
            "budget_tokens": 90,
            "retained_tokens": 90.0,
            "peak_tokens": 91,
            "cache_bytes": 4_147_200,
            "evictions": 800,
            "truncated": False,
            "prompt_sha256": f"{index:064x}",
            "prefill_seconds": 0.5,
            "decode_seconds": 0.25,
            "batch_rows": 4,
            "telemetry": {"decoded_with": "b00000000000", "context_tokens": 850},
        }
    )


def timed(what: str, run: Callable[[], T]) -> T:
    wall, cpu = time.perf_counter(), time.process_time()
    result = run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{what:<58}{wall:8.2f} s {cpu:8.2f} s of this process's CPU time")
    return result


def measure(root: Path, cells: int) -> None:
    """Run each reader over the records; check that they agree, print what they took."""
    runs = root / "runs"
    print(f"\n{cells} cells of {EXAMPLES} rows, load {os.getloadavg()}")
    timed("write the records", lambda: write_root(runs, cells))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    words = [sys.executable, "-m", "inertia.records", "list", "--root", str(runs)]
    done = timed(
        "python -m inertia.records list, in a process of its own",
        lambda: subprocess.run(words, env=environment, capture_output=True, text=True, check=True),
    )
    assert len(done.stdout.splitlines()) == cells + 1 and done.stderr == f"{cells} cells: {cells} complete\n"
    assert len(timed("survey of every cell", lambda: survey(runs))[0]) == cells
    few = ["task", "score"]
    frame = timed("pandas, 2 columns and identity", lambda: read_samples(runs, columns=few, check=False))
    keys = ["policy.aggregation.alpha", "task"]
    means = timed("group-by mean per (policy, task)", lambda: frame.groupby(keys)["score"].mean())
    assert len(frame) == cells * EXAMPLES and len(means) == min(cells, len(TASKS) * POLICIES)
    expected = {task: sum((index + len(task)) % 5 / 4 for index in range(EXAMPLES)) / EXAMPLES for task in TASKS}
    assert all(mean == pytest.approx(expected[task]) for (_, task), mean in means.items())
    table = timed("arrow, 2 columns and identity", lambda: sample_table(runs, columns=few))
    assert table.num_rows == cells * EXAMPLES
    intact, damages = timed("verify: every hash, seal and identity", lambda: verify(runs))
    assert len(intact) == cells and damages == []
    if cells <= 1000:
        whole = timed("pandas, all columns", lambda: read_samples(runs, check=False))
        pd.testing.assert_frame_equal(whole, timed("pandas, all columns, checked", lambda: read_samples(runs)))
        path = root / "all.parquet"
        timed("export", lambda: export(runs, [cell.id for cell in intact], path))
        pd.testing.assert_frame_equal(timed("parquet: all columns", lambda: read_samples(path, check=False)), whole)
        plain = timed("parquet: pandas alone", lambda: pd.read_parquet(path, columns=["policy", *few]))
        assert len(plain) == len(whole)


def test_readers_agree_on_a_few_cells(tmp_path: Path) -> None:
    measure(tmp_path, 40)


@pytest.mark.slow
@pytest.mark.parametrize("cells", [1_000, 10_000])
def test_a_thousand_and_ten_thousand_cells(tmp_path: Path, cells: int) -> None:
    measure(tmp_path, cells)
