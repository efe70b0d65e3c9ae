"""One atomic record for each example of a group: who is decoded with whom, after kills, changes and failures."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
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

from inertia.experiments import run as harness
from inertia.records import CorruptRecord, NewerSchema, canonical_hash, read_cells
from inertia.records import group as groups
from inertia.records.group import Plan, batch_id, held, remove_finished
from inertia.records.journal import encode
from inertia.records.layout import cell_folders
from inertia.records.load import load_open_rows, load_own_rows
from inertia.records.settle import rows_sha256

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


def killed(results: Path, names: str, point: str = "group-synced:2", n: int = N) -> None:
    done = child(results, point, names=names, n=n)
    assert done.returncode == -signal.SIGKILL, done.stderr


def calls(results: Path) -> list[str]:
    return (results / "calls").read_text().splitlines()


def load_rows(results: Path, policy: str, task: str) -> list[Any]:
    (cell,) = cells([policy], N, tasks=[task])
    (found,) = [each for each in read_cells(results / "runs") if each.id == cell.id]
    return list(found.rows)


def leftovers(results: Path) -> list[str]:
    return [path.name for path in (results / "runs" / "groups").iterdir()]


def test_an_example_is_one_line_for_all_its_cells_before_any_cell_has_it(tmp_path):
    killed(tmp_path, "a,b,c")
    (path,) = (tmp_path / "runs" / "groups").glob("*.jsonl")
    head, first, second = [json.loads(line) for line in path.read_text().splitlines()]
    ids = sorted(cell.id for cell in cells("abc", N, tasks=["t"]))
    assert head["cells"] == ids and path.stem == batch_id(ids)
    assert head["plans"] == [{"cells": ids, "examples": ["t/e0", "t/e1", "t/e2"]}]
    assert [first["example"], second["example"]] == ["t/e0", "t/e1"]
    assert second["batches"] == [{"batch": batch_id(ids), "cells": ids}]
    assert [each["row"]["cell_id"] for each in second["rows"]] == ids
    for cell, folder in cell_folders(tmp_path / "runs").items():
        assert len(load_own_rows(folder, cell)) == 1, "killed before the second example went on"
        assert len(load_open_rows(folder, cell)) == 2, "a reader sees what is durable"


def test_the_same_command_again_gives_the_same_records(tmp_path, undisturbed):
    killed(tmp_path, "a,b,c", "distribute:5")
    assert child(tmp_path).returncode == 0
    clean = undisturbed("a,b,c")
    assert canonical_hash(tmp_path / "runs") == canonical_hash(clean / "runs")
    assert calls(tmp_path) == calls(clean), "a recorded example was decoded again"
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
    assert any(name.endswith(".jsonl") for name in leftovers(tmp_path)), "c is still under its plan"
    assert child(tmp_path, names="a,b,c").returncode == 0
    assert calls(tmp_path)[6:] == ["t/e2 abc", "u/e0 c", "u/e1 c", "u/e2 c"]
    rows = {name: load_rows(tmp_path, name, "t") for name in "abc"}
    assert [json.loads(row["telemetry"])["decoded_with"] for row in rows["a"]] == [
        batch_id(cell.id for cell in cells(names, N, tasks=["t"])) for names in ("abc", "abc", "ab")
    ]
    assert rows_sha256(rows["c"]) == rows_sha256(load_rows(undisturbed("a,b,c"), "c", "t"))
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
    assert child(roots[0], "group-synced:3", WRONG="b/e1").returncode == -signal.SIGKILL
    for root in roots:
        assert child(root, WRONG="b/e1" if root.name == "whole" else "u").returncode in (0, 1)
        assert child(root).returncode == 0
    hashes = [rows_sha256(load_rows(root, name, "t")) for root in roots for name in "abc"]
    assert hashes[:3] == hashes[3:]


SECOND = ["replay-written:2", "replay-synced:2", "replace:4"]


@pytest.mark.parametrize(
    "point", ["replay-half:1", "settle:1", *(pytest.param(each, marks=pytest.mark.slow) for each in SECOND)]
)
def test_a_second_kill_during_the_replay(tmp_path, undisturbed, point):
    killed(tmp_path, "a,b,c")
    killed(tmp_path, "a,b,c", point)
    assert child(tmp_path).returncode == 0
    clean = undisturbed("a,b,c")
    assert canonical_hash(tmp_path / "runs") == canonical_hash(clean / "runs")
    assert calls(tmp_path) == calls(clean)


def test_a_kill_before_the_group_is_cleared_away_leaves_nothing_for_good(tmp_path):
    killed(tmp_path, "a,b,c", "seal:3")
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


def test_rows_of_a_folder_that_was_removed_stay_away(tmp_path):
    killed(tmp_path, "a,b,c")
    for folder in (tmp_path / "runs").glob("stub_a_*"):
        shutil.rmtree(folder)
    killed(tmp_path, "a,b,c", "settle:1")
    assert child(tmp_path).returncode == 0
    assert [calls(tmp_path).count(f"t/e{index} abc") for index in range(N)] == [2, 2, 1]


def test_a_group_costs_one_flush_for_each_example(monkeypatch, results):
    flushes, seen = [], []
    real, answers = os.fsync, harness.answers
    monkeypatch.setattr(os, "fsync", lambda descriptor: (flushes.append(1), real(descriptor)))
    monkeypatch.setattr(harness, "answers", lambda *given: (seen.append(len(flushes)), answers(*given))[1])
    many = [f"p{number}" for number in range(36)]
    assert all(outcome.summary["ok"] == 4 for outcome in sweep(many, 4, tasks=["t"]))
    assert [after - before for before, after in zip(seen, seen[1:], strict=False)] == [1, 1, 1]


def test_lines_are_dropped_once_the_cells_have_them(monkeypatch, results):
    monkeypatch.setattr(groups, "LINES", 2)
    seen: list[tuple[int, list[int]]] = []
    real = harness.answers

    def look(batch, example, runner):
        (path,) = (results / "runs" / "groups").glob("*.jsonl")
        rows = [len((cell_folders(results / "runs")[c.id] / "samples.jsonl").read_bytes().splitlines()) for c in batch]
        seen.append((len(path.read_bytes().splitlines()), rows))
        return real(batch, example, runner)

    sweep("abc", 3, tasks=["t"])
    monkeypatch.setattr(harness, "answers", look)
    sweep("abc", 6, tasks=["t"])
    assert seen == [(1, [3] * 3), (2, [4] * 3), (1, [5] * 3)]


def test_all_is_flushed_before_lines_are_dropped(monkeypatch, results):
    """A killed process may leave rows in a cell's journal that are not on the disk yet: whoever drops lines flushes."""
    killed(results, "a,b,c", "generate:3")
    journals = {path.stat().st_ino for path in (results / "runs").glob("*/samples.jsonl")}
    flushed: set[int] = set()
    real, replace = os.fsync, groups.write_atomic

    def fsync(descriptor: int) -> None:
        flushed.add(os.fstat(descriptor).st_ino)
        real(descriptor)

    def check(path: Path, data: bytes) -> None:
        assert flushed >= journals, "a line goes whose rows may not be on the disk"
        replace(path, data)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(groups, "write_atomic", check)
    assert len(journals) == 3
    assert [outcome.problem for outcome in sweep("abc", N, tasks=["t"])] == [None] * 3


