"""One transaction for each batch of a group: who is decoded with whom, after kills, changes and failures."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import group_child
import pytest
from group_child import begin, cells, child, end, sweep
from hypothesis import given
from hypothesis import strategies as st

from inertia.experiments import decode
from inertia.experiments.cells import plan_of
from inertia.records import canonical_hash, read_cells
from inertia.records.attempts import rows_sha256
from inertia.records.lock import claimed
from inertia.records.store import LOCKS, files, reading, rows
from inertia.records.writer import Batch, writing

N = 3


@pytest.fixture(autouse=True)
def model(monkeypatch):
    """No test here has a model."""
    group_child.stand_in(monkeypatch.setattr)
    monkeypatch.delenv("WRONG", raising=False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Callable[..., Path]:
    """A function that runs commands that nobody kills, and returns their results."""
    root = tmp_path_factory.mktemp("undisturbed")

    def run(*commands: str, n: int = N) -> Path:
        results = root / f"{'-'.join(commands)}-{n}"
        if not results.exists():
            for names in commands:
                assert child(results, names=names, n=n).returncode == 0
        return results

    return run


def killed(results: Path, names: str, point: str = "committed:4", n: int = N) -> None:
    """Run a sweep that is killed, by default after the second example of the first task."""
    done = child(results, point, names=names, n=n)
    assert done.returncode == -signal.SIGKILL, done.stderr


def calls(results: Path) -> list[str]:
    return (results / "calls").read_text().splitlines()


def load_rows(results: Path, policy: str, task: str) -> list[Any]:
    (cell,) = cells([policy], N, tasks=[task])
    (found,) = [each for each in read_cells(results / "runs") if each.id == cell.id]
    return list(found.rows)


def table(results: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table, over all files."""
    found = []
    for path in files(results / "runs"):
        with reading(path) as connection:
            found += rows(connection, name)
    return found


def leftovers(results: Path) -> list[str]:
    return [path.name for path in (results / "runs").rglob("*") if path.is_file() and path.suffix != ".db"]


def test_batches_are_planned_before_and_recorded_whole(tmp_path):
    killed(tmp_path, "a,b,c")
    ids = sorted(cell.id for cell in cells("abc", N, tasks=["t"]))
    plans = {row["id"]: json.loads(row["plan"]) for row in table(tmp_path, "batch")}
    wanted = [Batch(tuple(ids), (f"t/e{index}",)) for index in range(N)]
    assert plans == {each.id: {"cells": ids, "examples": list(each.examples)} for each in wanted}
    samples = table(tmp_path, "sample")
    assert sorted((row["cell"], row["example"]) for row in samples) == [(i, f"t/e{n}") for i in ids for n in (0, 1)]
    assert {(row["example"], row["batch"]) for row in samples} == {(b.examples[0], b.id) for b in wanted[:2]}
    for row in samples:
        full = json.loads(row["row"])
        assert (full["score"], full["status"], full["attempt"]) == (row["score"], row["status"], row["attempt"])


def test_nothing_of_a_batch_is_recorded_where_its_transaction_does_not_end(tmp_path):
    killed(tmp_path, "a,b,c", "commit:4")
    assert {row["example"] for row in table(tmp_path, "sample")} == {"t/e0"}


def test_the_same_command_again_gives_the_same_records(tmp_path, undisturbed):
    killed(tmp_path, "a,b,c", "commit:5")
    assert child(tmp_path).returncode == 0
    clean = undisturbed("a,b,c")
    assert canonical_hash(tmp_path / "runs") == canonical_hash(clean / "runs")
    assert calls(tmp_path) == [*calls(clean)[:3], *calls(clean)[2:]], "a recorded example was decoded again"
    assert leftovers(tmp_path) == []


def test_a_cell_added_after_the_kill_leaves_the_planned_batches_alone(tmp_path, undisturbed):
    killed(tmp_path, "a,b")
    assert child(tmp_path, names="a,b,c").returncode == 0
    assert calls(tmp_path)[2:6] == ["t/e0 c", "t/e1 c", "t/e2 ab", "t/e2 c"]
    assert calls(tmp_path)[6:] == [f"u/e{index} abc" for index in range(N)], "was not begun"
    clean = undisturbed("a,b", "a,b,c")
    for name in "abc":
        assert rows_sha256(load_rows(tmp_path, name, "t")) == rows_sha256(load_rows(clean, name, "t"))
    assert leftovers(tmp_path) == []


