"""The mirror, read back from the files W&B writes offline.

The reader below follows the layout of 0.31's transaction log, which is no stable interface: it lives in the
tests only, and the harness reads its own records.
"""

from __future__ import annotations

import builtins
import json
import logging
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from records_data import write_cell

from inertia.records import Cell, export, read_cells
from inertia.records.__main__ import main
from inertia.records.wandb_mirror import budget_point, clean_tags, free_run, mirror, mirrored, run_config, run_summary

IDENTITY = {
    "backbone": {"name": "tiny"},
    "benchmark": {"name": "ruler", "task": "vt", "length": 1024},
    "policy": {"aggregation": {"name": "ema", "alpha": 0.8}, "protect": None},
}
BLOCK = 32 * 1024


def records(path: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    assert data[:4] == b":W&B" and struct.unpack("<H", data[4:6])[0] == 0xBEE1
    assert len(data) < 8 * BLOCK, "the parts of a record that is still being written would need more care"
    place, parts = 7, b""
    while place + 7 <= len(data):
        left = BLOCK - place % BLOCK
        if left < 7:
            place += left
            continue
        size, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def written(path: Path) -> list[Any]:
    """Wait for the exit record: W&B's own process completes the file some milliseconds after `finish`."""
    for _ in range(400):
        found = list(records(path))
        if any(record.WhichOneof("record_type") == "exit" for record in found):
            return found
        time.sleep(0.05)
    raise TimeoutError(f"{path} has no exit record after 20 seconds")


def read_back(directory: Path, name: str) -> dict[str, Any]:
    (path,) = directory.rglob(f"run-{name}.wandb")
    found: dict[str, Any] = {"config": {}, "summary": {}, "exits": [], "history": [], "axes": {}, "artifacts": []}
    for record in written(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found["run"] = record.run
            found["config"].update({item.key: json.loads(item.value_json) for item in record.run.config.update})
        elif kind == "config":
            found["config"].update({item.key: json.loads(item.value_json) for item in record.config.update})
        elif kind == "summary":
            keys = {item.key or "/".join(item.nested_key): item.value_json for item in record.summary.update}
            found["summary"].update({key: json.loads(value) for key, value in keys.items()})
        elif kind == "history":
            point = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            found["history"].append(point)
        elif kind == "metric":
            name = record.metric.name or record.metric.glob_name
            found["axes"][name] = record.metric.step_metric
        elif kind == "artifact":
            found["artifacts"].append(record.artifact)
        elif kind == "request" and record.request.WhichOneof("request_type") == "log_artifact":
            found["artifacts"].append(record.request.log_artifact.artifact)
        elif kind == "exit":
            found["exits"].append(record.exit.exit_code)
    return found


def cell(root: Path, n: int = 3, *, done: int | None = None, seed: int = 0, **columns: Any) -> Cell:
    about = {**IDENTITY, "seed": seed}
    settings = {"label": "tiny_ruler", "config": {"x": "y"}, "provenance": {"code": "abc"}, "metrics": {"lenient": 0.5}}
    name = write_cell(root / "runs", about, n, done=done, **settings, **{"prediction": "p", **columns})
    (read,) = read_cells(root / "runs", [name])
    return read


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()


def test_a_cell_is_written_offline_and_read_back(tmp_path: Path) -> None:
    read = cell(tmp_path)
    odd = "a/b: c" + "x" * 100
    name = mirror(read, directory=tmp_path / "wandb", group="sweep 1", tags=["tiny", odd, "tiny"], project="in/ertia#")
    assert name == read.id
    found = read_back(tmp_path / "wandb", read.id)
    run = found["run"]
    assert (run.run_id, run.display_name, run.project) == (read.id, "tiny_ruler", "in-ertia")
    assert (run.run_group, run.job_type) == ("sweep 1", "eval")
    assert list(run.tags) == ["tiny", "a-b- c" + "x" * 58]
    assert run.host == "" or run.host is None
    assert found["config"]["policy"] == IDENTITY["policy"] and found["config"]["cell_id"] == read.id
    assert found["config"]["run"] == {"x": "y"} and found["config"]["provenance"] == {"code": "abc"}
    summary = found["summary"]
    assert summary["ruler/vt/score"] == 1.0 and summary["ruler/vt/n"] == 3
    assert summary["ruler/vt/score_low"] == pytest.approx(read.summary["score"]["low"])
    assert summary["ruler/vt/lenient"] == 0.5
    assert found["exits"] == [0]


def test_every_file_stays_below_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = cell(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    before = dict(os.environ)
    assert mirror(read, directory=tmp_path / "wandb")
    assert dict(os.environ) == before
    assert not any((tmp_path / "elsewhere").iterdir())
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file()]


def test_the_table_is_capped_and_has_no_contexts(tmp_path: Path) -> None:
    read = cell(tmp_path, 8, prediction="y" * 2000, references=["z" * 900, "b"])
    mirror(read, directory=tmp_path / "wandb", max_examples=5)
    (path,) = (tmp_path / "wandb").rglob("files/media/table/*.json")
    table = json.loads(path.read_text())
    assert len(table["data"]) == 5
    row = dict(zip(table["columns"], table["data"][0], strict=True))
    assert row["prediction"] == "y" * 500 + "..." and len(row["references"]) == 503
    assert not {"context", "prompt", "telemetry", "tokens"} & set(table["columns"])


def test_two_cells_are_two_runs_and_a_repeat_can_be_another(tmp_path: Path) -> None:
    first, second = cell(tmp_path), cell(tmp_path, seed=1)
    names = [mirror(read, directory=tmp_path / "wandb") for read in (first, second)]
    names.append(mirror(first, directory=tmp_path / "wandb", again=True))
    assert names == [first.id, second.id, first.id + "-a2"]
    assert [read_back(tmp_path / "wandb", name)["run"].run_id for name in names] == names
    assert [read_back(tmp_path / "wandb", name)["config"]["seed"] for name in names] == [0, 1, 0]


def test_a_run_of_the_job_itself_goes_on(tmp_path: Path) -> None:
    import wandb

    read = cell(tmp_path)
    with wandb.init(mode="offline", dir=str(tmp_path), project="job") as own:
        assert mirror(read, directory=tmp_path / "wandb")
        assert wandb.run is own
        own.log({"still": 1})


def test_online_without_a_key_is_offline(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read = cell(tmp_path)
    assert mirror(read, mode="online", directory=tmp_path / "wandb") == read.id
    assert "no key: writing offline" in caplog.text
    assert list((tmp_path / "wandb").rglob("*.wandb"))


def test_an_incomplete_cell_shows_its_counts_and_no_score(tmp_path: Path) -> None:
    summary = run_summary(cell(tmp_path, 20, done=17))
    assert summary["ruler/vt/n"] == 17 and summary["ruler/vt/planned"] == 20
    assert "ruler/vt/score" not in summary and "ruler/vt/lenient" not in summary


def test_disabled_does_not_even_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = cell(tmp_path)
    monkeypatch.setattr(builtins, "__import__", _refuse_wandb(builtins.__import__))
    assert mirror(read, mode="disabled", directory=tmp_path / "wandb") is None
    assert not (tmp_path / "wandb").exists()


def _refuse_wandb(real: Any) -> Any:
    def importer(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name == "wandb":
            raise ImportError("no wandb here")
        return real(name, *arguments, **keywords)

    return importer


def test_nothing_that_goes_wrong_reaches_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import wandb

    read = cell(tmp_path)
    (tmp_path / "file").write_text("not a folder")

    def check(message: str, target: Path = tmp_path / "wandb") -> None:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert mirror(read, directory=target) is None
        assert "failed" in caplog.text and message in caplog.text and "mirror it again" in caplog.text

    check("file", target=tmp_path / "file" / "wandb")
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", _refuse_wandb(builtins.__import__))
        check("no wandb here")
    with monkeypatch.context() as patch:
        patch.setattr(wandb, "init", lambda **_: (_ for _ in ()).throw(wandb.errors.CommError("no network")))
        check("no network")
    with monkeypatch.context() as patch:
        patch.setattr(wandb, "Table", lambda **_: 1 / 0)
        check("division by zero")
    assert wandb.run is None, "a run that failed half-way is finished, not left open"
    assert mirror(read, directory=tmp_path / "after") == read.id


def test_an_interrupt_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    def interrupt(**_: Any) -> None:
        raise KeyboardInterrupt

    read = cell(tmp_path)
    monkeypatch.setattr(wandb, "init", interrupt)
    with pytest.raises(KeyboardInterrupt):
        mirror(read, directory=tmp_path / "wandb")


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["ok", "", "  ", "ok"], ["ok"]),
        (["x" * 70], ["x" * 64]),
        (["a\nb", "é/ü", "smollm2-135m", "alpha=0.8"], ["a-b", "smollm2-135m", "alpha=0.8"]),
    ],
)
def test_tags_are_cleaned(tags: list[str], expected: list[str]) -> None:
    assert clean_tags(tags) == expected


def test_config_keys_are_text_all_the_way_down(tmp_path: Path) -> None:
    config = run_config(cell(tmp_path))
    assert json.loads(json.dumps(config)) == config


def test_the_budget_is_the_x_axis_of_every_metric(tmp_path: Path) -> None:
    name = mirror(cell(tmp_path, budget_tokens=90, prompt_tokens=900), directory=tmp_path / "wandb")
    found = read_back(tmp_path / "wandb", name)
    assert found["axes"] == {"budget/tokens": "", "budget/compression_ratio": "", "ruler/vt/*": "budget/tokens"}
    (point,) = found["history"]
    for source in (point, found["summary"]):
        assert source["budget/tokens"] == 90 and source["budget/compression_ratio"] == pytest.approx(0.9)
        assert source["ruler/vt/score"] == 1.0 and source["ruler/vt/lenient"] == 0.5


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"prompt_tokens": 200}, {"budget/tokens": 200, "budget/compression_ratio": 0.0}),
        ({"prompt_tokens": 200, "budget_tokens": 500}, {"budget/tokens": 500, "budget/compression_ratio": 0.0}),
        ({"prompt_tokens": 200, "budget_tokens": 0}, {"budget/tokens": 0, "budget/compression_ratio": 1.0}),
        ({}, {}),
    ],
)
def test_where_a_cell_stands_on_the_x_axis(tmp_path: Path, columns: dict[str, int], expected: dict[str, float]) -> None:
    assert budget_point(cell(tmp_path, **columns)) == expected