def test_a_lost_machine_loses_no_line(results, undisturbed):
    """Rows that were handed on without a flush may vanish or be torn; the group's journal has them all."""
    killed(results, "a,b,c", "group-half:3")
    for path, keep in zip(sorted((results / "runs").glob("*_t__*/samples.jsonl")), (0, 10, None), strict=True):
        path.write_bytes(path.read_bytes()[:keep])
    assert child(results).returncode == 0
    clean = undisturbed("a,b,c")
    assert canonical_hash(results / "runs") == canonical_hash(clean / "runs")
    assert len(calls(results)) == len(calls(clean)) + 1


def truncated(source: Path, target: Path, name: str, size: int) -> None:
    shutil.copytree(source, target)
    path = target / "runs" / name
    path.write_bytes(path.read_bytes()[:size])


@pytest.fixture(scope="module")
def torn(tmp_path_factory) -> dict[str, Any]:
    """Results of a killed run whose cells lack the last two examples, and of the run that nobody killed."""
    root = tmp_path_factory.mktemp("torn")
    clean, source = root / "clean", root / "killed"
    assert child(clean, n=4).returncode == 0
    killed(source, "a,b,c", "generate:4", n=4)
    for path in (source / "runs").glob("*/samples.jsonl"):
        path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    (journal,) = (source / "runs" / "groups").glob("*.jsonl")
    return {
        "source": source,
        "expected": canonical_hash(clean / "runs"),
        "group": f"groups/{journal.name}",
        "cell": next(str(path.relative_to(source / "runs")) for path in (source / "runs").glob("*/samples.jsonl")),
        "lines": journal.read_bytes().splitlines(keepends=True),
    }


