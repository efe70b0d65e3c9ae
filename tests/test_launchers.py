"""Launchers: what is refused, what is shipped, and that the records are those of a run in one process."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import slurm_node
import yaml
from hydra import compose, initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

from inertia.experiments import cli, indices
from inertia.experiments import run as harness
from inertia.experiments.config import run_config
from inertia.experiments.launchers import ambient, ray_tasks, settings, slurm_queue, submitit_jobs
from inertia.experiments.launchers import progress as job_progress
from inertia.experiments.launchers.launch import check, launch
from inertia.experiments.launchers.payload import Payload, divide, run_payload
from inertia.experiments.launchers.polling import WorkFailed, follow
from inertia.experiments.launchers.settings import KINDS, Local, Ray, Submitit, from_mapping
from inertia.experiments.shards import Shard, parse
from inertia.paths import config_dir
from inertia.records import canonical_hash, listed, read_cells
from inertia.records.progress import progress
from inertia.records.store import files
from inertia.records.writer import writing

ROOT = Path(__file__).resolve().parents[1]
SMALL = (
    "backbone=tiny-random",
    "benchmark.tasks=[niah_single_1]",
    "benchmark.lengths=[512,640]",
    "benchmark.examples=3",
    "logger=none",
    "progress=false",
)
METHODS = ("full_cache", "inertiakv")
HERE = Submitit(cluster="local", gpus_per_node=0, cpus_per_task=1, mem_gb=4, timeout_minutes=5)
RAY = Ray(num_gpus=0, num_cpus=1)


@cache
def composed(*overrides):
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return run_config(compose("config", overrides=[*SMALL, *overrides]))


def jobs(launcher=None, shard=None, **benchmark):
    made = [composed(f"method={name}") for name in METHODS]
    return [
        replace(each, launcher=launcher or Local(), shard=parse(shard), benchmark=replace(each.benchmark, **benchmark))
        for each in made
    ]


def run(launcher=None, shard=None, **benchmark):
    configs = jobs(launcher, shard, **benchmark)
    check(configs)
    return launch(configs, [harness.cells_of(config) for config in configs])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    root = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INERTIA_RESULTS", str(root))
        outcomes = run()
    assert all(outcome.summary for outcome in outcomes)
    return canonical_hash(root / "runs")


# What is refused


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_state_the_defaults(kind):
    values = yaml.safe_load((config_dir() / "launcher" / f"{kind}.yaml").read_text())
    assert from_mapping(values) == KINDS[kind]()


@pytest.mark.parametrize(
    "words, expected",
    [
        (["launcher=slurm"], "no such option; give one of local, ray, submitit"),
        (["launcher.shards=2"], "launcher has no key 'shards'; it has kind"),
        (["launcher=submitit", "launcher.shard=2"], "no key 'shard'.*Did you mean shards"),
        (
            ["launcher=submitit", "launcher.cluster=pbs"],
            "launcher.cluster='pbs' is unknown; give one of 'slurm', 'local'",
        ),
        (["launcher=submitit", "launcher.timeout_minutes=0"], "timeout_minutes=0 is too small"),
        (["launcher=submitit", "launcher.requeues=-1"], "requeues=-1 is too small"),
        (["launcher=submitit", "launcher.parallel=0"], "parallel=0 is too small"),
        (["launcher=submitit", "launcher.mem_gb=much"], "mem_gb='much' is not a number"),
        (["launcher=submitit", "launcher.partition=7"], "partition=7 is not text"),
        (["launcher=submitit", "launcher.setup=[1]"], r"setup=\[1\] is not a list of shell lines"),
        (["launcher=submitit", "launcher.sbatch=x"], "sbatch='x' is not a mapping"),
        (["launcher=ray", "launcher.num_gpus=-1"], "num_gpus=-1 is out of range"),
        (["launcher=ray", "launcher.address=6379"], "address=6379 is not text"),
        (["launcher=ray", "launcher.groups_per_job=0"], "groups_per_job=0 is too small"),
        (["launcher.kind=pbs"], "launcher.kind='pbs' is unknown"),
        (["launcher.kind=ray", "launcher=submitit"], "launcher=ray has no key 'account'"),
        (["shard=3"], "shard=3 is no part"),
        (["shard=4/3"], "give a part from 1/3 to 3/3"),
    ],
)
def test_a_wrong_setting_is_refused(words, expected, capsys):
    import re

    assert cli.main(words) == 2
    assert re.search(expected, capsys.readouterr().err), expected


@pytest.mark.parametrize("kind", ["submitit", "ray"])
@pytest.mark.parametrize("sweep", [[], ["-m"]])
def test_without_the_extra_the_message_says_what_to_install(kind, sweep, results, monkeypatch, capsys):
    monkeypatch.setattr(settings, "find_spec", lambda name: None)
    words = [*sweep, *SMALL, f"launcher={kind}"]
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(cli.main(words))
    assert stopped.value.code == 2
    assert f"pip install 'inertia[{kind}]'" in capsys.readouterr().err
    assert not (results / "runs").exists() and not (results / "jobs").exists()


@pytest.mark.parametrize(
    "launchers, shards, expected",
    [
        ((Local(), HERE), (None, None), "launcher differs between the jobs"),
        ((HERE, replace(HERE, shards=2)), (None, None), "launcher differs between the jobs"),
        ((Local(), Local()), ("1/2", "2/2"), "shard differs between the jobs.*launcher.shards=n"),
        ((replace(HERE, shards=2),) * 2, ("1/2", "1/2"), "both cut the examples"),
        ((replace(HERE, parallel=2, gpus_per_node=1),) * 2, (None, None), "the same GPUs"),
    ],
)
def test_jobs_that_do_not_go_together_are_refused(launchers, shards, expected):
    configs = [
        replace(config, launcher=launcher, shard=parse(shard))
        for config, launcher, shard in zip(jobs(), launchers, shards, strict=True)
    ]
    with pytest.raises(ValueError, match=expected):
        check(configs)


def test_slurm_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="no sbatch on this machine.*launcher.cluster=local"):
        check(jobs(Submitit()))


def test_a_cluster_that_does_not_answer_is_said_at_once():
    with pytest.raises(ConnectionError, match="no Ray cluster answers there"):
        ray_tasks._reach("127.0.0.1:9")
    for address in (None, "auto", "local"):
        ray_tasks._reach(address)


# What is shipped


@given(shards=st.integers(1, 5), size=st.integers(1, 4), examples=st.integers(1, 6))
def test_every_answer_is_the_work_of_one_process(shards, size, examples):
    cells = [cell for config in jobs(examples=examples) for cell in harness.cells_of(config)]
    works = divide(cells, shards=shards, groups_per_job=size, results=Path("r"))
    by_id = {cell.id: cell for cell in cells}
    done = Counter(
        (name, example)
        for work in works
        for name in work.cells
        for example in (by_id[name].planned if work.shard is None else Shard(*work.shard).of(by_id[name].planned))
    )
    assert set(done) == {(cell.id, example) for cell in cells for example in cell.planned}
    assert set(done.values()) == {1}
    for work in works:
        keys = [by_id[name].group_key for name in work.cells]
        assert len(set(keys)) <= size and all(Counter(keys)[key] == 2 for key in keys), "a group was cut apart"
        assert len(work.configs) == 2


def test_work_is_plain_data():
    works = divide(harness.cells_of(composed()), shards=2, groups_per_job=1, results=Path("r"))
    again = pickle.loads(pickle.dumps(works))
    assert again == works
    assert json.loads(json.dumps([work.__dict__ for work in works], default=str))
    text = pickle.dumps([work.__dict__ for work in works])
    assert b"torch" not in text and b"omegaconf" not in text and len(text) < 20_000


def test_groups_of_two_backbones_never_share_a_process():
    cells = [cell for words in ((), ("backbone.seed=1",)) for cell in harness.cells_of(composed(*words))]
    works = divide(cells, shards=1, groups_per_job=9, results=Path("r"))
    assert [len(work.cells) for work in works] == [2, 2]


def test_work_is_done_where_it_says_and_leaves_the_environment_alone(tmp_path, results):
    cells = [cell for config in jobs(examples=1) for cell in harness.cells_of(config)]
    first, _ = divide(cells, shards=1, groups_per_job=1, results=tmp_path / "elsewhere")
    assert run_payload(first) == {}
    assert os.environ["INERTIA_RESULTS"] == str(results) and not results.exists()
    assert {cell.id for cell in read_cells(tmp_path / "elsewhere" / "runs") if cell.sealed} == set(first.cells)


def test_a_machine_with_other_code_or_data_is_refused(tmp_path):
    work = Payload((composed().resolved,), ("c00000000000",), None, str(tmp_path))
    with pytest.raises(ValueError, match="c00000000000 are unknown here.*same checkout"):
        run_payload(work)


def test_what_is_listed_does_not_depend_on_who_lists_it_last(results):
    configs = [replace(config, experiment_name="mine", profile_name="tiny") for config in jobs(examples=1)]
    cells = [cell for config in configs for cell in harness.cells_of(config)]
    runs = results / "runs"

    def write(some):
        with writing(runs, "local", dict) as writer:
            harness.write_listings(writer, some)

    write(cells)
    before = listed(runs)
    assert [entry["cell_id"] for entry in before["mine", "tiny"]] == sorted(cell.id for cell in cells)
    for some in ([cells[2]], cells[1:3], list(reversed(cells))):
        assert indices.listings(runs, some) == []
    changed = [cell for config in configs for cell in harness.cells_of(replace(config, label="other"))]
    write(changed)
    assert {entry["axes"]["method"] for entry in listed(runs)["mine", "tiny"]} == {"other"}


def test_cells_of_another_backbone_are_listed_beside_it(results, caplog):
    configs = [replace(config, experiment_name="mine", profile_name="tiny") for config in jobs(examples=1)]
    other = [replace(each, backbone=replace(each.backbone, name="other")) for each in configs]
    for some in (configs, other, configs):
        with writing(results / "runs", "local", dict) as writer:
            harness.write_listings(writer, [cell for config in some for cell in harness.cells_of(config)])
    assert {key: len(entries) for key, entries in listed(results / "runs").items()} == {
        ("mine", "tiny"): 4,
        ("mine", "tiny-other"): 4,
    }
    assert "listed as profile tiny-other" in caplog.text


# How it is followed


class Handle:
    def __init__(self, polls, outcome):
        self.polls, self.outcome, self.cancelled = polls, outcome, False

    def done(self):
        self.polls -= 1
        return self.polls < 0

    def problems(self):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def cancel(self):
        self.cancelled = True


class Engine:
    def __init__(self, room, outcomes, polls=1):
        self.room, self.outcomes, self.polls, self.started, self.most = room, list(outcomes), polls, [], 0

    def start(self, works):
        made = [Handle(self.polls, self.outcomes.pop(0)) for _ in works]
        self.started += made
        self.most = max(self.most, sum(handle.polls >= 0 for handle in self.started))
        return made


def works(count):
    return [Payload((), (f"c{number}",), None, "r") for number in range(count)]


@pytest.fixture
def no_sleep(monkeypatch):
    monkeypatch.setattr("inertia.experiments.launchers.polling.POLL_SECONDS", 0.0)


@pytest.mark.parametrize("room", [None, 1, 2, 9])
def test_a_failed_job_costs_the_others_nothing(room, no_sleep):
    engine = Engine(room, [{}, WorkFailed("job 7 died; its log: x"), {"c2": "incomplete 1/2"}, {}])
    bar, counts = tqdm(disable=True), itertools.count()
    assert follow(engine, works(4), bar, lambda: next(counts)) == {
        "c1": "job 7 died; its log: x",
        "c2": "incomplete 1/2",
    }
    assert len(engine.started) == 4 and engine.most == min(room or 4, 4)
    assert bar.n > 0


def test_an_interrupt_stops_what_was_started(no_sleep, capsys):
    engine = Engine(2, [{}] * 3, polls=99)

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow(engine, works(3), tqdm(disable=True), interrupt)
    assert [handle.cancelled for handle in engine.started] == [True, True]
    assert "stopped 2 running or queued jobs" in capsys.readouterr().err


def test_the_bar_counts_answers_of_other_processes_and_reads_what_changed_only(results, monkeypatch):
    configs = jobs(examples=2)
    cells = [cell for config in configs for cell in harness.cells_of(config)]
    seen, read = job_progress.Progress(results / "runs", cells), []
    real = job_progress.progress
    counted = lambda paths, *rest, **how: read.append(paths) or real(paths, *rest, **how)  # noqa: E731
    monkeypatch.setattr(job_progress, "progress", counted)
    assert seen.count() == 0
    harness.run(jobs(shard="1/2", examples=2))
    assert seen.count() == 4 and len(read) == 1
    assert seen.count() == 4 and len(read) == 1, "an unchanged file was read again"
    harness.run(jobs(shard="2/2", examples=2))
    assert seen.count() == 8 and len(read) == 2
    (results / "runs").rename(results / "gone")
    assert seen.count() == 0


# Slurm and processes of this machine, through submitit


def test_settings_in_the_words_of_submitit():
    asked = Submitit(
        partition="gpu", account="lab", setup=("module load x",), sbatch={"licenses": "x:1"}, parallel=3
    )
    found = submitit_jobs.parameters(asked)
    assert found["slurm_partition"] == "gpu" and found["slurm_account"] == "lab" and found["slurm_qos"] is None
    assert found["slurm_setup"] == ["module load x"] and found["slurm_additional_parameters"] == {"licenses": "x:1"}
    assert found["slurm_array_parallelism"] == 3 and found["timeout_min"] == 240


@pytest.mark.parametrize(
    "change",
    [
        *({name: "x"} for name in ("name", "partition", "account", "qos", "constraint")),
        *({name: 7} for name in ("parallel", "timeout_minutes", "gpus_per_node", "cpus_per_task", "mem_gb")),
        {"setup": ("x",)},
        {"sbatch": {"x": 1}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_setting_of_a_job_reaches_submitit(change):
    assert submitit_jobs.parameters(Submitit(**change)) != submitit_jobs.parameters(Submitit())


def test_a_job_goes_back_into_the_queue_so_often_and_no_more():
    task = submitit_jobs.Task(works(1)[0], requeues=1)
    again = task.checkpoint()
    assert again.function == replace(task, requeues=0)
    with pytest.raises(SystemExit, match="launcher.requeues"):
        again.function.checkpoint()


def submit(launcher, results, *words, fault=None, **more):
    environment = {**os.environ, "INERTIA_RESULTS": str(results), "OMP_NUM_THREADS": "1", **more}
    environment.pop("INERTIA_FAULT", None)
    if fault:
        environment["INERTIA_FAULT"] = fault
    command = [sys.executable, "-m", "inertia", "-m", *SMALL, f"method={','.join(METHODS)}", *launcher, *words]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process):
    out, err = process.communicate(timeout=280)
    return process.returncode, out, err


def recorded(results):
    """Return how many examples of how many cells are recorded."""
    known, _ = progress(files(results / "runs"), check=False)
    return sum(len(each.good) for each in known.values())


LOCAL_JOBS = ("launcher=submitit", "launcher.cluster=local", "launcher.gpus_per_node=0", "launcher.groups_per_job=2")


@pytest.mark.slow
def test_processes_of_this_machine_give_the_records_of_one_run(undisturbed, results):
    code, out, err = ended(submit(LOCAL_JOBS, results, "launcher.shards=2", "launcher.parallel=2", "progress=true"))
    assert code == 0, err
    assert json.loads(out.splitlines()[-1]) == {"cells": 4, "sealed": 4, "incomplete": 0}
    assert canonical_hash(results / "runs") == undisturbed
    assert "2 jobs through submitit" in err and "12/12" in err, "the bar does not show the answers of the jobs"
    jobs_before = sorted((results / "jobs").iterdir())
    code, out, err = ended(submit(LOCAL_JOBS, results))
    assert code == 0 and sorted((results / "jobs").iterdir()) == jobs_before, "sealed cells were submitted again"


@pytest.mark.slow
def test_a_preempted_job_goes_back_into_the_queue_and_on_from_its_records(undisturbed, results):
    process = submit(LOCAL_JOBS, results)
    deadline = time.monotonic() + 120
    while not recorded(results):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    (claim,) = (results / "runs" / "locks").glob("*.claim")
    os.kill(json.loads(claim.read_text())["pid"], signal.SIGUSR2)
    code, out, err = ended(process)
    assert code == 0, err
    assert canonical_hash(results / "runs") == undisturbed
    (log,) = (results / "jobs").glob("*/*_log.out")
    assert "Requeued job" in log.read_text()


@pytest.mark.slow
def test_a_job_that_dies_is_said_with_its_log_and_what_it_did_stays(undisturbed, results):
    """It dies in the second of its groups."""
    code, out, err = ended(submit(LOCAL_JOBS, results, fault="committed:8"))
    assert code == 1
    assert json.loads(out.splitlines()[-1]) == {"cells": 4, "sealed": 2, "incomplete": 2}
    assert err.count("ended without a result") == 2 and "its log:" in err
    assert ended(submit(LOCAL_JOBS, results))[0] == 0
    assert canonical_hash(results / "runs") == undisturbed


@pytest.mark.slow
def test_two_jobs_never_write_one_cell(undisturbed, results):
    """The first is stopped in the middle of an example, with its locks held, until the second has ended."""
    holder = submit((), results, fault="committed:3:SIGSTOP")
    deadline = time.monotonic() + 120
    while not recorded(results):
        assert time.monotonic() < deadline and holder.poll() is None
        time.sleep(0.05)
    time.sleep(1)
    code, out, err = ended(submit(LOCAL_JOBS, results))
    assert code == 1
    assert "is being written by process" in err
    os.kill(holder.pid, signal.SIGCONT)
    ended(holder)
    assert ended(submit((), results))[0] == 0
    assert canonical_hash(results / "runs") == undisturbed


SBATCH = """#!/bin/bash
cp "$1" "$FAKE_SLURM/script"
env | grep -E "^(SLURM|SBATCH)_" > "$FAKE_SLURM/ambient"
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$1")
for index in $(seq 0 "${last:-0}"); do
  SLURM_JOB_ID=$((4001 + index)) SLURM_ARRAY_JOB_ID=4000 SLURM_ARRAY_TASK_ID=$index SLURM_NTASKS=1 SLURM_PROCID=0 \\
    SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_JOB_NUM_NODES=1 SUBMITIT_EXECUTOR=slurm bash "$1" >/dev/null 2>&1 &
