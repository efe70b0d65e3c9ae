from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from inertia.records.journal import encode, read_journal

from inertia.records import (
    CellLocked,
    CellWriter,
    CorruptRecord,
    DuplicateCell,
    DuplicateRow,
    IdentityClash,
    Incomplete,
    NewerSchema,
    canonical_hash,
    cell_id,
    open_cell,
    read_cell,
    read_cells,
)
from inertia.records.schema import COLUMNS, make_row

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
def opened(
    root: Path, planned: list[str], identity: dict[str, Any] = IDENTITY, **changes: Any
) -> Iterator[CellWriter]:
    settings = {"label": "tiny", "config": {"n": len(planned)}, "provenance": {"commit": "0" * 40}, **changes}
    with open_cell(root, identity, planned=planned, **settings) as cell:
        yield cell


def complete(root: Path, planned: list[str], identity: dict[str, Any] = IDENTITY) -> Path:
    with opened(root, planned, identity) as cell:
        for name in cell.missing:
            cell.append(sample(name))
        cell.seal()
        return cell.directory


def test_manifest_first_seal_last(tmp_path: Path) -> None:
    with opened(tmp_path, names(2)) as cell:
        files = {path.name for path in cell.directory.iterdir()}
        manifest = json.loads((cell.directory / "manifest.json").read_text())
        assert files == {"manifest.json"}
        assert manifest["status"] == "started" and manifest["planned"] == names(2)
        assert manifest["identity"] == IDENTITY and len(manifest["identity_sha256"]) == 64
        assert manifest["sessions"][0]["provenance"] == {"commit": "0" * 40}
        for name in names(2):
            cell.append(sample(name))
        assert not (cell.directory / "summary.json").exists()
        summary = cell.seal()
    assert cell.directory.name == f"tiny__{cell_id(IDENTITY)}"
    assert summary["planned"] == summary["ok"] == 2 and summary["status"] == "complete"
    manifest = json.loads((cell.directory / "manifest.json").read_text())
    assert manifest["status"] == "complete" and manifest["sessions"][0]["ended"] is not None
    assert {path.name for path in tmp_path.iterdir()} == {cell.directory.name}, (
        "locks and temporary files are gone"
    )


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    read = read_cell(complete(tmp_path, names(3)))
    assert read.sealed and read.progress == "complete 3/3" and read.label == "tiny"
    row = dict(read.rows[1])
    assert list(row) == list(COLUMNS)
    expected = make_row(
        {**sample(names(3)[1]), "status": "ok", "schema_version": 1, "cell_id": read.id, "attempt": 1}
    )
    assert row == expected
    assert row["metrics"] == '{"lenient":0.5,"recall":1}' and type(row["retained_tokens"]) is float


def test_summary_counts_and_shares_time(tmp_path: Path) -> None:
    summary = read_cell(complete(tmp_path, names(10))).summary
    assert summary["score"]["mean"] == pytest.approx(0.5) and summary["score"]["n"] == 10
    assert 0 < summary["score"]["low"] < 0.5 < summary["score"]["high"] < 1
    assert summary["totals"]["prefill_seconds"] == pytest.approx(0.1 * 45 / 2)
    assert summary["totals"]["prompt_tokens"] == 10045 and summary["totals"]["decode_seconds"] is None
    assert summary["metrics"]["lenient"] == {"mean": 0.5, "n": 10}


