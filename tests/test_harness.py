"""The run from end to end on a random model: resume, failures, no duplicates, grouping, W&B."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from inertia import cli, harness
from inertia.config import run_config
from inertia.paths import config_dir
from inertia.records import canonical_hash, read_samples

ROOT = Path(__file__).resolve().parents[1]
SMALL = (
    "backbone=tiny-random",
    "benchmark.tasks=[niah_single_1]",
    "benchmark.lengths=[512]",
    "benchmark.examples=3",
    "logger=none",
    "progress=false",
)
SWEEP = ("-m", *SMALL, "method=full_cache,inertiakv", "aggregation.alpha=0,0.8")


def config(*overrides):
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return run_config(compose("config", overrides=[*SMALL, *overrides]))


def child(*words, results, fault=None):
    environment = {**os.environ, "INERTIA_RESULTS": str(results), "OMP_NUM_THREADS": "1"}
    environment.pop("INERTIA_FAULT", None)
    if fault:
        environment["INERTIA_FAULT"] = fault
    command = [sys.executable, "-m", "inertia", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_a_job_is_recorded_sealed_and_then_a_no_op(results, monkeypatch):
    (first,) = harness.run([config("method=inertiakv")])
    assert first.summary["ok"] == 3 and first.problem is None
    frame = read_samples(results / "runs")
    assert len(frame) == 3 and set(frame["status"]) == {"ok"}
    assert (frame["retained_tokens"] == frame["budget_tokens"]).all()
    monkeypatch.setattr(harness.Loaded, "get", lambda *_: pytest.fail("a sealed cell loaded its backbone"))
    (again,) = harness.run([config("method=inertiakv")])
    assert again.summary == first.summary


def test_more_examples_reopen_the_cell_and_keep_the_rows(results):
    harness.run([config("method=inertiakv", "benchmark.examples=2")])
    before = read_samples(results / "runs").set_index("example_id")
    (outcome,) = harness.run([config("method=inertiakv")])
    after = read_samples(results / "runs").set_index("example_id")
    assert outcome.summary["ok"] == 3
    assert after.loc[before.index, "decode_seconds"].tolist() == before["decode_seconds"].tolist()


def test_a_failing_example_stays_in_the_denominator_and_is_tried_again(results, monkeypatch):
    good = harness.answers

    def sometimes(cells, example, *rest):
        if example.id.endswith("0001"):
            raise RuntimeError("no luck today")
        return good(cells, example, *rest)

    monkeypatch.setattr(harness, "answers", sometimes)
    (outcome,) = harness.run([config("method=inertiakv")])
    assert outcome.summary is None
    assert "incomplete 2/3" in outcome.problem and "no luck today" in outcome.problem
    frame = read_samples(results / "runs")
    assert sorted(frame["status"]) == ["failed", "ok", "ok"]
    monkeypatch.setattr(harness, "answers", good)
    (outcome,) = harness.run([config("method=inertiakv")])
    assert outcome.summary["ok"] == 3 and outcome.summary["attempts"] == 4


def test_one_bad_policy_does_not_take_the_others_with_it(monkeypatch):
    good = harness.answers

    def picky(cells, *rest):
        if any(not cell.config.policy.evicts for cell in cells):
            raise RuntimeError("full cache refused")
        return good(cells, *rest)

    monkeypatch.setattr(harness, "answers", picky)
    outcomes = harness.run([config("method=full_cache"), config("method=inertiakv")])
    assert [outcome.summary is None for outcome in outcomes] == [True, False]


def test_jobs_that_are_the_same_cell_run_once(results):
    outcomes = harness.run([config("method=full_cache", f"aggregation.alpha={a}") for a in (0, 0.8)])
    assert len(outcomes) == 1
    assert len(read_samples(results / "runs")) == 3


def test_grouped_cells_equal_cells_run_alone(results, tmp_path, monkeypatch):
    jobs = [config("method=full_cache"), config("method=inertiakv"), config("method=h2o")]
    harness.run(jobs)
    monkeypatch.setenv("INERTIA_RESULTS", str(tmp_path / "alone"))
    for job in jobs:
        harness.run([job])
    columns = ["cell_id", "example_id", "tokens", "score", "retained_tokens", "cache_bytes"]
    both = [
        read_samples(root / "runs").sort_values(columns[:2])[columns].astype(str).values.tolist()
        for root in (results, tmp_path / "alone")
    ]
    assert both[0] == both[1]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    root = tmp_path_factory.mktemp("undisturbed")
    done = child(*SWEEP, results=root)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"cells": 3, "sealed": 3, "incomplete": 0}
    return canonical_hash(root / "runs")


@pytest.mark.parametrize("fault", ["append-half:5", "append-synced:4:SIGTERM", "seal:2"])
def test_killed_and_repeated_gives_the_records_of_an_undisturbed_run(fault, undisturbed, tmp_path):
    killed = child(*SWEEP, results=tmp_path, fault=fault)
    assert killed.returncode != 0
    again = child(*SWEEP, results=tmp_path)
    assert again.returncode == 0, again.stderr
    assert canonical_hash(tmp_path / "runs") == undisturbed
    if fault.endswith(":2"):
        assert killed.returncode == -signal.SIGKILL


def test_the_index_names_the_cells_of_the_experiment(results):
    words = [word for word in SMALL if not word.startswith("benchmark.examples")]
    job = config(
        *words, "benchmark.examples=1", "experiment_name=mine", "profile_name=tiny", "scale=test", "method=inertiakv"
    )
    (outcome,) = harness.run([job])
    index = json.loads((results / "experiments" / "mine__tiny.json").read_text())
    (cell,) = index["cells"]
    assert cell["cell_id"] == outcome.cell.id and cell["planned"] == 1
    assert cell["axes"]["method"] == "inertiakv" and cell["axes"]["alpha"] == 0.8


def test_wandb_runs_offline_and_its_failure_fails_nothing(results, monkeypatch):
    online = config("method=inertiakv", "logger=wandb", "benchmark.examples=1")
    harness.run([online])
    assert list((results / "wandb").rglob("*.wandb")), "no offline run was written"
    import inertia.records.wandb_mirror as mirror

    assert hasattr(mirror, "_write")
    monkeypatch.setattr(mirror, "_write", lambda *_, **__: (_ for _ in ()).throw(OSError("disk on fire")))
    (outcome,) = harness.run([config("method=h2o", "logger=wandb", "benchmark.examples=1")])
    assert outcome.summary["ok"] == 1


def test_a_sweep_with_a_wrong_job_starts_nothing(results, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["-m", *SMALL, "aggregation.alpha=0.8,1.5"])
    assert stopped.value.code == 2
    assert "alpha=1.5" in capsys.readouterr().err
    assert not (results / "runs").exists()


def test_jobs_of_one_experiment_share_its_index(results):
    names = ("experiment_name=mine", "profile_name=tiny", "benchmark.examples=1")
    harness.run([config(*names, "method=full_cache"), config(*names, "method=inertiakv")])
    harness.run([config(*names, "method=h2o")])
    harness.run([config(*names, "method=inertiakv", "benchmark.examples=2")])
    index = json.loads((results / "experiments" / "mine__tiny.json").read_text())
    assert sorted(cell["axes"]["method"] for cell in index["cells"]) == ["full_cache", "h2o", "inertiakv"]
    assert {cell["axes"]["method"]: cell["planned"] for cell in index["cells"]}["inertiakv"] == 2


def test_what_stops_one_cell_does_not_stop_the_others(results):
    jobs = [config("method=inertiakv"), config("method=h2o")]
    harness.run([config("method=inertiakv", "benchmark.examples=2")])
    (journal,) = (results / "runs").glob("*inertiakv*/samples.jsonl")
    text = journal.read_text()
    journal.write_text("garbage\n" + text)
    (journal.parent / "summary.json").unlink()
    broken, fine = harness.run(jobs)
    assert broken.summary is None and "line 1" in broken.problem
    assert fine.summary["ok"] == 3


def test_data_that_do_not_fit_stop_their_own_task_only():
    job = config("method=inertiakv", "benchmark.tasks=[cwe,niah_single_1]")
    misfit, fine = harness.run([job])
    assert misfit.summary is None and "does not fit 512 tokens" in misfit.problem
    assert fine.summary["ok"] == 3


def test_a_cell_in_use_elsewhere_is_reported_and_the_rest_runs(results):
    from inertia.records import open_cell

    jobs = [config("method=inertiakv"), config("method=h2o")]
    (cell,) = harness.cells_of(jobs[0])
    with open_cell(results / "runs", cell.identity, label="x", planned=cell.planned, config={}, provenance={}):
        taken, free = harness.run(jobs)
    assert taken.summary is None and free.summary["ok"] == 3


def test_a_sealed_cell_that_was_never_mirrored_is_mirrored_later(results):
    harness.run([config("method=inertiakv", "benchmark.examples=1")])
    assert not (results / "wandb").exists()
    for _ in range(2):
        harness.run([config("method=inertiakv", "benchmark.examples=1", "logger=wandb")])
    assert len(list((results / "wandb").rglob("*.wandb"))) == 1