def cut(torn: dict[str, Any], which: str, size: int) -> list[int]:
    """Cut a journal, and return how many examples each cell has then."""
    path = torn["source"] / "runs" / torn[which]
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[:size])
        return [len(load_open_rows(folder, cell)) for cell, folder in cell_folders(torn["source"] / "runs").items()]
    finally:
        path.write_bytes(whole)


def complete(torn: dict[str, Any], size: int) -> int:
    """Return how many examples are whole in the first `size` bytes of the group's journal; the cells have one."""
    ends = [sum(len(line) for line in torn["lines"][: number + 1]) for number in range(1, len(torn["lines"]))]
    return max(1, sum(end <= size for end in ends))


@given(share=st.floats(0, 1))
def test_a_torn_group_journal_gives_an_example_to_all_cells_or_none(torn, share):
    size = round(share * sum(map(len, torn["lines"])))
    assert cut(torn, "group", size) == [complete(torn, size)] * 3


@pytest.mark.slow
def test_a_group_journal_torn_at_every_byte_of_its_last_two_examples(torn):
    total = sum(map(len, torn["lines"]))
    for size in range(total - sum(map(len, torn["lines"][-2:])), total + 1):
        assert cut(torn, "group", size) == [complete(torn, size)] * 3, size


@pytest.mark.slow
def test_a_cell_journal_torn_at_every_byte_is_made_whole_by_its_group(torn):
    for size in range(len((torn["source"] / "runs" / torn["cell"]).read_bytes()) + 1):
        assert cut(torn, "cell", size) == [3] * 3, size


def test_a_kill_between_two_rows_of_a_replay_loses_neither(torn, tmp_path):
    results = tmp_path / "results"
    shutil.copytree(torn["source"], results)
    killed(results, "a,b,c", "replay-half:1", n=4)
    assert child(results, n=4).returncode == 0
    assert canonical_hash(results / "runs") == torn["expected"]
    assert [calls(results).count(f"t/e{index} abc") for index in range(4)] == [1, 1, 1, 2]


def edges(lines: list[bytes]) -> list[int]:
    """Return sizes around the ends of lines, and in their middles."""
    ends = [sum(map(len, lines[: number + 1])) for number in range(len(lines))]
    return sorted({size for end in ends[-3:] for size in (end - 300, end - 1, end) if 0 <= size <= ends[-1]})


@pytest.mark.parametrize("which", ["group", "cell"])
def test_a_torn_journal_resumes_to_the_same_records(torn, tmp_path, monkeypatch, which):
    lines = (torn["source"] / "runs" / torn[which]).read_bytes().splitlines(keepends=True)
    for size in edges(lines):
        results = tmp_path / str(size)
        truncated(torn["source"], results, torn[which], size)
        monkeypatch.setenv("INERTIA_RESULTS", str(results))
        assert all(outcome.problem is None for outcome in sweep("abc", 4))
        assert canonical_hash(results / "runs") == torn["expected"], size
        shutil.rmtree(results)