def test_shared_contexts_widen_the_summary_interval(tmp_path: Path) -> None:
    def width(root: Path, group: str | None) -> float:
        with opened(root, names(20)) as cell:
            for place, name in enumerate(cell.missing):
                cell.append(
                    sample(name, score=(place // 5) / 4, group_id=f"g{place // 5}" if group else name)
                )
            score = cell.seal()["score"]
        return score["high"] - score["low"]

    assert width(tmp_path / "a", "shared") > 1.5 * width(tmp_path / "b", None)


def test_a_sealed_cell_is_a_no_op_even_on_a_read_only_root(tmp_path: Path) -> None:
    folder = complete(tmp_path, names(4))
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    with opened(tmp_path, names(4), label="another") as cell:
        assert cell.sealed and cell.missing == () and len(cell.rows) == 4
        assert cell.seal()["planned"] == 4
        with pytest.raises(DuplicateRow, match="sealed"):
            cell.append(sample(names(4)[0]))
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()} == before
    assert len(list(tmp_path.iterdir())) == 1


def test_smaller_n_of_a_sealed_cell_reports_the_cells_n(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    complete(tmp_path, names(4))
    with caplog.at_level(logging.INFO), opened(tmp_path, names(2)) as cell:
        assert cell.sealed and len(cell.planned) == 4
    assert "sealed with n = 4 (asked for 2)" in caplog.text


@pytest.mark.parametrize("keep_journal", [True, False])
def test_larger_n_reopens_a_sealed_cell(tmp_path: Path, keep_journal: bool) -> None:
    folder = complete(tmp_path / "grown", names(4))
    if not keep_journal:
        (folder / "samples.jsonl").unlink()
    with opened(tmp_path / "grown", names(7)) as cell:
        assert not cell.sealed and cell.missing == tuple(names(7, 4)) and len(cell.rows) == 4
        assert not (folder / "summary.json").exists(), "a seal must not stand beside a larger plan"
        for name in cell.missing:
            cell.append(sample(name))
        assert cell.seal()["planned"] == 7
    complete(tmp_path / "at_once", names(7))
    assert canonical_hash(tmp_path / "grown") == canonical_hash(tmp_path / "at_once")
    assert len(json.loads((folder / "manifest.json").read_text())["sessions"]) == 2


def test_growing_interrupted_at_any_row_loses_nothing(tmp_path: Path) -> None:
    complete(tmp_path, names(3))
    with opened(tmp_path, names(6)) as cell:
        cell.append(sample(names(6)[3]))
    read = read_cells(tmp_path)[0]
    assert not read.sealed and read.progress == "incomplete 4/6" and read.manifest["status"] == "incomplete"
    assert complete(tmp_path, names(6)) == read.source
    assert read_cell(read.source).progress == "complete 6/6"


def test_a_failed_example_stays_in_the_denominator_and_is_retried(tmp_path: Path) -> None:
    with opened(tmp_path, names(20)) as cell:
        for name in names(17):
            cell.append(sample(name))
        for name in names(20, 17):
            cell.append_failure(name, int(name[-4:]), MemoryError("of device"), task="vt", length=1024)
        with pytest.raises(Incomplete, match=r"incomplete 17/20: vt/1024/0017 \(MemoryError: of device\)"):
            cell.seal()
    read = read_cell(cell.directory)
    assert read.progress == "incomplete 17/20" and read.manifest["status"] == "incomplete"
    assert [row["score"] for row in read.rows[17:]] == [None] * 3
    with opened(tmp_path, names(20)) as cell:
        assert cell.missing == tuple(names(20, 17))
        cell.append_failure(names(20)[17], 17, "again", task="vt")
        for name in cell.missing:
            cell.append(sample(name))
        summary = cell.seal()
    attempts = {row["example_id"]: row["attempt"] for row in read_cell(cell.directory).rows}
    assert attempts[names(20)[17]] == 3 and attempts[names(20)[18]] == 2 and attempts[names(1)[0]] == 1
    assert summary["attempts"] == 24 and summary["failed"] == 0


def test_a_failure_cannot_be_planned_away(tmp_path: Path) -> None:
    with opened(tmp_path, names(5)) as cell:
        cell.append(sample(names(5)[0]))
        cell.append_failure(names(5)[4], 4, "no", task="vt")
    with opened(tmp_path, names(2)) as cell:
        assert set(cell.planned) == {*names(2), names(5)[4]}
        assert cell.progress == "incomplete 1/3"


def test_wrong_appends_are_refused_and_leave_no_trace(tmp_path: Path) -> None:
    with opened(tmp_path, names(2)) as cell:
        cell.append(sample(names(2)[0]))
        journal = (cell.directory / "samples.jsonl").read_bytes()
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
        assert (cell.directory / "samples.jsonl").read_bytes() == journal


@pytest.mark.parametrize(("planned", "message"), [([], "no example"), (["a", "b", "a"], r"twice: \['a'\]")])
def test_wrong_plans_are_refused(tmp_path: Path, planned: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message), opened(tmp_path, planned):
        pass
    assert not any(tmp_path.iterdir())


def test_a_lone_surrogate_harms_nobody(tmp_path: Path) -> None:
    with opened(tmp_path, names(1)) as cell:
        cell.append(sample(names(1)[0], prediction="a\ud800b \U0001f600", references=["\udc00"]))
        cell.seal()
    row = read_cell(cell.directory).rows[0]
    assert row["prediction"] == "a\ufffdb \U0001f600" and row["references"] == ["\ufffd"]


def test_one_cell_two_labels_one_folder(tmp_path: Path) -> None:
    with opened(tmp_path, names(2), label="first"):
        pass
    with opened(tmp_path, names(2), label="second") as cell:
        assert cell.directory.name.startswith("first__")
    (tmp_path / f"third__{cell.id}").mkdir()
    with pytest.raises(DuplicateCell, match="same cell"), opened(tmp_path, names(2)):
        pass
    with pytest.raises(DuplicateCell):
        read_cells(tmp_path)


def test_two_identities_with_one_id_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complete(tmp_path, names(1))
    monkeypatch.setattr("inertia.records.cell.cell_id", lambda identity: cell_id(IDENTITY))
    with pytest.raises(IdentityClash, match="same cell id"), opened(tmp_path, names(1), {"other": 1}):
        pass


def test_an_edited_identity_is_noticed(tmp_path: Path) -> None:
    manifest = complete(tmp_path, names(1)) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"value": 0.9', '"value": 0.75'))
    with pytest.raises(CorruptRecord, match="identity was edited"):
        read_cells(tmp_path)


def test_an_error_in_the_block_is_recorded_and_passed_on(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), opened(tmp_path, names(1)) as cell:
        1 / 0  # noqa: B018
    manifest = read_cell(cell.directory).manifest
    assert (
        manifest["status"] == "failed"
        and manifest["sessions"][-1]["error"] == "ZeroDivisionError: division by zero"
    )
    with pytest.raises(KeyboardInterrupt), opened(tmp_path, names(1)) as cell:
        raise KeyboardInterrupt
    assert read_cell(cell.directory).manifest["status"] == "interrupted"


def test_an_error_after_the_seal_leaves_the_seal(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), opened(tmp_path, names(1)) as cell:
        cell.append(sample(names(1)[0]))
        cell.seal()
        raise KeyboardInterrupt
    assert read_cell(cell.directory).sealed and read_cell(cell.directory).manifest["status"] == "complete"


def test_several_cells_are_open_at_once(tmp_path: Path) -> None:
    other = {**IDENTITY, "seed": 1}
    with opened(tmp_path, names(1)) as a, opened(tmp_path, names(1), other) as b:
        for cell in (a, b):
            cell.append(sample(names(1)[0]))
            cell.seal()
    assert [cell.sealed for cell in read_cells(tmp_path)] == [True, True]


def test_no_space_in_the_middle_of_a_row_leaves_the_rows_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    with opened(tmp_path, names(2)) as cell:
        cell.append(sample(names(2)[0]))
        before = (cell.directory / "samples.jsonl").read_bytes()
        calls = []

        def full(descriptor: int, data: Any) -> int:
            calls.append(1)
            if len(calls) == 2:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(descriptor, data)

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            cell.append(sample(names(2)[1]))
        monkeypatch.undo()
        assert len(calls) == 2 and (cell.directory / "samples.jsonl").read_bytes() == before
        cell.append(sample(names(2)[1]))
        cell.seal()
    assert read_cell(cell.directory).progress == "complete 2/2"


@pytest.mark.parametrize("call", ["replace", "fsync"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_failure_while_sealing_keeps_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, nth: int
) -> None:
    real, calls = getattr(os, call), []

    def broken(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == nth:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    with pytest.raises(OSError, match="No space"), opened(tmp_path, names(2)) as cell:
        for name in names(2):
            cell.append(sample(name))
        monkeypatch.setattr(os, call, broken)
        cell.seal()
    monkeypatch.undo()
    read = read_cell(cell.directory)
    assert not read.sealed and len(read.rows) == 2 and read.manifest["status"] == "failed"
    assert not list(cell.directory.glob(".*.tmp"))
    complete(tmp_path, names(2))
    complete(tmp_path / "clean", names(2))
    assert canonical_hash(tmp_path) == canonical_hash(tmp_path / "clean")


def test_a_failed_replacement_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from inertia.records.atomic import write_atomic

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
        "import os, sys; sys.path.insert(0, '.');"
        "from tests.test_records_cell import *;"
        "held = opened(Path(sys.argv[1]), names(1)); held.__enter__(); os.kill(os.getpid(), 9)"
    )
    child = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=False)
    assert child.returncode == -9
    lock = tmp_path / f".{cell_id(IDENTITY)}.lock"
    assert lock.exists() and int(lock.read_text()) != os.getpid()
    complete(tmp_path, names(1))
    assert not lock.exists() and read_cells(tmp_path)[0].sealed


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)])
def test_the_journal_cut_at_every_byte_of_its_last_two_rows_resumes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: None
    )  # 1,000 resumes; durability is not the point here
    complete(tmp_path / "clean", names(3))
    expected = canonical_hash(tmp_path / "clean")
    with opened(tmp_path / "cut", names(3)) as cell:
        for name in names(3):
            cell.append(sample(name))
    path = cell.directory / "samples.jsonl"
    whole = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    assert len(ends) == 3
    near_ends = {end + shift for end in ends for shift in (-2, -1, 0, 1)}
    manifest = (cell.directory / "manifest.json").read_bytes()
    for size in range(ends[0], len(whole) + 1):
        if size % step and size not in near_ends:
            continue
        path.write_bytes(whole[:size])
        (cell.directory / "manifest.json").write_bytes(manifest)
        caplog.clear()
        kept = sum(end <= size for end in ends)
        assert len(read_cell(cell.directory).rows) == kept
        assert path.stat().st_size == size, "a reader repairs nothing"
        with opened(tmp_path / "cut", names(3)) as again:
            assert len(again.rows) == kept
            for name in again.missing:
                again.append(sample(name))
        assert ("torn last line" in caplog.text) == (size not in ends)
        assert path.read_bytes() == whole
    with opened(tmp_path / "cut", names(3)) as again:
        again.seal()
    assert canonical_hash(tmp_path / "cut") == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{broken\n", "not JSON"),
        (b"\n", "not JSON"),
        (b"[1]\n", "expected a JSON object, got list"),
        (b'{"schema_version": 1}\n', "'cell_id' is missing"),
        (b"\0\0\0\n", "not JSON"),
    ],
)
def test_damage_elsewhere_names_file_and_line(tmp_path: Path, line: bytes, message: str) -> None:
    with opened(tmp_path, names(2)) as cell:
        for name in names(2):
            cell.append(sample(name))
    path = cell.directory / "samples.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + line + second)
    for use in (lambda: read_cell(cell.directory), lambda: opened(tmp_path, names(2)).__enter__()):
        with pytest.raises(CorruptRecord, match=message) as caught:
            use()
        assert f"{path}, line 2" in str(caught.value)
    assert path.read_bytes() == first + line + second, "a damaged file is left as it is"