def test_a_cell_removed_after_the_kill_is_not_decoded_and_has_its_batch_when_it_is_back(tmp_path, undisturbed):
    killed(tmp_path, "a,b,c")
    assert child(tmp_path, names="a,b").returncode == 0
    assert calls(tmp_path)[2:] == ["t/e2 ab", "u/e0 ab", "u/e1 ab", "u/e2 ab"]
    assert child(tmp_path, names="a,b,c").returncode == 0
    assert calls(tmp_path)[6:] == ["t/e2 abc", "u/e0 c", "u/e1 c", "u/e2 c"]
    found = {name: load_rows(tmp_path, name, "t") for name in "abc"}
    assert [json.loads(row["telemetry"])["decoded_with"] for row in found["a"]] == [
        Batch(tuple(sorted(cell.id for cell in cells(names, N, tasks=["t"]))), (f"t/e{index}",)).id
        for index, names in enumerate(("abc", "abc", "ab"))
    ]
    assert rows_sha256(found["c"]) == rows_sha256(load_rows(undisturbed("a,b,c"), "c", "t"))
    assert leftovers(tmp_path) == []


def test_a_cell_sealed_alone_in_between_does_not_change_the_others(tmp_path, undisturbed):
    killed(tmp_path, "a,b,c")
    assert child(tmp_path, names="a").returncode == 0
    assert child(tmp_path, names="a,b,c").returncode == 0
    clean = undisturbed("a,b,c")
    for policy in "bc":
        mine, theirs = (rows_sha256(load_rows(results, policy, "t")) for results in (tmp_path, clean))
        assert mine == theirs
    assert "t/e2 abc" in calls(tmp_path)
    assert leftovers(tmp_path) == []


def test_an_example_that_failed_in_one_cell_is_tried_again_in_its_batch(tmp_path, undisturbed):
    done = child(tmp_path, WRONG="b/e1")
    assert done.returncode == 1 and done.stderr.count("incomplete 2/3") == 2 and "b cannot do t/e1" in done.stderr
    assert [cell.identity["policy"]["kind"] for cell in read_cells(tmp_path / "runs") if not cell.sealed] == ["b"] * 2
    before = len(calls(tmp_path))
    assert child(tmp_path).returncode == 0
    assert calls(tmp_path)[before:] == ["t/e1 abc", "u/e1 abc"]
    first = {**dict.fromkeys(("attempt",))}
    mine, theirs = (
        [{**row, **first} for row in load_rows(results, "b", "t")] for results in (tmp_path, undisturbed("a,b,c"))
    )
    assert rows_sha256(mine) == rows_sha256(theirs)


def test_a_kill_around_a_failure_is_invisible(tmp_path):
    roots = [tmp_path / "killed", tmp_path / "whole"]
    assert child(roots[0], "committed:5", WRONG="b/e1").returncode == -signal.SIGKILL
    for root in roots:
        assert child(root, WRONG="b/e1" if root.name == "whole" else "u").returncode in (0, 1)
        assert child(root).returncode == 0
    hashes = [rows_sha256(load_rows(root, name, "t")) for root in roots for name in "abc"]
    assert hashes[:3] == hashes[3:]


@pytest.mark.parametrize("point", ["commit:2", pytest.param("committed:2", marks=pytest.mark.slow)])
def test_a_second_kill_when_it_goes_on(tmp_path, undisturbed, point):
    killed(tmp_path, "a,b,c")
    killed(tmp_path, "a,b,c", point)
    assert child(tmp_path).returncode == 0
    clean = undisturbed("a,b,c")
    assert canonical_hash(tmp_path / "runs") == canonical_hash(clean / "runs")


def test_a_kill_before_the_last_seal_leaves_nothing_for_good(tmp_path):
    killed(tmp_path, "a,b,c", "seal:2")
    assert len(leftovers(tmp_path)) >= 1
    assert child(tmp_path).returncode == 0
    assert leftovers(tmp_path) == []


def test_more_examples_go_on_in_the_same_batch(tmp_path, undisturbed):
    killed(tmp_path, "a,b,c")
    assert child(tmp_path, n=5).returncode == 0
    assert canonical_hash(tmp_path / "runs") == canonical_hash(undisturbed("a,b,c", n=5) / "runs")


def test_the_order_of_the_words_does_not_matter(tmp_path, undisturbed):
    killed(tmp_path, "c,a,b")
    assert child(tmp_path, names="b,c,a").returncode == 0
    assert canonical_hash(tmp_path / "runs") == canonical_hash(undisturbed("a,b,c") / "runs")


@pytest.mark.slow
def test_the_hash_seed_does_not_matter(tmp_path, undisturbed):
    code = "import group_child; group_child.stand_in(); group_child.sweep('abc', 3)"
    for seed in ("1", "2"):
        results = tmp_path / seed
        environment = {**os.environ, "INERTIA_RESULTS": str(results), "PYTHONHASHSEED": seed}
        paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
        command = [sys.executable, "-c", code]
        subprocess.run(command, env={**environment, "PYTHONPATH": paths}, check=True)
        assert canonical_hash(results / "runs") == canonical_hash(undisturbed("a,b,c") / "runs")