def test_the_records_are_an_artifact(tmp_path: Path) -> None:
    read = cell(tmp_path)
    name = mirror(read, directory=tmp_path / "wandb")
    (artifact,) = [each for each in read_back(tmp_path / "wandb", name)["artifacts"] if each.type == "results"]
    assert artifact.name == f"results-{name}" and set(artifact.aliases) == {"latest", "sealed", name}
    assert json.loads(artifact.metadata)["progress"] == "complete 3/3"
    files = {entry.path: Path(entry.local_path) for entry in artifact.manifest.contents}
    assert set(files) == {"samples.parquet", "summary.json", "manifest.json"}
    assert all(path.is_relative_to(tmp_path / "wandb") for path in files.values())
    assert pq.read_table(files["samples.parquet"]).to_pylist() == [dict(row) for row in read.rows]
    assert json.loads(files["summary.json"].read_text()) == read.summary


def test_equal_records_have_one_run_and_more_examples_another(tmp_path: Path) -> None:
    directory = tmp_path / "wandb"
    name = mirror(cell(tmp_path), directory=directory)
    assert mirror(cell(tmp_path), directory=directory) == name
    assert len(list(directory.rglob("*.wandb"))) == 1, "the second call wrote nothing"
    read = cell(tmp_path, 5)
    assert mirror(read, directory=directory) == f"{name}-a2" == mirror(read, directory=directory)
    assert read_back(directory, f"{name}-a2")["summary"]["ruler/vt/n"] == 5
    assert read_back(directory, name)["summary"]["ruler/vt/n"] == 3, "the first run is as it was"
    assert [(entry.run, entry.attempt) for entry in mirrored(directory, name)] == [(name, 1), (f"{name}-a2", 2)]
    assert mirror(read, directory=directory, project="another") == f"{name}-a2", "equal records keep their id"
    assert len(list(directory.rglob("*.wandb"))) == 3
    assert mirror(read, directory=tmp_path / "elsewhere") == name