done
echo "Submitted batch job 4000"
"""
SRUN = """#!/bin/bash
while [[ "$1" == -* ]]; do case "$1" in --output|--error) shift 2;; *) shift;; esac; done
exec "$@"
"""
SQUEUE = """#!/bin/bash
for index in 0 1 2 3; do echo "4000_$index|RUNNING"; done
"""
NO_ACCOUNTING = "#!/bin/bash\necho 'Slurm accounting storage is disabled' >&2; exit 1\n"


@pytest.mark.slow
def test_an_array_of_slurm_gives_the_records_of_one_run(undisturbed, results, tmp_path):
    """sbatch, srun and squeue are stand-ins; they run the script that Slurm would get, without the shell's options."""
    stand_in(tmp_path, sbatch=SBATCH, srun=SRUN, squeue=SQUEUE, sacct=NO_ACCOUNTING)
    words = ("launcher=submitit", "launcher.partition=gpu", "launcher.parallel=2", "+launcher.sbatch.licenses=x")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    ambient = {"SBATCH_PARTITION": "other", "SLURM_MEM_PER_NODE": "1", "SLURM_JOB_ID": "7", "SLURM_CONF": "kept"}
    code, out, err = ended(submit(words, results, PATH=path, FAKE_SLURM=str(tmp_path), **ambient))
    assert code == 0, err
    assert (tmp_path / "ambient").read_text().split() == ["SLURM_CONF=kept"]
    assert "SBATCH_PARTITION, SLURM_JOB_ID, SLURM_MEM_PER_NODE" in err and "sacct" not in err
    assert canonical_hash(results / "runs") == undisturbed
    script = (tmp_path / "script").read_text()
    for line in ("--array=0-1%2", "--partition=gpu", "--gpus-per-node=1", "--mem=64GB", "--time=240", "--licenses=x"):
        assert f"#SBATCH {line}" in script, script
    assert "#SBATCH --signal=USR2@90" in script