def test_a_batch_costs_one_transaction(monkeypatch, results):
    commits, seen = [], []
    answers, connect = decode.answers, sqlite3.connect

    def traced(*given, **more):
        connection = connect(*given, **more)
        connection.set_trace_callback(lambda text: commits.append(text) if text.startswith("COMMIT") else None)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    monkeypatch.setattr(decode, "answers", lambda *given: (seen.append(len(commits)), answers(*given))[1])
    many = [f"p{number}" for number in range(36)]
    assert all(outcome.summary["ok"] == 4 for outcome in sweep(many, 4, tasks=["t"]))
    assert [after - before for before, after in zip(seen, seen[1:], strict=False)] == [1, 1, 1]


def test_a_full_disk_loses_no_example_and_the_rest_goes_on_when_there_is_room(results, undisturbed, monkeypatch):
    connect = sqlite3.connect

    def small(*given, **more):
        connection = connect(*given, **more)
        connection.execute("PRAGMA max_page_count = 12")
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", small)
        outcomes = sweep("abc", N)
    problems = [outcome.problem for outcome in outcomes if outcome.problem is not None]
    assert problems and all("database or disk is full" in each and "local.db" in each for each in problems)
    recorded = {(row["cell"], row["example"]) for row in table(results, "sample")}
    before = len(calls(results))
    assert all(outcome.problem is None for outcome in sweep("abc", N))
    assert canonical_hash(results / "runs") == canonical_hash(undisturbed("a,b,c") / "runs")
    again = {call.split()[0] for call in calls(results)[before:]}
    assert not again.intersection(name for _, name in recorded), "what was recorded is decoded again"
    assert leftovers(results) == []


def test_a_group_in_use_is_left_alone_whole(results):
    ids = [cell.id for cell in cells("abc", N, tasks=["t"])]
    with claimed(results / "runs" / LOCKS, ids, (1, 1), "t"):
        outcomes = sweep("abc", N)
    stopped = [outcome.problem for outcome in outcomes if outcome.problem is not None]
    assert len(stopped) == 3 and all(f"process {os.getpid()}: wait for it" in problem for problem in stopped)
    assert {outcome.cell.task for outcome in outcomes if outcome.summary is not None} == {"u"}
    assert [call.split("/")[0] for call in calls(results)] == ["u"] * N


def test_a_cell_in_use_leaves_the_others_in_one_batch(results):
    (taken,) = cells("a", N, tasks=["t"])
    with writing(results / "runs", "local", dict) as writer, writer.open([plan_of(taken)], "p", "t"):
        outcomes = sweep("abc", N)
    assert [outcome.cell.id for outcome in outcomes if outcome.problem is not None] == [taken.id]
    assert calls(results)[:N] == [f"t/e{index} bc" for index in range(N)]


def test_two_processes_on_one_sweep_share_the_work_and_lose_nothing(results, undisturbed):
    results.mkdir()
    both = [begin(results, None, "a,b,c", N, {}) for _ in range(2)]
    for done in [end(*each) for each in both]:
        assert done.returncode == 0 or "is being written by process" in done.stderr, done
    assert child(results).returncode == 0
    clean = undisturbed("a,b,c")
    assert canonical_hash(results / "runs") == canonical_hash(clean / "runs")
    assert sorted(calls(results)) == sorted(calls(clean)), "an example was decoded twice"


def test_the_lock_of_a_dead_process_is_taken_over(results):
    killed(results, "a,b,c", "generate:1")
    assert {".claim", ".lock"} <= {Path(name).suffix for name in leftovers(results)}
    assert all(outcome.problem is None for outcome in sweep("abc", N))
    assert leftovers(results) == []


def test_a_reader_beside_the_writer_always_parses(results):
    writer, said = begin(results, None, "a,b,c", 20, {})
    while writer.is_alive():
        if (results / "runs").exists():
            read_cells(results / "runs")
    assert end(writer, said).returncode == 0
    assert all(cell.sealed for cell in read_cells(results / "runs"))


def test_a_score_that_fails_is_a_failure_of_its_example_alone(monkeypatch, results):
    monkeypatch.setattr(
        group_child.Bench, "score", lambda _, example, text: 1 / 0 if text == "b of abc on t/e1" else 0.5
    )
    outcomes = sweep("abc", N, tasks=["t"])
    assert [outcome.problem is None for outcome in outcomes] == [True, False, True]
    assert "incomplete 2/3" in outcomes[1].problem and "division by zero" in outcomes[1].problem