def test_a_run_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    read = cell(tmp_path)
    name = read.id
    (tmp_path / "wandb" / "wandb" / f"offline-run-20260101_000000-{name}").mkdir(parents=True)
    assert free_run(tmp_path / "wandb", name) == f"{name}-a2"
    assert mirror(read, directory=tmp_path / "wandb") == f"{name}-a2"


def test_group_and_tags_come_from_the_records(tmp_path: Path) -> None:
    name = mirror(cell(tmp_path), directory=tmp_path / "wandb")
    run = read_back(tmp_path / "wandb", name)["run"]
    assert run.run_group == "runs" and list(run.tags) == ["tiny", "tiny_ruler", "ruler", "vt-1024"]


def test_sync_writes_what_is_missing_and_no_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [cell(tmp_path, seed=seed).id for seed in (0, 1)]
    cell(tmp_path, done=1, seed=2)
    directory = tmp_path / "wandb"
    command = ["sync-wandb", "--root", str(tmp_path / "runs"), "--directory", str(directory)]

    def run(*options: str) -> str:
        assert main([*command, *options]) == 0
        return capsys.readouterr().out.replace(f" below {directory}", "")

    assert run(names[0]) == "1 runs written, 0 mirrored before, 0 incomplete and left out, 0 failed\n"
    assert run() == "1 runs written, 1 mirrored before, 1 incomplete and left out, 0 failed\n"
    assert run() == "0 runs written, 2 mirrored before, 1 incomplete and left out, 0 failed\n"
    assert run("--mode", "online").startswith("0 runs written, 2 mirrored before"), "without a key it is offline"
    assert run("--again", "--group", "g 2", names[1][:8]).startswith("1 runs written, 0 mirrored before")
    assert read_back(directory, f"{names[1]}-a2")["run"].run_group == "g 2"
    assert run("--task", "nothing") == "0 runs written, 0 mirrored before, 0 incomplete and left out, 0 failed\n"
    export(tmp_path / "runs", names, tmp_path / "x.parquet")
    assert run("--root", str(tmp_path / "x.parquet")).startswith("0 runs written, 2 mirrored before")
    assert len(list(directory.rglob("*.wandb"))) == 3


