"""Kill a writer at a named point, run it again, and compare with a run nobody disturbed.

The child process for a single cell is this file: `python tests/test_records_crash.py ROOT N`. Its "model" notes every
call in a file outside the records, so that the tests can count what was done twice. Three cells and two tasks, which
decode together, run in `group_child`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import group_child
import pytest

from inertia.records import canonical_hash, open_cell, read_cells
from inertia.records.faults import fault

N = 4
# manifest.json, samples.parquet, manifest.json, summary.json are the four replacements of a run.
POINTS = (
    ["manifest:1", "seal:1"]
    + [f"append-half:{n}" for n in (1, 2, N)]
    + [f"append-written:{n}" for n in (1, 2, N)]
    + [f"append-synced:{n}" for n in (1, 2, 3, N)]
    + [f"generate:{n}" for n in (1, 2, 3, N)]
    + [f"replace:{n}" for n in (1, 2, 3, 4)]
)
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
FAST = [
    ("append-half:2", "SIGKILL"),
    ("append-synced:3", "SIGTERM"),
    ("generate:2", "SIGINT"),
    ("replace:4", "SIGKILL"),
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
        "prediction": f"p{index}",
        "score": index / 10,
        "tokens": [index],
    }


def main(root: Path, n: int) -> None:
    # A shell may start background jobs with SIGINT ignored; the test means Python's default.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    planned = [f"e{index}" for index in range(n)]
    with open_cell(root, {"a": 1}, label="crash", planned=planned, config={}, provenance={}) as cell:
        for name in cell.missing:
            cell.append(generate(root, name))
        cell.seal()


def child(root: Path, fault_point: str | None, n: int = N) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
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
    folder = read_cells(root)[0].source
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json",
        "samples.jsonl",
        "samples.parquet",
        "summary.json",
    }
    assert [path.name for path in root.iterdir()] == [folder.name], "a lock is left"
    assert len((folder / "samples.jsonl").read_bytes().splitlines()) == N
    assert len((root.parent / "calls").read_text().splitlines()) <= N + kills, "more than the one in flight redone"


def kill_and_resume(root: Path, point: str, name: str, expected: str) -> None:
    done = child(root, f"{point}:{name}")
    check_killed(done, name)
    status = [json.loads(path.read_text())["status"] for path in root.glob("*/manifest.json")]
    first_manifest = point == "replace:1"
    sealed = [path for path in root.glob("*/summary.json")]
    assert not sealed, "no point of the list lies after the seal"
    if name == "SIGKILL":
        assert status in (
            [] if first_manifest else ["started"],
            ["complete"] if point in ("seal:1", "replace:4") else ["started"],
        )
    elif not first_manifest:
        assert status == ["interrupted"]
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
@pytest.mark.parametrize("first", ["append-half:2", "replace:3", "manifest:1"])
@pytest.mark.parametrize(
    "second", ["append-half:1", "append-synced:1", "generate:1", "replace:1", "seal:1", "replace:4"]
)
def test_two_kills_in_a_row(tmp_path: Path, clean: str, first: str, second: str) -> None:
    root = tmp_path / "runs"
    check_killed(child(root, first), "SIGKILL")
    done = child(root, second)
    missed = first == "replace:3" and second in ("append-half:1", "append-synced:1", "generate:1")
    assert done.returncode == (0 if missed else -signal.SIGKILL)
    check_resumed(root, clean, kills=2)


def test_a_kill_while_growing_a_sealed_cell_loses_nothing(tmp_path: Path, clean: str) -> None:
    root = tmp_path / "runs"
    assert child(root, None, n=2).returncode == 0
    for point in ("replace:1", "append-half:1"):
        check_killed(child(root, point), "SIGKILL")
        assert len(read_cells(root)[0].rows) == 2
    check_resumed(root, clean, kills=1)


def test_three_runs_do_the_work_once(tmp_path: Path, clean: str) -> None:
    root = tmp_path / "runs"
    for _ in range(3):
        assert child(root, None).returncode == 0
    assert (root.parent / "calls").read_text().splitlines() == [f"e{index}" for index in range(N)]
    assert canonical_hash(root) == clean


def test_two_processes_on_one_cell(tmp_path: Path, clean: str) -> None:
    root = tmp_path / "runs"
    with open_cell(root, {"a": 1}, label="crash", planned=["e0"], config={}, provenance={}):
        second = child(root, None)
    assert second.returncode == 1
    assert f"is being written by process {os.getpid()}: wait for it or stop it" in second.stderr
    check_resumed(root, clean, kills=0)


# Three cells x two tasks x three examples: 6 lines of groups, 18 rows of cells, 26 replacements (for each task 3
# manifests, a head and the 9 files of seals).
GROUP_POINTS = (
    ["manifest:1", "manifest:3", "manifest:4", "settle:1", "settle:2", "generate:1", "generate:5", "seal:1", "seal:6"]
    + ["group-half:1", "group-half:6", "group-written:2", "group-synced:1", "group-synced:3", "group-synced:6"]
    + ["distribute:1", "distribute:2", "distribute:18", "append-half:2", "append-written:9"]
    + [f"replace:{n}" for n in (1, 4, 5, 13, 14, 26)]
)
GROUP_FAST = [
    ("manifest:3", "SIGTERM"),
    ("group-half:2", "SIGKILL"),
    ("group-synced:5", "SIGINT"),
    ("distribute:8", "SIGKILL"),
    ("append-half:11", "SIGTERM"),
    ("replace:8", "SIGKILL"),
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
    cells = read_cells(results / "runs")
    for cell in cells:
        expected = ["complete"] if cell.sealed else ["interrupted"] if name != "SIGKILL" else ["started", "complete"]
        assert cell.manifest["status"] in expected
    for task in group_child.TASKS:
        tried = {tuple(row["example_id"] for row in cell.rows) for cell in cells if cell.label.endswith(f"_{task}")}
        assert len(tried) <= 1, "an example is recorded for some cells of a group only"


def resume_group(results: Path, expected: str, kills: int) -> None:
    done = group_child.child(results)
    assert done.returncode == 0, done.stderr
    assert canonical_hash(results / "runs") == expected
    assert len((results / "calls").read_text().splitlines()) <= GROUP_CALLS + kills, "more than one redone"
    files = {path.name for path in results.rglob("*") if path.is_file()}
    assert files == {"manifest.json", "samples.jsonl", "samples.parquet", "summary.json", "calls"}, "something is left"
    for path in results.glob("runs/*/samples.jsonl"):
        assert len(path.read_bytes().splitlines()) == 3


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
@pytest.mark.parametrize("first", ["group-half:2", "group-synced:2", "distribute:5", "replace:7"])
@pytest.mark.parametrize("second", ["manifest:2", "settle:1", "group-synced:1", "replace:3", "seal:2"])
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