def test_duplicate_rows_in_a_journal_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path, names(2)) as cell:
        cell.append(sample(names(2)[0]))
    path = cell.directory / "samples.jsonl"
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(DuplicateRow, match="vt/1024/0000"):
        read_cell(cell.directory)


def test_rows_of_another_cell_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path, names(1)) as cell:
        cell.append(sample(names(1)[0]))
    path = cell.directory / "samples.jsonl"
    path.write_bytes(path.read_bytes().replace(cell.id.encode(), b"c00000000000"))
    with pytest.raises(CorruptRecord, match="line 1: a row of cell c00000000000"):
        read_cell(cell.directory)


def test_sealed_rows_that_change_are_noticed(tmp_path: Path) -> None:
    from inertia.records.table import to_parquet

    folder = complete(tmp_path, names(2))
    rows = [dict(row) for row in read_cell(folder).rows]
    rows[0]["score"] = 1.0
    (folder / "samples.parquet").write_bytes(to_parquet(rows))
    with pytest.raises(CorruptRecord, match="changed after the seal"):
        read_cell(folder)
    (folder / "samples.parquet").unlink()
    with pytest.raises(CorruptRecord, match="missing"):
        read_cell(folder)


def test_a_journal_that_changed_after_the_seal_is_noticed_on_growing(tmp_path: Path) -> None:
    path = complete(tmp_path, names(2)) / "samples.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"new_tokens":3', b'"new_tokens":4', 1))
    with pytest.raises(CorruptRecord, match="changed after the seal"), opened(tmp_path, names(3)):
        pass


