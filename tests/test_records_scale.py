"""Ten thousand cells and a million rows: the times are printed, only the results are checked.

`pytest -m slow -s tests/test_records_scale.py` shows the figures.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from inertia.records.columnar import sample_table
from inertia.records.compact import compact
from inertia.records.facts import read_facts
from inertia.records.layout import MANIFEST, SAMPLES, SUMMARY
from inertia.records.settle import TRANSPORT_COLUMNS, rows_sha256

from inertia.records import cell_id, identity_sha256, read_cells, read_samples, sample_schema
from inertia.records.canonical import canonical_json
from inertia.records.schema import make_row
from inertia.records.summary import summarise
from inertia.records.verify import check

EXAMPLES = 100
TASKS = ("vt", "cwe", "fwe", "niah_single_1", "niah_multikey_2")
POLICIES = 20
NOBODY = "c00000000000"
T = TypeVar("T")


def write_tree(root: Path, cells: int) -> None:
    """Write sealed cells as the writer would, but without its fsyncs and journals.

    The rows of five cells are made, hashed and summarised in full; the others differ from one of them in the cell's id,
    and `check` says that their hashes are right.
    """
    models = [[row(TASKS[place], index) for index in range(EXAMPLES)] for place in range(len(TASKS))]
    tables = [pa.Table.from_pylist(rows, schema=sample_schema()) for rows in models]
    lines = ["\n".join(sorted(map(canonical, rows))) for rows in models]
    assert [hash_of(text, NOBODY) for text in lines] == [rows_sha256(rows) for rows in models]
    summaries: dict[str, dict[str, Any]] = {}
    for place in range(cells):
        kind, policy = place % len(TASKS), place // len(TASKS) % POLICIES
        manifest = manifest_of(TASKS[kind], policy, seed=place // (len(TASKS) * POLICIES))
        about = {key: manifest[key] for key in ("cell_id", "identity_sha256", "label")}
        if TASKS[kind] not in summaries:
            summaries[TASKS[kind]] = summarise(manifest, models[kind], EXAMPLES)
        ids = pa.array([manifest["cell_id"]] * EXAMPLES, pa.string())
        field = sample_schema().field("cell_id")
        table = tables[kind].set_column(sample_schema().get_field_index("cell_id"), field, ids)
        folder = root / f"{manifest['label'].replace('__', '_')}__{manifest['cell_id']}"
        folder.mkdir(parents=True)
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        pq.write_table(table, folder / SAMPLES, compression="zstd")
        summary = {**summaries[TASKS[kind]], **about, "rows_sha256": hash_of(lines[kind], manifest["cell_id"])}
        (folder / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")


def canonical(row: dict[str, Any]) -> str:
    return canonical_json({name: value for name, value in row.items() if name not in TRANSPORT_COLUMNS})


def hash_of(lines: str, cell: str) -> str:
    return hashlib.sha256(lines.replace(NOBODY, cell).encode("ascii")).hexdigest()


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
    session = {"started": "2026-01-01T00:00:00+00:00", "ended": None, "status": "complete", "error": None}
    return {
        "schema_version": 1,
        "cell_id": cell_id(about),
        "label": f"smollm2-135m__ema-{policy / POLICIES}__{task}-1024",
        "status": "complete",
        "identity_sha256": identity_sha256(about),
        "identity": about,
        "config": {"backbone": {"name": "smollm2-135m"}, "label": "ema"},
        "planned": [f"{task}/1024/{index:04d}" for index in range(EXAMPLES)],
        "sessions": [{**session, "provenance": {"packages": {f"package{place}": "1.2.3" for place in range(60)}}}],
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
    """Run each reader over the tree; check that they agree, print what they took."""
    runs, target = root / "runs", root / "dataset"
    print(f"\n{cells} cells of {EXAMPLES} rows")
    timed("write the tree", lambda: write_tree(runs, cells))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    words = [sys.executable, "-m", "inertia.records", "list", "--root", str(runs)]
    listed = timed(
        "python -m inertia.records list, in a process of its own",
        lambda: subprocess.run(words, env=environment, capture_output=True, text=True, check=True),
    )
    assert len(listed.stdout.splitlines()) == cells + 1
    assert len(timed("facts of every cell", lambda: read_facts(runs))) == cells
    few = ["task", "score"]
    frame = timed("runs: pandas, 2 columns and identity", lambda: read_samples(runs, columns=few, check=False))
    keys = ["policy.aggregation.alpha", "task"]
    means = timed("group-by mean per (policy, task)", lambda: frame.groupby(keys)["score"].mean())
    assert len(frame) == cells * EXAMPLES and len(means) == min(cells, len(TASKS) * POLICIES)
    expected = {task: sum((index + len(task)) % 5 / 4 for index in range(EXAMPLES)) / EXAMPLES for task in TASKS}
    assert all(mean == pytest.approx(expected[task]) for (_, task), mean in means.items())
    table = timed("runs: arrow, 2 columns and identity", lambda: sample_table(runs, columns=few))
    assert table.num_rows == cells * EXAMPLES
    sample = some_folders(runs, 100)
    found = timed("full check of at most 100 cells (what verify does)", lambda: [check(folder) for folder in sample])
    assert all(finding.status == "intact" for findings in found for finding in findings)
    if cells <= 1000:
        whole = timed("runs: pandas, all columns", lambda: read_samples(runs, check=False))
        pd.testing.assert_frame_equal(whole, timed("runs: pandas, checked", lambda: read_samples(runs)))
        done = timed("compact", lambda: compact(runs, target))
        assert len(done.added) == cells
        again = timed("data set: pandas, all columns", lambda: read_samples(target, check=False))
        pd.testing.assert_frame_equal(again, whole)
        plain = timed("data set: pandas alone", lambda: pd.read_parquet(target, columns=["policy", *few]))
        assert len(plain) == cells * EXAMPLES
        assert len(read_cells(target)) == cells


def some_folders(root: Path, count: int) -> list[Path]:
    return [path for path in sorted(root.iterdir()) if path.is_dir()][:count]


def test_readers_agree_on_a_small_tree(tmp_path: Path) -> None:
    measure(tmp_path, 40)


@pytest.mark.slow
@pytest.mark.parametrize("cells", [1_000, 10_000])
def test_a_thousand_and_ten_thousand_cells(tmp_path: Path, cells: int) -> None:
    measure(tmp_path, cells)