def stand_in(folder, **programs):
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


@pytest.mark.slow
def test_jobs_that_left_the_queue_without_a_result_end_the_run(results, tmp_path):
    """sbatch takes them, nothing ever runs; one is cancelled, the queue has forgotten the other."""
    squeue = '#!/bin/bash\necho "4000_0|CANCELLED"\n'
    stand_in(tmp_path, sbatch="#!/bin/bash\necho Submitted batch job 4000\n", srun=SRUN, squeue=squeue)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    code, out, err = ended(submit(("launcher=submitit",), results, PATH=path))
    assert code == 1 and json.loads(out.splitlines()[-1])["incomplete"] == 4
    assert "job 4000_0 ended without a result: CANCELLED; its log:" in err
    assert "job 4000_1 ended without a result: GONE; its log:" in err


@pytest.fixture
def answers(monkeypatch):
    """What squeue says, one answer after another; nothing is waited for."""
    given = []
    monkeypatch.setattr(slurm_queue, "states", lambda jobs: given.pop(0))
    monkeypatch.setattr(slurm_queue, "ASK_SECONDS", 0)
    monkeypatch.setattr(slurm_queue, "SETTLE_SECONDS", 0)
    return given


@pytest.mark.parametrize(
    "said, expected",
    [
        ([{"7": "PENDING"}, {"7": "RUNNING"}, {"7": "COMPLETING"}], [None, None, None]),
        ([{"7": "RUNNING"}, {"7": "CANCELLED"}, {}], [None, "CANCELLED", "CANCELLED"]),
        ([{"7": "RUNNING"}, {}, {}], [None, "GONE", "GONE"]),
        ([{"7": "TIMEOUT"}, {"7": "PENDING"}, {"7": "RUNNING"}], ["TIMEOUT", None, None]),
        ([{"7": "RUNNING"}, None, None, {"7": "FAILED"}], [None, None, None, "FAILED"]),
    ],
)
def test_a_job_has_ended_when_the_queue_says_so_or_has_forgotten_it(said, expected, answers, caplog):
    answers += said
    queue = slurm_queue.Queue(["7"])
    assert [queue.ended_as("7") for _ in expected] == expected
    assert len(caplog.records) == (None in said), "a queue that does not answer is said once"