def test_rows_without_a_manifest_are_refused(tmp_path: Path) -> None:
    (complete(tmp_path, names(1)) / "manifest.json").unlink()
    with pytest.raises(CorruptRecord, match="without manifest.json"), opened(tmp_path, names(1)):
        pass


@pytest.mark.parametrize("file", ["manifest.json", "summary.json"])
def test_newer_records_are_refused_clearly(tmp_path: Path, file: str) -> None:
    path = complete(tmp_path, names(1)) / file
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 2'))
    with pytest.raises(NewerSchema, match="newer than 1, the newest this inertia reads: update"):
        read_cells(tmp_path)


def test_a_reader_beside_a_writer_always_parses(tmp_path: Path) -> None:
    import threading

    stop, seen, errors = threading.Event(), [], []

    def watch() -> None:
        while not stop.is_set():
            try:
                seen.extend(cell.progress for cell in read_cells(tmp_path))
            except Exception as error:
                errors.append(error)

    reader = threading.Thread(target=watch)
    reader.start()
    for n in (10, 20, 30):
        complete(tmp_path, names(n))
    stop.set()
    reader.join()
    assert not errors and "incomplete" in " ".join(seen)


def test_lines_are_ascii_and_end_with_a_line_feed_only(tmp_path: Path) -> None:
    with opened(tmp_path, names(1)) as cell:
        cell.append(sample(names(1)[0], prediction="\u2028\u2029\x85\r\n\x00 None 0012345"))
    data = (cell.directory / "samples.jsonl").read_bytes()
    assert data.count(b"\n") == 1 and data.isascii() and b"\r" not in data
    rows = read_journal(cell.directory / "samples.jsonl").rows
    assert rows[0]["prediction"] == "\u2028\u2029\x85\r\n\x00 None 0012345" and encode(rows[0]) == data