def test_three_of_twenty_failing_is_incomplete_17_of_20(tmp_path):
    done = child(tmp_path, n=20, WRONG="b/e3,b/e7,b/e11")
    assert done.returncode == 1
    assert done.stderr.count("incomplete 17/20") == 2 and "b cannot do t/e3" in done.stderr
    progress = {(cell.label, cell.progress) for cell in read_cells(tmp_path / "runs") if "__t@" in cell.label}
    assert {text for label, text in progress if "__b " in label} == {"incomplete 17/20"}
    assert [text for label, text in progress if "__b " not in label] == ["complete 20/20"] * 2


def test_a_failure_of_a_larger_plan_is_tried_again_in_a_smaller_one(monkeypatch, results):
    monkeypatch.setenv("WRONG", "a/e2")
    sweep("ab", 3, tasks=["t"])
    monkeypatch.delenv("WRONG")
    assert [outcome.summary["ok"] for outcome in sweep("ab", 2, tasks=["t"])] == [3, 3]


SECRET = "s3cret-hf-value-0123"


def test_a_planted_secret_reaches_no_file(monkeypatch, results, tmp_path):
    home = tmp_path / "home" / "someone"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_TOKEN", SECRET)

    def leak(batch, example, runner):
        if example.id.endswith("e1"):
            raise RuntimeError(f"cannot get https://me:hunter22@host.org/x?token={SECRET} for {home}/models")
        return group_child.answers(batch, example, runner)

    monkeypatch.setattr(decode, "answers", leak)
    asked = {"url": "https://me:hunter22@host.org/x", "api_key": "plainkey9", "path": f"{home}/data", "note": SECRET}
    outcomes = sweep("abc", N, resolved=asked)
    assert all("incomplete 2/3" in outcome.problem for outcome in outcomes)
    written = [path for path in results.rglob("*") if path.is_file() and path.name != "calls"]
    assert [path.name for path in written] == ["local.db"]
    for private in (SECRET, "hunter22", "plainkey9", str(home)):
        assert private.encode() not in written[0].read_bytes(), private


def test_a_damaged_plan_is_said_and_made_again(results, undisturbed, caplog):
    killed(results, "a,b,c")
    (path,) = files(results / "runs")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE batch SET hash = 'x'")
    assert all(outcome.problem is None for outcome in sweep("abc", N))
    assert "what was planned there is planned again" in caplog.text
    assert canonical_hash(results / "runs") == canonical_hash(undisturbed("a,b,c") / "runs")


def test_batches_of_several_examples_are_decoded_whole_and_recorded_at_once(results):
    """As a session would plan them that decodes several prompts together."""
    sweep("ab", 1, tasks=["t"])
    plans = [plan_of(cell) for cell in cells("ab", 5, tasks=["t"])]
    two = Batch(tuple(sorted(plan.id for plan in plans)), ("t/e0", "t/e2"))
    group = cells("ab", 5, tasks=["t"])[0].group_key
    with writing(results / "runs", "other", dict) as writer, writer.open(plans, group, "t"):
        pass
    key = {row["prompts"] for row in table(results, "batch")}
    (path,) = [path for path in files(results / "runs") if path.name == "other.db"]
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM batch")
    with writing(results / "runs", "other", dict) as writer:
        writer.write(batch=[{"prompts": key.pop(), "id": two.id, "plan": two.plan}])
    assert all(outcome.problem is None for outcome in sweep("ab", 5, tasks=["t"]))
    assert calls(results)[1:] == ["t/e1 ab", "t/e0 ab", "t/e2 ab", "t/e3 ab", "t/e4 ab"]
    samples = table(results, "sample")
    assert [row["example"] for row in samples if row["batch"] == two.id] == ["t/e2"] * 2
    assert len(samples) == 10, "what was recorded already is recorded again"


@given(st.lists(st.text("0123456789abcdef", min_size=11, max_size=11).map("c{}".format), min_size=1, unique=True))
def test_the_id_of_a_batch_says_what_is_in_it(ids):
    batch = Batch(tuple(ids), ("e0", "e1"))
    assert batch.id == Batch(*map(tuple, json.loads(batch.plan).values())).id and len(batch.id) == 12
    for other in (Batch((*ids, "cffffffffffff"), ("e0", "e1")), Batch(tuple(ids), ("e0",)), Batch((), tuple(ids))):
        assert other.id != batch.id
    assert batch.rows == {(cell, name) for cell in ids for name in ("e0", "e1")}


def test_a_row_survives_any_text(monkeypatch, results):
    odd = 'a\u2028b\n"\ud800' + "é"
    monkeypatch.setattr(group_child.Bench, "diagnostics", lambda *_: {odd.encode("utf-8", "replace").decode(): 1.0})
    assert all(outcome.problem is None for outcome in sweep("ab", N, tasks=["t"]))
    (row, *_) = load_rows(results, "a", "t")
    assert odd.encode("utf-8", "replace").decode() in json.loads(row["metrics"])