FULL = {
    "group journal": "groups/b",
    "cell journal": "samples.jsonl",
    "parquet": "samples.parquet",
    "summary": "summary.json",
    "manifest": "manifest.json",
}


@pytest.mark.parametrize("nth", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("file", FULL)
def test_a_full_disk_loses_nothing(monkeypatch, results, undisturbed, file, nth):
    opened: dict[int, str] = {}
    writes: list[int] = []
    real_open, real_write = os.open, os.write

    def note(path: Any, *rest: Any, **more: Any) -> int:
        descriptor = real_open(path, *rest, **more)
        opened[descriptor] = str(path)
        return descriptor

    def full(descriptor: int, data: Any) -> int:
        name = opened.get(descriptor, "").replace("/.", "/")
        if FULL[file] in name and ".lock" not in name:
            writes.append(1)
            if len(writes) >= nth:
                real_write(descriptor, bytes(data)[: len(data) // 2])
                raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(descriptor, data)

    monkeypatch.setattr(os, "open", note)
    monkeypatch.setattr(os, "write", full)
    outcomes = sweep("abc", N)
    monkeypatch.undo()
    group_child.stand_in(monkeypatch.setattr)
    monkeypatch.setenv("INERTIA_RESULTS", str(results))
    bad = [outcome.problem for outcome in outcomes if outcome.problem is not None]
    assert bad and all("No space left on device (writing below" in problem.replace("] ", "") for problem in bad[:1])
    before = calls(results) if (results / "calls").exists() else []
    recorded = {row["example_id"] for cell in read_cells(results / "runs") for row in cell.rows}
    assert all(outcome.problem is None for outcome in sweep("abc", N))
    clean = undisturbed("a,b,c")
    assert canonical_hash(results / "runs") == canonical_hash(clean / "runs")
    again = [call.split()[0] for call in calls(results)[len(before) :]]
    assert not recorded.intersection(again), "what was recorded is decoded again"
    assert leftovers(results) == []


def test_a_group_in_use_is_left_alone_whole(results):
    ids = [cell.id for cell in cells("abc", N, tasks=["t"])]
    with held(results / "runs", ids, "t"):
        outcomes = sweep("abc", N)
    stopped = [outcome.problem for outcome in outcomes if outcome.problem is not None]
    assert len(stopped) == 3 and all(f"process {os.getpid()}: wait for it" in problem for problem in stopped)
    assert {outcome.cell.task for outcome in outcomes if outcome.summary is not None} == {"u"}
    assert [call.split("/")[0] for call in calls(results)] == ["u"] * N


def test_a_cell_in_use_leaves_the_others_in_one_batch(results):
    (taken,) = cells("a", N, tasks=["t"])
    with harness.opened(taken, {}):
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
    assert any(name.endswith(".lock") for name in leftovers(results))
    assert all(outcome.problem is None for outcome in sweep("abc", N))
    assert leftovers(results) == [] and not list((results / "runs").glob(".*.lock"))


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
    progress = {(cell.label, cell.progress) for cell in read_cells(tmp_path / "runs") if cell.label.endswith("_t")}
    assert {text for label, text in progress if "_b_" in label} == {"incomplete 17/20"}
    assert [text for label, text in progress if "_b_" not in label] == ["complete 20/20"] * 2


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

    monkeypatch.setattr(harness, "answers", leak)
    asked = {"url": "https://me:hunter22@host.org/x", "api_key": "plainkey9", "path": f"{home}/data", "note": SECRET}
    outcomes = sweep("abc", N, resolved=asked)
    assert all("incomplete 2/3" in outcome.problem for outcome in outcomes)
    files = [path for path in results.rglob("*") if path.is_file() and path.name != "calls"]
    assert any(path.parent.name == "groups" and len(path.read_bytes().splitlines()) == 1 + N for path in files)
    for path in files:
        text = path.read_bytes().decode("utf-8", "replace")
        for private in (SECRET, "hunter22", "plainkey9", str(home)):
            assert private not in text, (path, private)


def test_a_damaged_group_journal_is_named_with_its_line(results):
    killed(results, "a,b,c")
    (path,) = (results / "runs" / "groups").glob("*.jsonl")
    head, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(head + b"garbage\n" + rest[1])
    outcomes = sweep("abc", N, tasks=["t"])
    assert all(f"{path.name}, line 2: not JSON" in outcome.problem for outcome in outcomes)
    assert all("move the file away" in outcome.problem for outcome in outcomes)
    path.unlink()
    assert all(outcome.problem is None for outcome in sweep("abc", N, tasks=["t"]))


@pytest.mark.parametrize(
    ("head", "error", "message"),
    [
        (b"[]\n", CorruptRecord, "line 1: not JSON"),
        (b'{"schema_version":1,"cells":["c1"]}\n', CorruptRecord, "no head of a group"),
        (b'{"schema_version":99,"cells":[],"plans":[]}\n', NewerSchema, "update inertia"),
    ],
)
def test_heads_are_checked(tmp_path, head, error, message):
    folder = tmp_path / "groups"
    folder.mkdir()
    (folder / "b0.jsonl").write_bytes(head)
    with pytest.raises(error, match=message):
        groups.read_heads(tmp_path)


def test_a_torn_head_is_no_group(tmp_path, caplog):
    (tmp_path / "groups").mkdir()
    (tmp_path / "groups" / "b0.jsonl").write_bytes(b'{"schema_version":1,"cells":')
    assert groups.read_heads(tmp_path) == [] and "nothing complete" in caplog.text
    assert groups.read_heads(tmp_path / "elsewhere") == []


def test_a_group_file_stays_while_a_cell_is_unfinished_or_someone_holds_it(tmp_path):
    root = tmp_path
    (root / "groups").mkdir()
    ids = ("c" + "0" * 11, "c" + "1" * 11)
    path = root / "groups" / f"{batch_id(ids)}.jsonl"
    path.write_bytes(groups.Head(path, ids, (Plan(ids, frozenset({"e"})),)).encode())
    for cell in ids:
        (root / f"x__{cell}").mkdir()
    (root / f"x__{ids[0]}" / "summary.json").touch()
    remove_finished(root, ids[:1])
    assert path.exists(), "one is unfinished"
    (root / f"x__{ids[1]}" / "summary.json").touch()
    remove_finished(root, ["c" + "2" * 11])
    assert path.exists(), "another group's business"
    with held(root, ids, "x"):
        remove_finished(root, ids[:1])
        assert path.exists(), "held"
    (root / f"x__{ids[1]}" / "summary.json").unlink()
    (root / f"x__{ids[1]}").rmdir()
    remove_finished(root, ids[:1])
    assert not path.exists(), "one is sealed, the folder of the other is gone"


@given(st.sets(st.text("0123456789abcdef", min_size=11, max_size=11).map("c{}".format), min_size=1), st.randoms())
def test_a_batch_is_a_set(ids, random):
    shuffled = list(ids)
    random.shuffle(shuffled)
    assert batch_id(shuffled) == batch_id(ids) and len(batch_id(ids)) == 12
    assert batch_id([*ids, "cffffffffffff"]) != batch_id(ids)


def test_a_line_survives_any_text(monkeypatch, results):
    odd = 'a\u2028b\n"\ud800' + "é"
    monkeypatch.setattr(group_child.Bench, "diagnostics", lambda *_: {odd.encode("utf-8", "replace").decode(): 1.0})
    killed_line = encode({"x": odd})
    assert killed_line.count(b"\n") == 1 and killed_line.isascii()
    assert all(outcome.problem is None for outcome in sweep("ab", N, tasks=["t"]))
