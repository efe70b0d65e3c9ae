"""The records command: each verb as a user runs it, on damage, on a killed process and beside a running writer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inertia.records.columnar import code
from inertia.records.compact import compact, restore
from inertia.records.facts import names, read_facts, steady
from inertia.records.layout import JOURNAL, MANIFEST, SAMPLES, SUMMARY
from inertia.records.table import to_parquet

from inertia.records import (
    DuplicateCell,
    canonical_hash,
    export,
    open_cell,
    read_cell,
    read_cells,
    read_samples,
    sample_table,
)
from inertia.records.__main__ import main
from inertia.records.diff import diff_rows
from inertia.records.listing import Filter, as_table
from inertia.records.schema import make_row

ROOT = Path(__file__).parents[1]


def identity(task: str = "vt", alpha: float | None = 0.8, **changes: Any) -> dict[str, Any]:
    policy = {"aggregation": {"kind": "ema", "alpha": alpha}, "budget": None if alpha is None else {"ratio": 0.9}}
    place = {"name": "ruler", "task": task, "length": 1024}
    return {"backbone": {"source": "tiny"}, "benchmark": place, "policy": policy, "seed": 0, **changes}


def write(
    root: Path,
    task: str = "vt",
    alpha: float | None = 0.8,
    n: int = 3,
    *,
    done: int | None = None,
    fail: str | None = None,
    row: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Write a cell with the real writer: sealed, or with `done` of `n` examples; `fail` is tried twice."""
    planned = [f"{task}/{place:04d}" for place in range(n)]
    method = "full_cache" if alpha is None else "inertiakv"
    variant = "full_cache" if alpha is None else f"inertiakv-{alpha}-1-0.9"
    with open_cell(
        root,
        identity(task, alpha, **changes),
        label=f"tiny__{variant}__{task}-1024",
        planned=planned,
        config={"backbone": {"name": "tiny"}, "label": method, "experiment_name": "grid"},
        provenance={"code": {"commit": "0" * 40}},
    ) as cell:
        for place, name in enumerate(planned[:done]):
            if name not in cell.missing:
                continue
            if name == fail:
                cell.append_failure(name, place, "out of memory", task=task)
            cell.append(
                {
                    "example_id": name,
                    "task": task,
                    "length": 1024,
                    "index": place,
                    "prediction": f"answer {place}",
                    "references": ["a", "b"],
                    "score": (place % 2) / 2,
                    "tokens": [1, place],
                    "prompt_tokens": 900,
                    "budget_tokens": None if alpha is None else 90,
                    "retained_tokens": 90.0,
                    "decode_seconds": 0.5,
                    **(row if row is not None else {}),
                }
            )
        if done is None:
            cell.seal()
    return cell.directory


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def edit_rows(path: Path, **changes: Any) -> None:
    rows = pq.ParquetFile(path).read().to_pylist()
    path.write_bytes(to_parquet([{**rows[0], **changes}, *rows[1:]]))


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INERTIA_RESULTS", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def grid_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("grid") / "runs"
    for task in ("vt", "cwe"):
        write(runs, task)
        write(runs, task, None)
    write(runs, "fwe", n=20, done=17)
    (runs / "notes").mkdir()
    (runs / "groups").mkdir()
    (runs / "groups" / "x.jsonl").write_text("not ours")
    (runs / "killed__c00000000000").mkdir()
    (runs / ".c00000000001.lock").write_text("1")
    return runs


@pytest.fixture
def grid(results: Path, grid_once: Path) -> Path:
    """Return four sealed cells, one incomplete, and things that are no cells."""
    return shutil.copytree(grid_once, results / "runs")


def out(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


# ------------------------------------------------------------------------------------------------------- list, show


def test_list_has_one_line_a_cell(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].split()[0] == "cell" and len(lines) == 6
    (open_line,) = [line for line in lines if "17/20" in line]
    assert "fwe" in open_line and " - " in open_line, "an incomplete cell has no score"
    assert captured.err == "5 cells: 4 complete, 1 incomplete\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--task", "vt"], {("vt", "full_cache"), ("vt", "inertiakv")}),
        (["--policy", "inertiakv", "--task", "?w*"], {("cwe", "inertiakv"), ("fwe", "inertiakv")}),
        (["--policy", "inertiakv-0.8-*", "--status", "complete"], {("vt", "inertiakv"), ("cwe", "inertiakv")}),
        (["--status", "incomplete"], {("fwe", "inertiakv")}),
        (["--backbone", "other"], set()),
        (["--benchmark", "ruler", "--policy", "full*"], {("vt", "full_cache"), ("cwe", "full_cache")}),
        (["--status", "damaged"], set()),
    ],
)
def test_list_filters(
    grid: Path, capsys: pytest.CaptureFixture[str], options: list[str], expected: set[tuple[str, str]]
) -> None:
    assert main(["list", "--json", *options]) == 0
    cells = [json.loads(line) for line in out(capsys).splitlines()]
    assert {(cell["task"], cell["method"]) for cell in cells} == expected and len(cells) == len(expected)