def test_sync_says_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import wandb

    cell(tmp_path)
    command = ["sync-wandb", "--root", str(tmp_path / "runs"), "--directory", str(tmp_path / "wandb")]
    with monkeypatch.context() as patch:
        patch.setattr(wandb, "init", lambda **_: (_ for _ in ()).throw(wandb.errors.CommError("no network")))
        assert main(command) == 1
    assert "0 runs written" in (shown := capsys.readouterr().out) and "1 failed" in shown
    assert main(command) == 0 and "1 runs written" in capsys.readouterr().out


AMBIENT = {
    "WANDB_RUN_ID": "theirs",
    "WANDB_SWEEP_ID": "theirs",
    "WANDB_LAUNCH": "true",
    "WANDB_RESUME": "must",
    "WANDB_PROJECT": "theirs",
    "WANDB_RUN_GROUP": "theirs",
    "WANDB_JOB_TYPE": "theirs",
    "WANDB_NAME": "theirs",
    "WANDB_TAGS": "theirs",
    "WANDB_NOTES": "theirs",
    "WANDB_MODE": "disabled",
    "WANDB_DIR": "theirs",
}
AMBIENT_CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import wandb
from test_wandb_mirror import cell, mirror
root = Path(sys.argv[1])
print(*[mirror(cell(root, seed=seed), directory=root / "wandb") for seed in (0, 1)])
settings = wandb.setup().settings
print(settings.sweep_id, settings.run_id, settings.mode)
"""


def test_what_is_passed_wins_over_the_environment(tmp_path: Path) -> None:
    environment = {**os.environ, **AMBIENT, "PYTHONPATH": str(Path(__file__).parents[1])}
    words = [sys.executable, "-c", AMBIENT_CHILD, str(tmp_path), str(Path(__file__).parent)]
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    ids = [cell(tmp_path, seed=seed).id for seed in (0, 1)]
    said, kept = done.stdout.splitlines()[-2:]
    assert said.split() == ids, "every cell has a run of its own"
    assert kept == "theirs theirs disabled", "the job's own settings are as they were"
    for name in ids:
        found = read_back(tmp_path / "wandb", name)
        run = found["run"]
        assert (run.run_id, run.project, run.run_group, run.job_type) == (name, "inertia", "runs", "eval")
        assert run.sweep_id == run.notes == "" and "theirs" not in run.tags and run.display_name == "tiny_ruler"
        assert found["exits"] == [0]
    assert {(each.cell, each.run, each.mode, each.project) for each in mirrored(tmp_path / "wandb")} == {
        (name, name, "offline", "inertia") for name in ids
    }
    assert not (tmp_path / "theirs").exists()


def test_another_run_than_the_one_asked_for_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import wandb

    real = wandb.init
    monkeypatch.setattr(wandb, "init", lambda **asked: real(**{**asked, "id": "another"}))
    with caplog.at_level(logging.WARNING):
        assert mirror(cell(tmp_path), directory=tmp_path / "wandb") is None
    assert "'run': 'another'" in caplog.text and mirrored(tmp_path / "wandb") == []
    assert read_back(tmp_path / "wandb", "another")["exits"] == [1]


def test_a_damaged_note_is_no_reason_to_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read, directory = cell(tmp_path), tmp_path / "wandb"
    name = mirror(read, directory=directory)
    (directory / "mirrored.db").write_bytes(b"no notes" * 1000)
    assert mirrored(directory) == [] and "may be mirrored again" in caplog.text
    assert mirror(read, directory=directory) == f"{name}-a2", "no id is given out twice"