@pytest.mark.parametrize(
    "squeue, expected",
    [
        ('echo "4000_0|RUNNING"; echo "4000_1|PENDING"', {"4000_0": "RUNNING", "4000_1": "PENDING"}),
        ('echo "4000_[0-7%2]|CANCELLED"', {"4000_0": "CANCELLED", "4000_1": "CANCELLED"}),
        ('echo "4000|CANCELLED"; echo "4000_1|FAILED"', {"4000_0": "CANCELLED", "4000_1": "FAILED"}),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", {}),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", None),
        ('echo "$@" | grep -q -- "--jobs=4000$" && echo "4000_0|FAILED"', {"4000_0": "FAILED"}),
    ],
)
def test_what_squeue_says(squeue, expected, tmp_path, monkeypatch):
    stand_in(tmp_path, squeue=f"#!/bin/bash\n{squeue}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert slurm_queue.states(["4000_1", "4000_0"]) == expected


class SubmititJob:
    """Of submitit's jobs, what is used."""

    job_id = "7"

    def __init__(self, folder, error=None):
        self.paths = SimpleNamespace(
            result_pickle=folder / "result", stderr=folder / "err", stdout=folder / "out", folder=folder
        )
        self.error = error

    def result(self):
        raise self.error


def test_a_failed_job_is_said_with_its_own_last_lines(tmp_path, answers):
    answers.append({"7": "FAILED"})
    job = submitit_jobs.Job(SubmititJob(tmp_path), slurm_queue.Queue(["7"]))
    (tmp_path / "out").write_text("no such module: cuda\n\nstopping\n")
    assert job.done()
    answers.append({"7": "FAILED"})
    with pytest.raises(WorkFailed, match=r"FAILED; it said last: no such module: cuda / stopping; its log: .*err"):
        job.problems()


def test_an_error_of_the_work_itself_is_named_by_its_last_line(tmp_path):
    rule = 30 * "-"
    text = f"Job failed with trace:\n{rule}\nTraceback:\n  somewhere\nValueError: bad\n{rule}\nsee also: x\n- a.out"
    job = submitit_jobs.Job(SubmititJob(tmp_path, RuntimeError(text)), None)
    with pytest.raises(WorkFailed, match="ended without a result: ValueError: bad; its log"):
        job.problems()


def real_slurm(tmp_path_factory):
    return slurm_node.cluster(tmp_path_factory.mktemp("slurm"))


SLURM_WORDS = ("launcher=submitit", "launcher.gpus_per_node=0", "launcher.cpus_per_task=1", "launcher.mem_gb=1")
needs_slurm = pytest.mark.skipif(slurm_node.missing() is not None, reason=f"no Slurm: {slurm_node.missing()}")


@pytest.mark.slow
@needs_slurm
def test_a_real_slurm_of_one_node_gives_the_records_of_one_run(undisturbed, results, tmp_path_factory):
    with real_slurm(tmp_path_factory) as environment:
        more = {"SLURM_CONF": environment["SLURM_CONF"], "SBATCH_PARTITION": "nowhere", "SLURM_MEM_PER_NODE": "1"}
        code, out, err = ended(submit((*SLURM_WORDS, "launcher.shards=2"), results, **more))
    assert code == 0, err
    assert json.loads(out.splitlines()[-1]) == {"cells": 4, "sealed": 4, "incomplete": 0}
    assert canonical_hash(results / "runs") == undisturbed


@pytest.mark.slow
@needs_slurm
def test_a_real_slurm_without_accounting_ends_the_run_when_jobs_die_or_are_cancelled(results, tmp_path_factory):
    with real_slurm(tmp_path_factory) as environment:
        more = {"SLURM_CONF": environment["SLURM_CONF"]}
        dies = ("launcher.setup=['echo no such module >&2','exit 3']",)
        code, out, err = ended(submit((*SLURM_WORDS, *dies), results, **more))
        assert code == 1 and "ended without a result: FAILED; it said last: no such module; its log:" in err, err
        assert "sacct" not in err
        held = submit((*SLURM_WORDS, "launcher.sbatch={hold: true}"), results, **more)
        slurm_node.wait_for(lambda: "PENDING" in slurm_node.run(environment, "squeue", "--noheader", "--format=%T"))
        slurm_node.run(environment, "scancel", "--user=root")
        code, out, err = ended(held)
        assert code == 1 and "ended without a result: CANCELLED" in err, err


def test_what_would_change_float32_is_dropped_and_said(monkeypatch, caplog):
    for name in ambient.ROUNDING:
        monkeypatch.setenv(name, "1")
    ambient.drop_rounding()
    assert not set(ambient.ROUNDING) & set(os.environ)
    assert [record.args for record in caplog.records] == [(name,) for name in ambient.ROUNDING]
    ambient.drop_rounding()
    assert len(caplog.records) == 2


def test_what_jobs_may_not_see_is_back_afterwards(monkeypatch):
    monkeypatch.setenv("SBATCH_QOS", "high")
    monkeypatch.setenv("SLURM_CONF", "/x")
    with pytest.raises(OSError), ambient.without(ambient.SLURM, ambient.KEPT):
        assert "SBATCH_QOS" not in os.environ and os.environ["SLURM_CONF"] == "/x"
        raise OSError
    assert os.environ["SBATCH_QOS"] == "high"


def test_what_libraries_write_to_the_error_stream_goes_into_a_file_and_ours_does_not(tmp_path, capfd):
    with ambient.stderr_in(tmp_path / "logs" / "ray.log"):
        os.write(2, b"(raylet) a node died\n")
        print("ours", file=sys.stderr)
    print("after", file=sys.stderr)
    assert capfd.readouterr().err == "ours\nafter\n"
    assert (tmp_path / "logs" / "ray.log").read_text() == "(raylet) a node died\n"


# Ray


@pytest.mark.slow
def test_ray_gives_the_records_of_one_run_and_a_dead_worker_is_started_again(undisturbed, results):
    """Each worker dies after the first example that it records; what follows goes on from there."""
    words = ("launcher=ray", "launcher.num_gpus=0", "launcher.num_cpus=1", "launcher.retries=4")
    code, out, err = ended(submit(words, results, fault="committed:3"))
    assert code == 0, err
    assert json.loads(out.splitlines()[-1]) == {"cells": 4, "sealed": 4, "incomplete": 0}
    assert canonical_hash(results / "runs") == undisturbed


@pytest.mark.slow
def test_ray_says_what_it_cannot_hold_and_what_went_wrong(results, monkeypatch):
    with pytest.raises(ValueError, match="launcher.num_gpus=64: this machine has"):
        run(replace(RAY, num_gpus=64))
    with ray_tasks.connected(RAY, results / "ray.log") as engine:
        (handle,) = engine.start([Payload((composed().resolved,), ("c00000000000",), None, str(results))])
        done = threading.Event()
        while not handle.done():
            done.wait(0.1)
        with pytest.raises(WorkFailed, match="ValueError: cells c00000000000 are unknown here"):
            handle.problems()
