"""Kill a writer at a named point, run it again, and compare with a run nobody disturbed.

The child process for a single cell is this file: `python tests/test_records_crash.py ROOT N`. Its "model" notes every
call in a file outside the records, so that the tests can count what was done twice. Three cells and two tasks, which
decode together, run in `group_child`.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import group_child
import pytest

from inertia.records import canonical_hash, open_cell, read_cells, store
from inertia.records.faults import fault
from inertia.records.progress import progress
from inertia.records.store import files

N = 4
# The transactions of a run: the session, the cell with its batches, an example each, the seal, the session's end.
OPENED, SEALED = 2, N + 3
POINTS = (
    ["create:1", "seal:1"]
    + [f"commit:{n}" for n in range(1, SEALED + 1)]
    + [f"committed:{n}" for n in range(1, SEALED)]
    + [f"generate:{n}" for n in range(1, N + 1)]
)
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
FAST = [
    ("commit:4", "SIGKILL"),
    ("committed:3", "SIGTERM"),
    ("generate:2", "SIGINT"),
    ("commit:7", "SIGKILL"),
]


def generate(root: Path, name: str) -> dict[str, object]:
    """Stand in for the model: a fixed answer per example, and a note that it was asked."""
    with (root.parent / "calls").open("a") as calls:
        calls.write(name + "\n")
    fault("generate")
    index = int(name[1:])
    return {
        "example_id": name,
        "task": "t",
        "index": index,
        "prediction": f"p{index}" * int(os.environ.get("LONG", "1")),
        "score": index / 10,
        "tokens": [index],
    }


def main(root: Path, n: int) -> None:
    # A shell may start background jobs with SIGINT ignored; the test means Python's default.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "LONG" in os.environ:
        # A transaction that outgrows the cache is written to the file before it is committed.
        connect = store._connect
        store._connect = lambda *given, **more: small_cache(connect(*given, **more))
    planned = [f"e{index}" for index in range(n)]
    with open_cell(root, {"a": 1}, label="crash", planned=planned, config={}, provenance={}) as cell:
        for name in cell.missing:
            cell.append(generate(root, name))
        cell.seal()


def small_cache(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.execute("PRAGMA cache_size = 1")
    return connection


def child(root: Path, fault_point: str | None, n: int = N, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1]), **more}
    environment.pop("INERTIA_FAULT", None)
    if fault_point is not None:
        environment["INERTIA_FAULT"] = fault_point
    command = [sys.executable, __file__, str(root), str(n)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def check_killed(done: subprocess.CompletedProcess[str], name: str) -> None:
    if name == "SIGTERM":
        assert done.returncode == 143, done.stderr
    elif name == "SIGINT":
        assert done.returncode in (-signal.SIGINT, 130) and "KeyboardInterrupt" in done.stderr, done.stderr
    else:
        assert done.returncode == -signal.SIGKILL, done.stderr


def sessions(root: Path) -> list[str]:
    """Return how the sessions of all files ended, in their order."""
    found = []
    for path in files(root):
        with store.reading(path) as connection:
            found += [(row["started"], row["id"], row["status"]) for row in store.rows(connection, "session")]
    return [status for *_, status in sorted(found)]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("clean") / "runs"
    done = child(root, None)
    assert done.returncode == 0, done.stderr
    return canonical_hash(root)


def check_resumed(root: Path, expected: str, kills: int) -> None:
    done = child(root, None)
    assert done.returncode == 0, done.stderr
    assert canonical_hash(root) == expected
    assert {path.name for path in root.rglob("*") if path.is_file()} == {"local.db"}, "a lock or a journal is left"
    known, damage = progress(files(root))
    assert not damage and [each.attempts for each in known.values()] == [N]
    assert len((root.parent / "calls").read_text().splitlines()) <= N + kills, "more than the one in flight redone"


def kill_and_resume(root: Path, point: str, name: str, expected: str) -> None:
    done = child(root, f"{point}:{name}")
    check_killed(done, name)
    assert not any(cell.sealed for cell in read_cells(root)), "no point of the list lies after the seal"
    begun = [] if point in ("create:1", "commit:1") else ["started" if name == "SIGKILL" else "interrupted"]
    # A session that cannot be begun cannot be ended.
    assert sessions(root) == (["started"] if point == "committed:1" else begun)
    check_resumed(root, expected, kills=1)


@pytest.mark.parametrize(("point", "name"), FAST)
def test_a_killed_run_resumes_to_the_same_records(tmp_path: Path, clean: str, point: str, name: str) -> None:
    kill_and_resume(tmp_path / "runs", point, name, clean)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("point", POINTS)
def test_every_point_and_signal(tmp_path: Path, clean: str, point: str, name: str) -> None:
    kill_and_resume(tmp_path / "runs", point, name, clean)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["commit:4", f"commit:{SEALED}", "committed:2", "create:1"])
@pytest.mark.parametrize("second", ["create:1", "commit:1", "commit:2", "committed:1", "generate:1", "seal:1"])
def test_two_kills_in_a_row(tmp_path: Path, clean: str, first: str, second: str) -> None:
    root = tmp_path / "runs"
    check_killed(child(root, first), "SIGKILL")
    done = child(root, second)
    missed = (first != "create:1" and second == "create:1") or (first == f"commit:{SEALED}" and second == "generate:1")
    assert done.returncode == (0 if missed else -signal.SIGKILL)
    check_resumed(root, clean, kills=2)


@pytest.mark.parametrize("point", ["commit:2", "commit:4"])
def test_a_transaction_half_in_the_file_is_rolled_back_by_whoever_comes_next(tmp_path: Path, point: str) -> None:
    """Even by a reader."""
    whole, root = tmp_path / "whole" / "runs", tmp_path / "killed" / "runs"
    for each in (whole, root):
        each.parent.mkdir()
    assert child(whole, None, LONG="9000").returncode == 0
    check_killed(child(root, point, LONG="9000"), "SIGKILL")
    torn = (root / "local.db").read_bytes()
    assert (root / "local.db-journal").stat().st_size > 0
    known, damage = progress(files(root))
    assert not damage and sum(each.attempts for each in known.values()) == int(point[-1]) // 2 - 1
    if point == "commit:4":
        assert (root / "local.db").read_bytes() != torn, "nothing was half in the file"
    assert child(root, None, LONG="9000").returncode == 0
    assert canonical_hash(root) == canonical_hash(whole)


def test_a_kill_while_growing_a_sealed_cell_loses_nothing(tmp_path: Path, clean: str) -> None:
    root = tmp_path / "runs"
    assert child(root, None, n=2).returncode == 0
    for point in ("commit:2", "commit:3"):
        check_killed(child(root, point), "SIGKILL")
        assert len(read_cells(root)[0].rows) == 2
    check_resumed(root, clean, kills=1)


def test_three_runs_do_the_work_once(tmp_path: Path, clean: str) -> None:
    root = tmp_path / "runs"
    assert child(root, None).returncode == 0
    before = (root / "local.db").read_bytes()
    for _ in range(2):
        assert child(root, None).returncode == 0
    assert (root.parent / "calls").read_text().splitlines() == [f"e{index}" for index in range(N)]
    assert canonical_hash(root) == clean
    assert (root / "local.db").read_bytes() == before, "a sealed cell was written to"


def test_two_processes_on_one_cell(tmp_path: Path, clean: str) -> None:
    root = tmp_path / "runs"
    with open_cell(root, {"a": 1}, label="crash", planned=["e0"], config={}, provenance={}):
        second = child(root, None)
    assert second.returncode == 1
    assert f"is being written by process {os.getpid()}: wait for it or stop it" in second.stderr
    check_resumed(root, clean, kills=0)


# Three cells x two tasks x three examples: the session; for each task the cells with their batches, three examples,
# the seals; the session's end.
GROUP_POINTS = (
    ["create:1", "generate:1", "generate:5", "seal:1", "seal:2"]
    + [f"commit:{n}" for n in range(1, 12)]
    + [f"committed:{n}" for n in (1, 2, 3, 4, 6, 7, 8, 10)]
)
GROUP_FAST = [
    ("committed:2", "SIGTERM"),
    ("commit:4", "SIGKILL"),
    ("committed:8", "SIGINT"),
    ("committed:4", "SIGKILL"),
    ("commit:10", "SIGTERM"),
    ("commit:6", "SIGKILL"),
]
GROUP_CALLS = 6


@pytest.fixture(scope="module")
def clean_group(tmp_path_factory: pytest.TempPathFactory) -> str:
    results = tmp_path_factory.mktemp("clean-group")
    assert group_child.child(results).returncode == 0
    return canonical_hash(results / "runs")


def kill_group(results: Path, point: str, name: str = "SIGKILL") -> None:
    done = group_child.child(results, f"{point}:{name}")
    if name == "SIGINT":
        assert done.returncode == 1 and "KeyboardInterrupt" in done.stderr, done
    else:
        assert done.returncode == (143 if name == "SIGTERM" else -signal.SIGKILL), done
    if point not in ("create:1", "commit:1"):
        caught = name != "SIGKILL" and point != "committed:1"
        assert sessions(results / "runs")[-1] == ("interrupted" if caught else "started")
    cells = read_cells(results / "runs")
    for task in group_child.TASKS:
        tried = {tuple(row["example_id"] for row in cell.rows) for cell in cells if cell.label.endswith(f"_{task}")}
        assert len(tried) <= 1, "an example is recorded for some cells of a group only"


def resume_group(results: Path, expected: str, kills: int) -> None:
    done = group_child.child(results)
    assert done.returncode == 0, done.stderr
    assert canonical_hash(results / "runs") == expected
    assert len((results / "calls").read_text().splitlines()) <= GROUP_CALLS + kills, "more than one redone"
    assert {path.name for path in results.rglob("*") if path.is_file()} == {"local.db", "calls"}, "something is left"
    known, damage = progress(files(results / "runs"))
    assert not damage and [each.attempts for each in known.values()] == [3] * 6


@pytest.mark.parametrize(("point", "name"), GROUP_FAST)
def test_a_killed_group_resumes_to_the_same_records(tmp_path: Path, clean_group: str, point: str, name: str) -> None:
    kill_group(tmp_path, point, name)
    resume_group(tmp_path, clean_group, kills=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("point", GROUP_POINTS)
def test_every_point_and_signal_of_a_group(tmp_path: Path, clean_group: str, point: str, name: str) -> None:
    kill_group(tmp_path, point, name)
    resume_group(tmp_path, clean_group, kills=1)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["commit:4", "committed:4", "committed:6", "commit:8"])
@pytest.mark.parametrize("second", ["commit:1", "commit:2", "committed:1", "committed:3", "seal:1"])
def test_two_kills_of_a_group(tmp_path: Path, clean_group: str, first: str, second: str) -> None:
    kill_group(tmp_path, first)
    kill_group(tmp_path, second)
    resume_group(tmp_path, clean_group, kills=2)


@pytest.mark.parametrize("setting", ["seal", "seal:x", "seal:1:SIGNOPE", "a:1:SIGTERM:more"])
def test_a_malformed_fault_is_an_error(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setenv("INERTIA_FAULT", setting)
    with pytest.raises(ValueError, match="expected point:n"):
        fault("seal")


def test_faults_are_off_by_default_and_count_their_own_point(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.delenv("INERTIA_FAULT", raising=False)
    fault("seal")
    monkeypatch.setenv("INERTIA_FAULT", "seal:2:SIGTERM")
    for point in ("seal", "other", "other"):
        fault(point)
    assert not sent
    fault("seal")
    fault("seal")
    assert sent == [(os.getpid(), signal.SIGTERM)]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
