"""One cell's life: opened, appended to, sealed, opened again."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from inertia.records import (
    Cell,
    CellLocked,
    CellWriter,
    DuplicateRow,
    Incomplete,
    canonical_hash,
    cell_id,
    open_cell,
    read_cells,
)
from inertia.records.atomic import write_atomic
from inertia.records.schema import COLUMNS, make_row
from inertia.records.store import files

IDENTITY = {
    "benchmark": {"name": "ruler", "task": "vt", "length": 1024},
    "policy": {"budget": {"kind": "ratio", "value": 0.9}},
}
ROOT = Path(__file__).parents[1]


def names(n: int, start: int = 0) -> list[str]:
    return [f"vt/1024/{place:04d}" for place in range(start, n)]


def sample(name: str, **changes: Any) -> dict[str, Any]:
    index = int(name.rsplit("/", 1)[1])
    return {
        "example_id": name,
        "task": "vt",
        "length": 1024,
        "index": index,
        "prediction": f'answer {index}\u2028\n"é',
        "references": ["a", "b"],
        "score": (index % 5) / 4,
        "metrics": {"recall": 1, "lenient": 0.5},
        "prompt_tokens": 1000 + index,
        "new_tokens": 3,
        "tokens": [1, 2, index],
        "stop": "eos",
        "budget_tokens": None,
        "retained_tokens": 100,
        "truncated": False,
        "prefill_seconds": 0.1 * index,
        "batch_rows": 2,
        **changes,
    }


@contextmanager
def opened(root: Path, planned: list[str], identity: dict[str, Any] = IDENTITY, **changes: Any) -> Iterator[CellWriter]:
    settings = {"label": "tiny", "config": {}, "provenance": {"commit": "0" * 40}, **changes}
    with open_cell(root, identity, planned=planned, **settings) as cell:
        yield cell


def complete(root: Path, planned: list[str], identity: dict[str, Any] = IDENTITY) -> Cell:
    with opened(root, planned, identity) as cell:
        for name in cell.missing:
            cell.append(sample(name))
        cell.seal()
    return the_cell(root, identity)


def the_cell(root: Path, identity: dict[str, Any] = IDENTITY) -> Cell:
    (cell,) = read_cells(root, [cell_id(identity)])
    return cell


def contents(root: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}


def test_the_plan_is_there_before_the_first_example_and_the_seal_last(tmp_path: Path) -> None:
    with opened(tmp_path, names(2)) as cell:
        early = the_cell(tmp_path)
        assert early.manifest["status"] == "started" and early.manifest["planned"] == names(2)
        assert early.identity == IDENTITY and len(early.manifest["identity_sha256"]) == 64
        assert early.manifest["sessions"][0]["provenance"] == {"commit": "0" * 40}
        for name in names(2):
            cell.append(sample(name))
        assert the_cell(tmp_path).progress == "incomplete 2/2"
        summary = cell.seal()
    assert summary["planned"] == summary["ok"] == 2 and summary["status"] == "complete"
    read = the_cell(tmp_path)
    assert read.manifest["status"] == "complete" and read.manifest["sessions"][0]["ended"] is not None
    assert read.summary == summary
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["local.db"], "no lock, no journal is left"


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    read = complete(tmp_path, names(3))
    assert read.sealed and read.progress == "complete 3/3" and read.label == "tiny"
    row = dict(read.rows[1])
    assert list(row) == list(COLUMNS)
    expected = make_row({**sample(names(3)[1]), "status": "ok", "schema_version": 1, "cell_id": read.id, "attempt": 1})
    assert row == expected
    assert row["metrics"] == '{"lenient":0.5,"recall":1}' and type(row["retained_tokens"]) is float


def test_summary_counts_and_shares_time(tmp_path: Path) -> None:
    summary = complete(tmp_path, names(10)).summary
    assert summary["score"]["mean"] == pytest.approx(0.5) and summary["score"]["n"] == 10
    assert 0 < summary["score"]["low"] < 0.5 < summary["score"]["high"] < 1
    assert summary["totals"]["prefill_seconds"] == pytest.approx(0.1 * 45 / 2)
    assert summary["totals"]["prompt_tokens"] == 10045 and summary["totals"]["decode_seconds"] is None
    assert summary["metrics"]["lenient"] == {"mean": 0.5, "n": 10}


def test_shared_contexts_widen_the_summary_interval(tmp_path: Path) -> None:
    def width(root: Path, group: str | None) -> float:
        with opened(root, names(20)) as cell:
            for place, name in enumerate(cell.missing):
                cell.append(sample(name, score=(place // 5) / 4, group_id=f"g{place // 5}" if group else name))
            score = cell.seal()["score"]
        return score["high"] - score["low"]

    assert width(tmp_path / "a", "shared") > 1.5 * width(tmp_path / "b", None)


def test_a_sealed_cell_is_a_no_op(tmp_path: Path) -> None:
    complete(tmp_path, names(4))
    before = contents(tmp_path)
    with opened(tmp_path, names(4), label="another") as cell:
        assert cell.missing == () and cell.good == set(names(4))
        assert cell.seal()["planned"] == 4
        with pytest.raises(DuplicateRow, match="ok already"):
            cell.append(sample(names(4)[0]))
    assert contents(tmp_path) == before


def test_smaller_n_of_a_sealed_cell_has_the_cells_n(tmp_path: Path) -> None:
    complete(tmp_path, names(4))
    with opened(tmp_path, names(2)) as cell:
        assert len(cell.planned) == 4 and cell.seal()["planned"] == 4


def test_larger_n_reopens_a_sealed_cell(tmp_path: Path) -> None:
    complete(tmp_path / "grown", names(4))
    with opened(tmp_path / "grown", names(7)) as cell:
        assert cell.missing == tuple(names(7, 4)) and len(cell.good) == 4
        assert not the_cell(tmp_path / "grown").sealed, "a seal must not stand beside a larger plan"
        for name in cell.missing:
            cell.append(sample(name))
        assert cell.seal()["planned"] == 7
    complete(tmp_path / "at_once", names(7))
    assert canonical_hash(tmp_path / "grown") == canonical_hash(tmp_path / "at_once")
    assert len(the_cell(tmp_path / "grown").manifest["sessions"]) == 2


def test_growing_interrupted_at_any_row_loses_nothing(tmp_path: Path) -> None:
    complete(tmp_path, names(3))
    with opened(tmp_path, names(6)) as cell:
        cell.append(sample(names(6)[3]))
    read = the_cell(tmp_path)
    assert not read.sealed and read.progress == "incomplete 4/6" and read.manifest["status"] == "incomplete"
    assert complete(tmp_path, names(6)).progress == "complete 6/6"


def test_a_failed_example_stays_in_the_denominator_and_is_retried(tmp_path: Path) -> None:
    with opened(tmp_path, names(20)) as cell:
        for name in names(17):
            cell.append(sample(name))
        for name in names(20, 17):
            cell.append_failure(name, int(name[-4:]), MemoryError("of device"), task="vt", length=1024)
        with pytest.raises(Incomplete, match=r"incomplete 17/20: vt/1024/0017 \(MemoryError: of device\)"):
            cell.seal()
    read = the_cell(tmp_path)
    assert read.progress == "incomplete 17/20" and read.manifest["status"] == "incomplete"
    assert [row["score"] for row in read.rows[17:]] == [None] * 3
    with opened(tmp_path, names(20)) as cell:
        assert cell.missing == tuple(names(20, 17))
        cell.append_failure(names(20)[17], 17, "again", task="vt")
        for name in cell.missing:
            cell.append(sample(name))
        summary = cell.seal()
    attempts = {row["example_id"]: row["attempt"] for row in the_cell(tmp_path).rows}
    assert attempts[names(20)[17]] == 3 and attempts[names(20)[18]] == 2 and attempts[names(1)[0]] == 1
    assert summary["attempts"] == 24 and summary["failed"] == 0


def test_a_failure_cannot_be_planned_away(tmp_path: Path) -> None:
    with opened(tmp_path, names(5)) as cell:
        cell.append(sample(names(5)[0]))
        cell.append_failure(names(5)[4], 4, "no", task="vt")
    with opened(tmp_path, names(2)) as cell:
        assert set(cell.planned) == {*names(2), names(5)[4]}
    assert the_cell(tmp_path).progress == "incomplete 1/3"


def test_wrong_appends_are_refused_and_leave_no_trace(tmp_path: Path) -> None:
    with opened(tmp_path, names(2)) as cell:
        cell.append(sample(names(2)[0]))
        before = contents(tmp_path)
        with pytest.raises(DuplicateRow, match="ok already"):
            cell.append(sample(names(2)[0]))
        with pytest.raises(ValueError, match="not planned"):
            cell.append(sample("vt/1024/0009"))
        with pytest.raises(ValueError, match=r"unknown columns \['scores'\]"):
            cell.append(sample(names(2)[1], scores=1))
        for changes, error in [
            ({"score": float("nan")}, ValueError),
            ({"score": 1.5}, ValueError),
            ({"score": None}, ValueError),
            ({"score": True}, TypeError),
            ({"prediction": 12345}, TypeError),
            ({"new_tokens": 2.5}, TypeError),
            ({"truncated": 1}, TypeError),
            ({"tokens": [2**31]}, ValueError),
            ({"stop": "eot"}, ValueError),
            ({"references": "abc"}, TypeError),
            ({"metrics": [1]}, TypeError),
        ]:
            with pytest.raises(error):
                cell.append(sample(names(2)[1], **changes))
        assert contents(tmp_path) == before


@pytest.mark.parametrize(("planned", "message"), [([], "no example"), (["a", "b", "a"], r"twice: \['a'\]")])
def test_wrong_plans_are_refused(tmp_path: Path, planned: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message), opened(tmp_path, planned):
        pass
    assert not any(tmp_path.iterdir())


def test_a_lone_surrogate_harms_nobody(tmp_path: Path) -> None:
    with opened(tmp_path, names(1)) as cell:
        cell.append(sample(names(1)[0], prediction="a\ud800b \U0001f600", references=["\udc00"]))
        cell.seal()
    row = the_cell(tmp_path).rows[0]
    assert row["prediction"] == "a\ufffdb \U0001f600" and row["references"] == ["\ufffd"]


def test_one_cell_two_labels(tmp_path: Path) -> None:
    with opened(tmp_path, names(2), label="first") as cell:
        cell.append(sample(names(2)[0]))
    with opened(tmp_path, names(3), label="second") as cell:
        assert len(cell.missing) == 2
    (read,) = read_cells(tmp_path)
    assert read.label == "second", "that of the newest plan"


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ZeroDivisionError("division by zero"), "failed", "ZeroDivisionError: division by zero"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt: "),
    ],
)
def test_an_error_in_the_block_is_recorded_and_passed_on(
    tmp_path: Path, error: BaseException, status: str, reason: str
) -> None:
    with pytest.raises(type(error)), opened(tmp_path, names(2)) as cell:
        cell.append(sample(names(2)[0]))
        raise error
    read = the_cell(tmp_path)
    assert read.manifest["status"] == status and read.manifest["sessions"][-1]["error"] == reason
    assert read.progress == "incomplete 1/2"


def test_an_error_after_the_seal_leaves_the_seal(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), opened(tmp_path, names(1)) as cell:
        cell.append(sample(names(1)[0]))
        cell.seal()
        raise KeyboardInterrupt
    assert the_cell(tmp_path).sealed and the_cell(tmp_path).manifest["status"] == "complete"


def test_several_cells_are_open_at_once_in_files_of_their_own(tmp_path: Path) -> None:
    other = {**IDENTITY, "seed": 1}
    with opened(tmp_path, names(1)) as a, opened(tmp_path, names(1), other) as b:
        for cell in (a, b):
            cell.append(sample(names(1)[0]))
            cell.seal()
    assert [cell.sealed for cell in read_cells(tmp_path)] == [True, True]
    assert [path.name for path in files(tmp_path)] == ["local-2.db", "local.db"]


def test_a_failed_replacement_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    write_atomic(target, b"old")
    (tmp_path / "link").symlink_to(target)
    write_atomic(tmp_path / "link", b"through the link")
    assert target.read_bytes() == b"through the link" and (tmp_path / "link").is_symlink()

    def fail(*_: Any) -> None:
        raise OSError(errno.EXDEV, "no")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no"):
        write_atomic(target, b"new")
    assert target.read_bytes() == b"through the link" and len(list(tmp_path.iterdir())) == 2

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no"):
        write_atomic(target, b"new")
    assert target.read_bytes() == b"through the link" and len(list(tmp_path.iterdir())) == 2


def test_results_on_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    complete(tmp_path / "link", names(2))
    assert read_cells(tmp_path / "real")[0].sealed


def test_a_second_writer_is_turned_away_and_a_dead_one_replaced(tmp_path: Path) -> None:
    with opened(tmp_path, names(1)):
        with pytest.raises(CellLocked, match=f"written by process {os.getpid()}"), opened(tmp_path, names(1)):
            pass
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[2]);"
        "from test_records_cell import *;"
        "held = opened(Path(sys.argv[1]), names(1)); held.__enter__(); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)]
    assert subprocess.run(words, env=environment, check=False).returncode == -9
    assert list((tmp_path / "locks").iterdir()), "a killed process leaves its lock files"
    assert complete(tmp_path, names(1)).sealed
    assert [path.name for path in files(tmp_path)] == ["local.db"]


def test_a_reader_beside_a_writer_always_reads(tmp_path: Path) -> None:
    stop, seen, errors = threading.Event(), [], []

    def watch() -> None:
        while not stop.is_set():
            try:
                seen.extend(cell.progress for cell in read_cells(tmp_path))
            except Exception as error:
                errors.append(error)

    reader = threading.Thread(target=watch)
    reader.start()
    for n in range(10, 200, 10):
        complete(tmp_path, names(n))
        if any("incomplete" in each for each in seen):
            break
    stop.set()
    reader.join()
    assert not errors and "incomplete" in " ".join(seen)


@pytest.mark.parametrize("text", ["\u2028\u2029\x85\r\n\x00 None 0012345", "é😀", "", '\\ud83d "quoted"'])
def test_every_character_comes_back(tmp_path: Path, text: str) -> None:
    with opened(tmp_path, names(1)) as cell:
        cell.append(sample(names(1)[0], prediction=text, references=[text]))
        cell.seal()
    (row,) = the_cell(tmp_path).rows
    assert row["prediction"] == text and row["references"] == [text]