def test_list_json_says_what_is_known(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json", "--policy", "full_cache", "--task", "vt"]) == 0
    cell = json.loads(out(capsys))
    assert cell["score"]["mean"] == pytest.approx(1 / 6) and cell["retained_tokens"] == 90
    assert (cell["backbone"], cell["length"], cell["ok"], cell["planned"]) == ("tiny", 1024, 3, 3)
    assert main(["list", "--json", "--status", "incomplete"]) == 0
    cell = json.loads(out(capsys))
    assert (cell["status"], cell["score"], cell["ok"], cell["planned"]) == ("incomplete", None, 17, 20)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_the_table_fits_and_ids_stay_whole(tmp_path: Path, width: int) -> None:
    for place in range(3):
        write(tmp_path, "a_task_with_a_very_long_name_indeed_" * 2, place / 7, n=1)
    cells = read_facts(tmp_path)
    lines = as_table(cells, width)
    assert max(map(len, lines)) <= width and len({len(line) for line in lines}) == 1, "numbers end in one column"
    assert {line.split()[0] for line in lines[1:]} == {cell.id for cell in cells}
    assert ("backbone" in lines[0]) == (width >= 100)
    assert max(map(len, as_table(cells, None))) > 120, "a pipe gets every character"


def test_a_damaged_cell_is_listed_and_the_others_too(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = next(grid.glob("*full_cache_vt*"))
    (folder / MANIFEST).write_text("{")
    assert main(["list"]) == 1
    lines = out(capsys).splitlines()
    assert len(lines) == 6 and lines[-1].startswith(f"damaged  {folder}: ")
    assert main(["list", "--status", "complete"]) == 0


def test_list_is_no_place_for_typing_errors(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--root", str(results / "nowhere")]) == 2
    assert "nowhere: the folder does not exist" in capsys.readouterr().err
    for wrong in (["list", "--status", "sealed"], ["list", "--width", "0"], ["lists"], []):
        with pytest.raises(SystemExit) as error:
            main(wrong)
        assert error.value.code == 2


def test_names_of_records_that_say_little(tmp_path: Path) -> None:
    with open_cell(tmp_path, {"a": 1}, label="some", planned=["e"], config={}, provenance={}):
        pass
    found = names(read_facts(tmp_path)[0].manifest)
    assert (found.backbone, found.benchmark, found.task, found.length) == ("none", "none", "none", None)
    assert found.policy == found.method == "some"
    assert Filter(policy="some")(read_facts(tmp_path)[0]) and not Filter(task="x")(read_facts(tmp_path)[0])


def test_show_by_the_beginning_of_an_id(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import yaml

    cell = next(cell for cell in read_cells(grid) if not cell.sealed)
    assert main(["show", cell.id[:8]]) == 0
    shown = yaml.safe_load(out(capsys))
    assert shown["cell"] == cell.id and shown["progress"] == "incomplete 17/20" and shown["rows"] == 17
    assert shown["identity"] == cell.identity and shown["summary"] is None
    assert main(["show", cell.id, "--rows", "2", "--json"]) == 0
    assert [row["index"] for row in json.loads(out(capsys))["rows"]] == [0, 1]
    assert main(["show", "c"]) == 2 and "5 cells" in capsys.readouterr().err
    assert main(["show", "cffffffffff0"]) == 2 and "no cell in" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------ verify


def test_sound_records_pass_and_incomplete_ones_are_named(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify"]) == 0
    lines = out(capsys).splitlines()
    assert lines[-1] == "4 intact, 1 incomplete, 0 damaged" and "incomplete 17/20" in lines[0] and len(lines) == 2
    assert main(["verify", "--jobs", "2"]) == 0
    assert out(capsys).splitlines() == lines


def _journal_row(folder: Path) -> None:
    lines = (folder / JOURNAL).read_text().splitlines(keepends=True)
    (folder / JOURNAL).write_text(lines[0].replace("answer 0", "answer 9") + "".join(lines[1:]))


DAMAGES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "score": ("rows changed", lambda folder: edit_rows(folder / SAMPLES, score=1.0)),
    "prediction": ("rows changed", lambda folder: edit_rows(folder / SAMPLES, prediction="better")),
    "torn table": ("no readable parquet", lambda folder: (folder / SAMPLES).write_bytes(b"PAR1")),
    "no table": ("missing", lambda folder: (folder / SAMPLES).unlink()),
    "identity": (
        "identity was edited",
        lambda folder: edit_json(folder / MANIFEST, lambda m: m["identity"].pop("seed")),
    ),
    "plan": ("planned is", lambda folder: edit_json(folder / MANIFEST, lambda m: m["planned"].append("x"))),
    "planned ids": (
        "not planned",
        lambda folder: edit_json(folder / MANIFEST, lambda m: m["planned"].__setitem__(0, "x")),
    ),
    "id": ("folder of another cell", lambda folder: edit_json(folder / MANIFEST, lambda m: m.update(cell_id="c1"))),
    "no manifest": ("always written first", lambda folder: (folder / MANIFEST).unlink()),
    "mean": ("mean score", lambda folder: edit_json(folder / SUMMARY, lambda s: s["score"].update(mean=0.9))),
    "count": ("are ok", lambda folder: edit_json(folder / SUMMARY, lambda s: s.update(ok=2))),
    "seal": ("rows changed", lambda folder: edit_json(folder / SUMMARY, lambda s: s.update(rows_sha256="0"))),
    "empty seal": ("no readable JSON", lambda folder: (folder / SUMMARY).write_text("")),
    "less seal": ("KeyError", lambda folder: edit_json(folder / SUMMARY, lambda s: s.pop("score"))),
    "newer": ("newer than", lambda folder: edit_json(folder / SUMMARY, lambda s: s.update(schema_version=99))),
    "journal": ("rows changed", _journal_row),
    "journal line": ("not JSON", lambda folder: (folder / JOURNAL).write_text("{\n")),
    "renamed": ("folder of another", lambda folder: folder.rename(folder.with_name("tiny__c000000000aa"))),
    "twin": (
        "too: move one away",
        lambda folder: shutil.copytree(folder, folder.with_name(f"a__{read_cell(folder).id}")),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_verify_names_each_damaged_cell(grid: Path, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    message, harm = DAMAGES[damage]
    harm(next(grid.glob("*full_cache_vt*")))
    assert main(["verify"]) == 1
    lines = out(capsys).splitlines()
    (named,) = [line for line in lines if line.startswith("damaged")]
    assert message in named and str(grid) in named and lines[-1].endswith(" 1 damaged")


def test_every_flipped_byte_of_a_table_is_harmless_or_noticed(tmp_path: Path) -> None:
    from inertia.records.verify import check

    folder = write(tmp_path, n=2)
    path, whole = folder / SAMPLES, (folder / SAMPLES).read_bytes()
    before = canonical_hash(tmp_path)
    for place in range(0, len(whole), 61):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        (finding,) = check(folder)
        assert finding.status == "damaged" or canonical_hash(tmp_path) == before, f"byte {place}"


def test_published_files_are_verified(grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.parquet"
    export(grid, [cell.id for cell in read_cells(grid) if cell.sealed], path)
    assert main(["verify", "--root", str(path)]) == 0 and out(capsys) == "4 intact, 0 incomplete, 0 damaged\n"
    pq.write_table(pq.read_table(path).slice(1), path)
    assert main(["verify", "--root", str(path)]) == 1 and str(path) in out(capsys)


# -------------------------------------------------------------------------------------------------------------- diff


def test_equal_but_for_timings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b", row={"decode_seconds": 9.0, "batch_rows": 7})
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert out(capsys) == "1 equal, 0 different, 0 only in the first, 0 only in the second\n"


def test_every_kind_of_difference_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for root in (a, b):
        write(root, "vt", n=3, row={"prediction": "x"} if root == b else {})
    only_a, only_b = read_cell(write(a, "cwe")).id, read_cell(write(b, "cwe", None)).id
    write(a, "fwe", n=4)
    write(b, "fwe", n=4, done=2)
    assert main(["diff", str(a), str(b)]) == 1
    lines = out(capsys).splitlines()
    assert f"only in {a}: {only_a} tiny__inertiakv-0.8-1-0.9__cwe-1024 (complete 3/3)" in lines
    assert any(line.startswith(f"only in {b}: {only_b}") for line in lines)
    (changed,) = [line for line in lines if "vt-1024" in line]
    assert changed.endswith("3 examples changed, first vt/0000: prediction 'answer 0' -> 'x'")
    (fewer,) = [line for line in lines if "fwe-1024" in line]
    assert "complete 4/4 against incomplete 2/4" in fewer
    assert "2 examples only in the first, such as fwe/0002" in fewer
    assert lines[-1] == "0 equal, 2 different, 1 only in the first, 1 only in the second"


def test_runs_equal_what_was_published_and_compacted_of_them(grid: Path, results: Path) -> None:
    shutil.rmtree(next(grid.glob("*fwe*")))
    export(grid, [cell.id for cell in read_cells(grid)], results / "x.parquet")
    compact(grid, results / "set")
    for other in ("x.parquet", "set"):
        assert main(["diff", str(grid), str(results / other)]) == 0
    write(grid, "fwe")
    assert main(["diff", str(grid), str(results / "set")]) == 1


def test_two_cells_of_one_root(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_policy = {cell.label.split("__")[1]: cell.id for cell in read_cells(grid) if "vt-1024" in cell.label}
    assert main(["diff", by_policy["full_cache"], by_policy["inertiakv-0.8-1-0.9"]]) == 1
    shown = out(capsys)
    assert "identity: policy.aggregation.alpha: 'none' -> 0.8" in shown
    assert "3 examples changed, first vt/0000: budget_tokens None -> 90" in shown and "cell_id" not in shown
    assert main(["diff", by_policy["full_cache"], by_policy["full_cache"]]) == 0


def test_what_cannot_be_compared(grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(grid), str(tmp_path / "nowhere")]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err
    assert main(["diff", "c1234", "c5678"]) == 2


ROWS = [
    make_row(
        {
            "schema_version": 1,
            "cell_id": "c0",
            "example_id": f"e{place}",
            "task": "t",
            "index": place,
            "status": "ok",
            "attempt": 1,
            "prediction": "p",
            "score": 0.5,
        }
    )
    for place in range(5)
]


@given(
    place=st.integers(0, 4),
    change=st.sampled_from([("score", 0.25), ("prediction", "q"), ("tokens", [1]), ("attempt", 2), ("stop", "eos")]),
    order=st.permutations(range(5)),
    timing=st.floats(0, 9),
)
def test_one_changed_value_is_found_wherever_it_is(
    place: int, change: tuple[str, Any], order: list[int], timing: float
) -> None:
    shuffled = [{**ROWS[index], "decode_seconds": timing} for index in order]
    assert diff_rows(ROWS, shuffled) is None
    name, value = change
    changed = [{**row, name: value} if row["example_id"] == f"e{place}" else row for row in shuffled]
    found = diff_rows(ROWS, changed)
    assert (
        found is not None and found.changed == (f"e{place}",) and dict(found.columns) == {name: (ROWS[0][name], value)}
    )


# ---------------------------------------------------------------------------------------------------------- columnar


def mixed(root: Path) -> None:
    """Sealed, failed, torn and incomplete cells, with and without budgets, lengths and equal identities."""
    write(root, "vt", None, row={"prediction": "None", "references": [], "metrics": {"a": 1}})
    write(root, "vt", 0.8, row={"truncated": True, "stop": "eos", "retained_tokens": 1.5})
    write(root, "vt", 1, row={"budget_tokens": 5, "evictions": 2**40}, weights=[0.25, 0.75], flag=True)
    write(root, "cwe", 0.5, n=11, fail="cwe/0003")
    folder = write(root, "fwe", 0.5, n=9, done=7)
    (folder / JOURNAL).write_bytes((folder / JOURNAL).read_bytes()[:-9])
    with open_cell(root, {"only": None}, label="l", planned=["b", "a"], config={}, provenance={}) as cell:
        cell.append_failure("b", 0, "no memory", task="t")


@pytest.mark.parametrize("unsealed", ["include", "skip"])
def test_the_fast_frame_is_the_checked_one(tmp_path: Path, unsealed: Any) -> None:
    mixed(tmp_path / "runs")
    checked = read_samples(tmp_path / "runs", unsealed=unsealed)
    fast = read_samples(tmp_path / "runs", unsealed=unsealed, check=False)
    pd.testing.assert_frame_equal(fast, checked)
    assert [type(value) for value in fast["tokens"]] == [type(value) for value in checked["tokens"]]
    some = read_samples(tmp_path / "runs", unsealed=unsealed, check=False, columns=["score", "cell_id"])
    pd.testing.assert_frame_equal(some, checked[some.columns])
    assert list(some.columns[:3]) == ["cell_id", "score", "cell_label"]
    pd.testing.assert_frame_equal(
        read_samples(tmp_path / "runs", unsealed=unsealed, columns=["score", "cell_id"]), some
    )
    compact(tmp_path / "runs", tmp_path / "set")
    sealed = read_samples(tmp_path / "runs", unsealed="skip")
    for check in (True, False):
        pd.testing.assert_frame_equal(read_samples(tmp_path / "set", check=check), sealed)


def test_values_of_an_identity_keep_their_types() -> None:
    found = code([1, True, 1.5, "1", 1, "none", True])
    assert [(type(value), value) for value in found.values] == [
        (int, 1),
        (bool, True),
        (float, 1.5),
        (str, "1"),
        (str, "none"),
    ]
    assert found.codes.tolist() == [0, 1, 2, 3, 0, 4, 1]


def test_frames_of_nothing(tmp_path: Path) -> None:
    pd.testing.assert_frame_equal(read_samples(tmp_path, check=False), read_samples(tmp_path))
    assert sample_table(tmp_path).num_rows == 0


def test_the_arrow_table_has_one_type_a_column(tmp_path: Path) -> None:
    mixed(tmp_path)
    table = sample_table(tmp_path, columns=["cell_id", "score", "task"])
    kinds = {field.name: field.type for field in table.schema}
    assert kinds["policy.aggregation.alpha"] == pa.float64() and kinds["flag"] == pa.bool_()
    assert kinds["weights"] == kinds["policy"] == pa.string() and kinds["seed"] == pa.int64()
    frame = table.to_pandas()
    groups = frame.groupby(["policy", "policy.aggregation.alpha"], dropna=False).size().reset_index()
    expected = read_samples(tmp_path).groupby(["policy.aggregation.alpha"]).size()
    assert groups[0].sum() == expected.sum() == len(read_samples(tmp_path))
    assert frame.loc[frame["policy"] == "full_cache", "policy.aggregation.alpha"].isna().all()


def test_the_fast_way_still_refuses_what_it_can_see(tmp_path: Path) -> None:
    from inertia.records import CorruptRecord, Unsealed

    mixed(tmp_path / "runs")
    with pytest.raises(Unsealed, match="incomplete 6/9"):
        read_samples(tmp_path / "runs", check=False, unsealed="refuse")
    with pytest.raises(ValueError, match=r"\['scores'\]"):
        read_samples(tmp_path / "runs", check=False, columns=["scores"])
    with pytest.raises(ValueError, match="'maybe'"):
        read_samples(tmp_path / "runs", check=False, unsealed="maybe")
    folder = write(tmp_path / "short")
    rows = pq.ParquetFile(folder / SAMPLES).read().to_pylist()
    for wrong in (rows[:2], [{**row, "cell_id": "c00000000000"} for row in rows]):
        (folder / SAMPLES).write_bytes(to_parquet(wrong))
        with pytest.raises(CorruptRecord, match="rows of cell"):
            read_samples(tmp_path / "short", check=False)
    (folder / SAMPLES).unlink()
    with pytest.raises(CorruptRecord, match="cannot be read"):
        read_samples(tmp_path / "short", check=False)
    write(tmp_path / "clash", task="vt")
    edit = next((tmp_path / "clash").iterdir()) / MANIFEST
    edit_json(edit, lambda manifest: manifest["identity"].pop("seed"))
    with pytest.raises(CorruptRecord, match="identity was edited"):
        read_samples(tmp_path / "clash", check=False)


# ---------------------------------------------------------------------------------------------------------- compact


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_a_data_set_reads_everywhere(grid: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compact"]) == 0
    assert "4 cells added, 0 there already, 1 incomplete" in out(capsys)
    target = results / "dataset"
    assert [str(path.relative_to(target)) for path in target.rglob("*.parquet")] == [
        "backbone=tiny/benchmark=ruler/cells-0000.parquet"
    ]
    frame = pd.read_parquet(target)
    assert len(frame) == 12 and set(frame["backbone"]) == {"tiny"} and set(frame["benchmark"]) == {"ruler"}
    means = frame.groupby(["policy", "task"])["score"].mean()
    assert means["full_cache", "vt"] == pytest.approx(1 / 6) and len(means) == 4
    assert json.loads(frame["identity"][0])["benchmark"]["name"] == "ruler"
    assert ds.dataset(target, partitioning="hive").count_rows(filter=ds.field("backbone") == "tiny") == 12
    duckdb = pytest.importorskip("duckdb", reason="needs duckdb: pip install -c constraints.txt duckdb")
    query = f"SELECT policy, task, avg(score) FROM read_parquet('{target}/**/*.parquet') GROUP BY ALL"
    assert {row[:2]: row[2] for row in duckdb.sql(query).fetchall()} == pytest.approx(means.to_dict())
    samples = sample_table(target, columns=["task", "score"])  # noqa: F841 - duckdb finds it by its name
    found = duckdb.sql('SELECT "policy.aggregation.alpha", count(*) FROM samples GROUP BY 1').fetchall()
    assert dict(found) == {None: 6, 0.8: 6}
    before = tree(target)
    assert main(["compact"]) == 0 and "0 cells added, 4 there already" in out(capsys)
    assert tree(target) == before, "nothing new, nothing written"


def test_cells_come_back_as_they_were(tmp_path: Path) -> None:
    mixed(tmp_path / "runs")
    sealed = [cell for cell in read_cells(tmp_path / "runs") if cell.sealed]
    done = compact(tmp_path / "runs", tmp_path / "set", remove=True)
    assert sorted(done.removed) == [cell.id for cell in sealed] and not done.left and not done.conflicts
    assert all(not cell.sealed for cell in read_cells(tmp_path / "runs")), "incomplete cells stay"
    for cell, kept in zip(sealed, read_cells(tmp_path / "set"), strict=True):
        assert (cell.manifest, cell.rows, cell.summary) == (kept.manifest, kept.rows, kept.summary)
    assert restore(tmp_path / "set", tmp_path / "runs") == [cell.id for cell in sealed]
    assert restore(tmp_path / "set", tmp_path / "runs") == [], "what is there is left alone"
    restored = {cell.id: cell for cell in read_cells(tmp_path / "runs") if cell.sealed}
    for cell in sealed:
        again = restored[cell.id]
        assert (again.source, again.manifest, again.rows, again.summary) == (
            cell.source,
            cell.manifest,
            cell.rows,
            cell.summary,
        )
    assert main(["verify", "--root", str(tmp_path / "runs")]) == 0


def test_failed_attempts_are_kept_too(tmp_path: Path) -> None:
    folder = write(tmp_path / "runs", fail="vt/0001")
    lines = (folder / JOURNAL).read_bytes()
    assert lines.count(b"\n") == 4
    compact(tmp_path / "runs", tmp_path / "set", remove=True)
    assert not folder.exists()
    restore(tmp_path / "set", tmp_path / "runs")
    assert (folder / JOURNAL).read_bytes() == lines
    write(tmp_path / "runs", n=5)
    compact(tmp_path / "runs", tmp_path / "set", remove=True)
    restore(tmp_path / "set", tmp_path / "runs")
    assert (folder / JOURNAL).read_bytes().startswith(lines) and read_cell(folder).progress == "complete 5/5"


def test_a_reopened_cell_replaces_its_older_version(tmp_path: Path) -> None:
    write(tmp_path / "runs", "vt", n=2)
    write(tmp_path / "runs", "cwe", n=2)
    compact(tmp_path / "runs", tmp_path / "set")
    folder = write(tmp_path / "runs", "vt", n=4)
    done = compact(tmp_path / "runs", tmp_path / "set")
    assert done.added == [read_cell(folder).id] and len(done.kept) == 1
    assert sorted(cell.progress for cell in read_cells(tmp_path / "set")) == ["complete 2/2", "complete 4/4"]
    assert len(pd.read_parquet(tmp_path / "set")) == 6


@pytest.mark.parametrize("other", [{"n": 2}, {"n": 4, "row": {"prediction": "another"}}])
def test_a_version_that_lacks_records_replaces_nothing(
    tmp_path: Path, other: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "runs", n=4)
    compact(tmp_path / "runs", tmp_path / "set", remove=True)
    before = tree(tmp_path / "set")
    folder = write(tmp_path / "runs", **other)
    arguments = ["compact", str(tmp_path / "set"), "--root", str(tmp_path / "runs"), "--remove"]
    assert main(arguments) == 1
    shown = out(capsys)
    assert f"conflict  {read_cell(folder).id}: " in shown and "has another version of it" in shown
    assert tree(tmp_path / "set") == before and folder.is_dir()


def test_a_folder_with_more_than_records_is_not_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "runs")
    (folder / "notes.txt").write_text("mine")
    done = compact(tmp_path / "runs", tmp_path / "set", remove=True)
    assert not done.removed and "notes.txt" in done.left[read_cell(folder).id] and (folder / "notes.txt").exists()


def test_a_cell_that_is_being_written_is_not_removed(tmp_path: Path) -> None:
    folder = write(tmp_path / "runs")
    name = read_cell(folder).id
    from inertia.records.lock import exclusive

    with exclusive(tmp_path / "runs" / f".{name}.lock", "the test"):
        done = compact(tmp_path / "runs", tmp_path / "set", remove=True)
    assert done.left == {name: "a run is writing it"} and folder.exists()
    assert compact(tmp_path / "runs", tmp_path / "set", remove=True).removed == [name]


def test_a_damaged_cell_or_data_set_stops_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, target = tmp_path / "runs", tmp_path / "set"
    arguments = ["compact", str(target), "--root", str(runs), "--remove"]
    folder = write(runs)
    _journal_row(folder)
    assert main(arguments) == 1 and str(folder) in capsys.readouterr().err
    assert folder.is_dir() and not list(target.rglob("*.parquet"))
    shutil.rmtree(folder)
    folder = write(runs)
    assert compact(runs, target).added
    (path,) = target.rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    assert main(arguments) == 1 and str(path) in capsys.readouterr().err
    assert folder.is_dir()


def test_many_cells_go_into_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inertia.records.compact.CELLS_A_FILE", 2)
    for alpha in (0.1, 0.2, 0.3):
        write(tmp_path / "runs", alpha=alpha)
    compact(tmp_path / "runs", tmp_path / "set")
    (first,) = [path for path in (tmp_path / "set").rglob("*.parquet") if path.name == "cells-0000.parquet"]
    untouched = first.stat()
    for alpha in (0.4, 0.5):
        write(tmp_path / "runs", alpha=alpha)
    compact(tmp_path / "runs", tmp_path / "set")
    files = sorted((tmp_path / "set").rglob("*.parquet"))
    assert [len(read_cells(path)) for path in files] == [2, 2, 1]
    assert os.path.samestat(files[0].stat(), untouched), "a full file is never written again"
    assert canonical_hash(tmp_path / "set") == canonical_hash(tmp_path / "runs")
    shutil.copy(files[2], files[2].with_name("copy.parquet"))
    with pytest.raises(DuplicateCell, match="both hold cell"):
        read_cells(tmp_path / "set")


def test_places_that_are_mixed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    write(runs)
    compact(runs, tmp_path / "set")
    for source, target in ((runs, runs), (tmp_path / "set", tmp_path / "other")):
        assert main(["compact", str(target), "--root", str(source)]) == 2
        assert "give another" in capsys.readouterr().err
    assert main(["restore", str(runs), "--root", str(tmp_path / "new")]) == 2
    assert main(["restore", str(tmp_path / "set"), "c123", "--root", str(tmp_path / "new")]) == 2
    assert not (tmp_path / "new").exists()


def command(*arguments: object, fault: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment.pop("INERTIA_FAULT", None)
    if fault is not None:
        environment["INERTIA_FAULT"] = fault
    words = [sys.executable, "-m", "inertia.records", *map(str, arguments)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "fault",
    ["replace:2", "remove:1", *(pytest.param(name, marks=pytest.mark.slow) for name in ("replace:1", "remove:2"))],
)
def test_a_killed_compaction_loses_nothing_and_goes_on(tmp_path: Path, fault: str) -> None:
    runs, target = tmp_path / "runs", tmp_path / "set"
    for place in range(2):
        write(runs, backbone={"name": "one"}, seed=place)
    before = canonical_hash(runs)
    write(runs, "fwe", done=1)
    # Two partitions: the names in the manifests decide.
    second = sorted(runs.glob("*vt*"))[1]
    edit_json(second / MANIFEST, lambda manifest: manifest["config"]["backbone"].update(name="other"))
    arguments = ("compact", target, "--root", runs, "--remove")
    killed = command(*arguments, fault=fault)
    assert killed.returncode == -9, killed.stderr
    here = {cell.id for cell in read_cells(runs) if cell.sealed}
    there = {cell.id for cell in read_cells(target)}
    assert len(here | there) == 2, "every record is in at least one of the two places"
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    assert canonical_hash(target) == before
    assert len(list(target.rglob("*.parquet"))) == 2 and not list(target.rglob("*.tmp"))
    assert [path.name for path in runs.iterdir() if "_vt-1024" in path.name] == []


def test_a_folder_half_removed_is_no_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "runs")

    def interrupted(path: Path) -> None:
        (path / MANIFEST).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("inertia.records.compact.rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compact(tmp_path / "runs", tmp_path / "set", remove=True)
    assert read_cells(tmp_path / "runs") == [] and not folder.exists()
    write(tmp_path / "runs", "cwe")
    assert len(compact(tmp_path / "runs", tmp_path / "set", remove=True).removed) == 1
    assert not any((tmp_path / "runs").iterdir()) and len(read_cells(tmp_path / "set")) == 2


def test_a_killed_restoration_goes_on(tmp_path: Path) -> None:
    runs, target = tmp_path / "runs", tmp_path / "set"
    for place in range(2):
        write(runs, seed=place)
    compact(runs, target, remove=True)
    assert command("restore", target, "--root", runs, fault="restore:2").returncode == -9
    assert len(read_cells(runs)) == 1
    assert command("restore", target, "--root", runs).returncode == 0
    assert canonical_hash(runs) == canonical_hash(target) and not list(runs.glob(".*.tmp"))


# ----------------------------------------------------------------------------------------------------------- export


def test_export_by_id_and_by_experiment(grid: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sealed = [cell.id for cell in read_cells(grid) if cell.sealed]
    assert main(["export", sealed[0], sealed[1][:9], str(results / "two.parquet")]) == 0
    assert sorted(cell.id for cell in read_cells(results / "two.parquet")) == sorted(sealed[:2])
    (results / "experiments").mkdir()
    for profile in ("smoke", "laptop"):
        index = {"cells": [{"cell_id": name} for name in sealed]}
        (results / "experiments" / f"grid__{profile}.json").write_text(json.dumps(index))
    assert main(["export", "--experiment", "grid", str(results / "all.parquet")]) == 2
    assert "several profiles (grid__laptop, grid__smoke)" in capsys.readouterr().err
    assert main(["export", "--experiment", "grid", "--profile", "smoke", str(results / "all.parquet")]) == 0
    assert len(read_cells(results / "all.parquet")) == 4


def test_what_is_not_exported(grid: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unsealed = next(cell.id for cell in read_cells(grid) if not cell.sealed)
    sealed = next(cell.id for cell in read_cells(grid) if cell.sealed)
    path = str(results / "x.parquet")
    assert main(["export", unsealed, path]) == 1 and "incomplete 17/20" in capsys.readouterr().err
    assert main(["export", "--experiment", "nothing", path]) == 2 and "no index" in capsys.readouterr().err
    assert main(["export", path]) == 2 and main(["export", sealed]) == 2
    assert not Path(path).exists()
    assert main(["export", sealed, path]) == 0
    assert main(["export", sealed, path]) == 2 and main(["export", sealed, path, "--replace"]) == 0


# --------------------------------------------------------------------------------------- beside a run, and in a pipe


def test_a_folder_that_changes_under_the_reader_is_read_again(tmp_path: Path) -> None:
    folder = write(tmp_path)
    calls = []

    def read(path: Path) -> str:
        calls.append(path)
        if len(calls) < 3:
            (path / SUMMARY).write_text("{}" * len(calls))
            raise ValueError("half of two versions")
        return "whole"

    assert steady(read, folder) == "whole" and len(calls) == 3

    def broken(path: Path) -> str:
        calls.append(path)
        raise ValueError("broken")

    calls.clear()
    with pytest.raises(ValueError, match="broken"):
        steady(broken, folder)
    assert len(calls) == 1, "a folder that holds still is not asked again"


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_records_cli import write
for n in range(1, 200):
    write(Path(sys.argv[1]), "vt", n=n)
    write(Path(sys.argv[1]), "cwe", n=n)
"""


def test_readers_are_at_ease_beside_a_writer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for task in ("vt", "cwe"):
        write(tmp_path, task, n=1)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", WRITER, str(tmp_path), str(Path(__file__).parent)]
    with subprocess.Popen(words, env=environment) as writer:
        seen = set()
        while writer.poll() is None and len(seen) < 12:
            assert main(["verify", "--root", str(tmp_path)]) == 0, out(capsys)
            assert main(["list", "--json", "--root", str(tmp_path)]) == 0
            seen |= {line for line in out(capsys).splitlines() if line.startswith("{")}
        writer.kill()
    assert len(seen) >= 4, "the records did change meanwhile"


def test_a_reader_may_leave_the_pipe(grid: Path) -> None:
    script = f"{sys.executable} -m inertia.records list --root {grid} | head -n 1"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("cell") and "Error" not in done.stderr, done.stderr


def test_verifying_nothing_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--root", str(tmp_path)]) == 2
    assert "no cells below" in capsys.readouterr().err


def test_what_only_shards_hold_is_pointed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("INERTIA_RESULTS", str(tmp_path))
    assert main(["list"]) == 2
    assert "not whole yet" not in capsys.readouterr().err
    write(tmp_path / "shards" / "1of2" / "runs")
    assert main(["list"]) == 2
    assert f"--root {tmp_path / 'shards' / '1of2' / 'runs'}" in capsys.readouterr().err
    assert main(["list", "--root", str(tmp_path / "shards" / "1of2" / "runs")]) == 0
