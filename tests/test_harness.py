"""The run from end to end on a random model: resume, failures, no duplicates, grouping, W&B."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from one_cell import open_cell

from inertia.benchmarks.rows import rows_of
from inertia.benchmarks.sources import Source
from inertia.experiments import cli, decode
from inertia.experiments import run as harness
from inertia.experiments.config import run_config
from inertia.experiments.labels import policy_label
from inertia.paths import config_dir
from inertia.records import canonical_hash, listed, read_samples
from inertia.records.lock import claimed
from inertia.records.store import LOCKS, files

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
    good = decode.answers

    def sometimes(cells, example, *rest):
        if example.id.endswith("0001"):
            raise RuntimeError("no luck today")
        return good(cells, example, *rest)

    monkeypatch.setattr(decode, "answers", sometimes)
    (outcome,) = harness.run([config("method=inertiakv")])
    assert outcome.summary is None
    assert "incomplete 2/3" in outcome.problem and "no luck today" in outcome.problem
    frame = read_samples(results / "runs")
    assert sorted(frame["status"]) == ["failed", "ok", "ok"]
    monkeypatch.setattr(decode, "answers", good)
    (outcome,) = harness.run([config("method=inertiakv")])
    assert outcome.summary["ok"] == 3 and outcome.summary["attempts"] == 4


def test_one_bad_policy_does_not_take_the_others_with_it(monkeypatch):
    good = decode.answers

    def picky(cells, *rest):
        if any(not cell.config.policy.evicts for cell in cells):
            raise RuntimeError("full cache refused")
        return good(cells, *rest)

    monkeypatch.setattr(decode, "answers", picky)
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


# Every point and signal, with a stand-in for the model, is in test_records_crash.
SLOW = [pytest.param(fault, marks=pytest.mark.slow) for fault in ("commit:5", "seal:1")]


@pytest.mark.parametrize("fault", ["committed:3:SIGTERM", *SLOW])
def test_killed_and_repeated_gives_the_records_of_an_undisturbed_run(fault, undisturbed, tmp_path):
    killed = child(*SWEEP, results=tmp_path, fault=fault)
    assert killed.returncode == (143 if "SIGTERM" in fault else -signal.SIGKILL), killed.stderr
    again = child(*SWEEP, results=tmp_path)
    assert again.returncode == 0, again.stderr
    assert canonical_hash(tmp_path / "runs") == undisturbed


def test_the_index_names_the_cells_of_the_experiment(results):
    words = [word for word in SMALL if not word.startswith("benchmark.examples")]
    job = config(
        *words, "benchmark.examples=1", "experiment_name=mine", "profile_name=tiny", "scale=test", "method=inertiakv"
    )
    (outcome,) = harness.run([job])
    (cell,) = listed(results / "runs")["mine", "tiny"]
    assert cell["cell_id"] == outcome.cell.id and cell["planned"] == 1
    assert (cell["profile"], cell["scale"], cell["backbone"]) == ("tiny", "test", "tiny-random")
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


def test_the_end_of_a_run_leaves_its_experiment_as_parquet(results):
    names = ("experiment_name=mine", "profile_name=tiny", "benchmark.examples=1")
    path = results / "local" / "mine.tiny.parquet"
    for method in ("full_cache", "h2o"):
        harness.run([config(*names, f"method={method}")])
    assert len(read_samples(path)) == 2 and canonical_hash(path) == canonical_hash(results / "runs")
    before = path.stat().st_mtime_ns
    harness.run([config(*names, "method=h2o")])
    assert path.stat().st_mtime_ns == before, "nothing was new"
    path.unlink()
    harness.run([config(*names, "method=h2o")])
    assert len(read_samples(path)) == 2


def test_jobs_of_one_experiment_are_listed_together(results):
    names = ("experiment_name=mine", "profile_name=tiny", "benchmark.examples=1")
    harness.run([config(*names, "method=full_cache"), config(*names, "method=inertiakv")])
    harness.run([config(*names, "method=h2o")])
    harness.run([config(*names, "method=inertiakv", "benchmark.examples=2")])
    entries = listed(results / "runs")["mine", "tiny"]
    assert sorted(cell["axes"]["method"] for cell in entries) == ["full_cache", "h2o", "inertiakv"]
    assert {cell["axes"]["method"]: cell["planned"] for cell in entries}["inertiakv"] == 2


DAMAGE = {
    "row": ("UPDATE sample SET score = 0.123 WHERE cell = :cell", "table sample, row {cell}"),
    "identity": ("UPDATE cell SET identity = '{{}}' WHERE id = :cell", "table cell, row {cell}"),
    "seal": ("UPDATE seal SET summary = '{{}}' WHERE cell = :cell", "table seal, row {cell}"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_wrong_with_one_cell_does_not_stop_the_others(results, damage):
    harness.run([config("method=inertiakv", "benchmark.examples=2")])
    harness.run([config("method=full_cache", "benchmark.examples=2")])
    (path,) = files(results / "runs")
    broken = harness.cells_of(config("method=inertiakv"))[0].id
    statement, said = DAMAGE[damage]
    with sqlite3.connect(path) as connection:
        connection.execute(statement.format(cell=broken), {"cell": broken})
    outcomes = harness.run([config(f"method={name}") for name in ("inertiakv", "h2o", "full_cache")])
    for outcome in outcomes:
        if outcome.cell.id == broken:
            assert said.format(cell=broken) in outcome.problem and str(path) in outcome.problem
        else:
            assert outcome.summary["ok"] == 3


def test_another_cell_of_the_same_id_is_refused_and_the_rest_runs(results, monkeypatch):
    from inertia.records import writer

    jobs = [config("method=inertiakv"), config("method=h2o")]
    (cell,) = harness.cells_of(jobs[0])
    with monkeypatch.context() as patch:
        patch.setattr(writer, "cell_id", lambda identity: cell.id)
        with open_cell(results / "runs", {"a": 1}, label="x", planned=["e"], config={}, provenance={}) as other:
            other.append_failure("e", 0, "no", task="t")
    clash, fine = harness.run(jobs)
    assert clash.summary is None and "another identity under the id" in clash.problem
    assert fine.summary["ok"] == 3


@pytest.mark.parametrize("place", ["runs/x__c0123456789a", "shards/1of2/runs/x__c0123456789a", "dataset"])
def test_records_of_an_older_version_are_refused_with_the_way_out(results, capsys, place):
    (results / place).mkdir(parents=True)
    if place == "dataset":
        (results / place / "backbone=x" / "benchmark=y").mkdir(parents=True)
        (results / place / "backbone=x" / "benchmark=y" / "z.parquet").touch()
    else:
        (results / place / "manifest.json").write_text("{}")
    for words in ([], ["-m"]):
        with pytest.raises(SystemExit) as stopped:
            raise SystemExit(cli.main([*words, *SMALL]))
        assert stopped.value.code == 2
        err = capsys.readouterr().err
        assert "0.1.0" in err and "python -m inertia.records export" in err and len(err.splitlines()) == 1
    assert not files(results / "runs")


def test_a_compressor_by_name_takes_the_ratio_that_every_method_takes():
    half, tenth = (config("method=snapkv", f"budget.compression_ratio={ratio}") for ratio in (0.5, 0.9))
    assert half.policy.prefill.budget.compression_ratio == 0.5
    assert policy_label(half) != policy_label(tenth)
    own = config("method=snapkv", "prefill.budget.compression_ratio=0.25")
    assert own.policy.prefill.budget.compression_ratio == 0.25


def test_data_that_do_not_fit_stop_their_own_task_only():
    job = config("method=inertiakv", "benchmark.tasks=[cwe,niah_single_1]")
    misfit, fine = harness.run([job])
    assert misfit.summary is None and "does not fit 512 tokens" in misfit.problem
    assert fine.summary["ok"] == 3


def test_what_is_too_short_is_said_before_a_model_is_loaded(monkeypatch):
    loads = []
    monkeypatch.setattr(harness.backbones, "load", lambda config: loads.append(config))
    job = config("method=inertiakv", "benchmark.tasks=[cwe,niah_multikey_3]", "benchmark.lengths=[200]")
    for outcome in harness.run([job]):
        assert outcome.summary is None and "does not fit 200 tokens" in outcome.problem
    assert not loads


def test_a_cell_in_use_elsewhere_is_reported_and_the_rest_runs(results):
    jobs = [config("method=inertiakv"), config("method=h2o")]
    (cell,) = harness.cells_of(jobs[0])
    with claimed(results / "runs" / LOCKS, [cell.id], (1, 1), "x"):
        taken, free = harness.run(jobs)
    assert taken.summary is None and free.summary["ok"] == 3


def test_a_sealed_cell_that_was_never_mirrored_is_mirrored_later(results):
    harness.run([config("method=inertiakv", "benchmark.examples=1")])
    assert not (results / "wandb").exists()
    for _ in range(2):
        harness.run([config("method=inertiakv", "benchmark.examples=1", "logger=wandb")])
    assert len(list((results / "wandb").rglob("*.wandb"))) == 1


def test_a_sweep_reads_its_data_once(results, tmp_path, monkeypatch):
    """Ids, identity and examples of every job come from one reading of each file."""
    data = tmp_path / "data"
    data.mkdir()
    for task in ("qasper", "trec"):
        row = {"input": "Who?", "context": "It was Ada. " * 30, "answers": ["Ada"], "length": 90, "_id": f"{task}0"}
        row |= {"dataset": task, "language": "en", "all_classes": ["Person", "Date"] if task == "trec" else None}
        (data / f"{task}.jsonl").write_text(json.dumps(row) + "\n")
    reads = []
    real = Source.load
    monkeypatch.setattr(Source, "load", lambda self, *asked: (reads.append(asked[0]), real(self, *asked))[1])
    ask = ("benchmark=longbench", "benchmark.tasks=[qasper,trec]", "benchmark.lengths=[null]", "benchmark.examples=1")
    source = ("benchmark.source.kind=path", f"benchmark.source.path={data}")
    jobs = [config(*ask, *source, f"aggregation.alpha={alpha}") for alpha in (0, 0.5, 0.8)]
    assert all(outcome.problem is None for outcome in harness.run(jobs))
    assert sorted(reads) == ["qasper", "trec"]
    reads.clear()
    shared = {}
    made = [harness.cells_of(job, shared) for job in jobs]
    assert all(outcome.problem is None for outcome in harness.run(jobs, made))
    assert sorted(reads) == ["qasper", "trec"] and len(shared) == 1


@pytest.mark.parametrize("name", ["longbench", "longbench_v2"])
def test_data_that_a_benchmark_pins_are_read_once_too(name, monkeypatch):
    reads = []
    row = {"input": "Who?", "context": "Ada.", "answers": ["Ada"], "_id": "0", "length": 1}
    row |= {"question": "Who?", "domain": "x", "sub_domain": "x", "difficulty": "easy", "answer": "A"}
    row |= {f"choice_{letter}": letter for letter in "ABCD"}
    if name == "longbench_v2":
        row["length"] = "short"

    def load(self, asked, schema):
        reads.append(asked)
        return rows_of(asked, "x.json", json.dumps(row).encode(), schema)

    monkeypatch.setattr(Source, "load", load)
    task = {"longbench": "qasper", "longbench_v2": "zero_shot"}[name]
    ask = (f"benchmark={name}", f"benchmark.tasks=[{task}]", "benchmark.lengths=[null]", "benchmark.source=null")
    shared = {}
    cells = [
        cell for alpha in (0, 0.8) for cell in harness.cells_of(config(*ask, f"aggregation.alpha={alpha}"), shared)
    ]
    assert len({cell.id for cell in cells}) == 2 and all(len(cell.planned) == 1 for cell in cells)
    assert len(reads) == 1


def test_a_length_without_room_and_a_file_without_a_good_row_end_before_a_model_is_loaded(monkeypatch, tmp_path):
    def load(*_):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("inertia.backbones.load", load)
    (short,) = harness.run([config(*SMALL, "benchmark.lengths=[140]")])
    assert short.summary is None and "its shortest feasible length" in short.problem
    (tmp_path / "qasper.jsonl").write_text('{"input": "Who?", "context": "Ada.", "answers": [""], "length": 1}\n')
    ask = ("benchmark=longbench", "benchmark.tasks=[qasper]", "benchmark.lengths=[null]", "benchmark.examples=1")
    with pytest.raises(ValueError, match="qasper.jsonl, line 1, field answers: blank"):
        harness.run([config(*ask, "benchmark.source.kind=path", f"benchmark.source.path={tmp_path}")])


PINNED = {
    ("method=full_cache",): "c001c68bbb0e",
    ("method=inertiakv",): "c77eebc8e404",
    ("method=inertiakv", "benchmark.metrics=[official,fidelity]"): "c4988afb76ab",
    ("method=h2o", "prefill=snapkv", "seed=1"): "c43daec78891",
}


@pytest.mark.parametrize("words", PINNED)
def test_cells_keep_their_ids(words):
    """Ids of real cells: change one only together with what it stands for: a version, data, wording, a policy."""
    (cell,) = harness.cells_of(config(*words))
    assert cell.id == PINNED[words]


def test_a_planted_secret_reaches_no_file_below_results(results, monkeypatch, caplog):
    secret, key = "s3cret-hf-value-0123", "0123456789abcdef0123456789abcdef01234567"
    monkeypatch.setenv("HF_TOKEN", secret)
    monkeypatch.setenv("WANDB_API_KEY", key)
    good = decode.answers

    def leak(cells, example, *rest):
        if example.id.endswith("0001") and len(cells) == 1 and not cells[0].config.policy.evicts:
            raise RuntimeError(f"cannot get https://me:hunter22@host.org/x?token={secret}")
        if example.id.endswith("0001"):
            raise RuntimeError("not together")
        return good(cells, example, *rest)

    monkeypatch.setattr(decode, "answers", leak)
    words = ("logger=wandb", f"label=see-https://me:hunter22@host.org-{secret}", "experiment_name=mine")
    jobs = [(2, "full_cache"), (1, "h2o")]
    harness.run([config(*words, f"benchmark.examples={n}", f"method={name}") for n, name in jobs])
    written = [path for path in results.rglob("*") if path.is_file()]
    assert {".wandb", ".db", ".parquet"} <= {path.suffix for path in written}
    for path in written:
        found = [word for word in (secret, key, "hunter22") if word.encode() in path.read_bytes()]
        assert not found and secret not in str(path), (path, found)


def test_cells_that_are_carried_out_differently_are_no_group():
    ways = [("execution.scoring=fused",), ("execution.scoring=recompute",)]
    one, other = [harness.cells_of(config("method=inertiakv", *way))[0] for way in ways]
    assert one.id != other.id and one.group_key != other.group_key
