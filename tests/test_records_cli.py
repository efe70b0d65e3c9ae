"""The records command: each verb as a user runs it, on damage and beside a running writer."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records_data import edit, write

from inertia.records import (
    CorruptRecord,
    canonical_hash,
    export,
    listed,
    open_cell,
    read_cells,
    verify,
    write_experiment,
)
from inertia.records.__main__ import main
from inertia.records.diff import diff_rows
from inertia.records.listing import Filter, as_table
from inertia.records.names import names
from inertia.records.read import survey
from inertia.records.schema import make_row
from inertia.records.store import TABLES, files, open_store

ROOT = Path(__file__).parents[1]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INERTIA_RESULTS", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def grid_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("grid") / "runs"
    for task in ("vt", "cwe"):
        write(runs, task)
        write(runs, task, None, name="shard-1of2")
    write(runs, "fwe", n=20, done=17)
    (runs / "notes").mkdir()
    (runs / "some.json").write_text("not ours")
    return runs


@pytest.fixture
def grid(results: Path, grid_once: Path) -> Path:
    """Return four sealed cells and an incomplete one in two files, and things that are no records."""
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
    cells = read_cells(tmp_path)
    lines = as_table(cells, width)
    assert max(map(len, lines)) <= width and len({len(line) for line in lines}) == 1, "numbers end in one column"
    assert {line.split()[0] for line in lines[1:]} == {cell.id for cell in cells}
    assert ("backbone" in lines[0]) == (width >= 100)
    assert max(map(len, as_table(cells, None))) > 120, "a pipe gets every character"


def test_a_damaged_cell_is_listed_and_the_others_too(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(grid / "local.db", "UPDATE seal SET summary = '{}' WHERE cell = (SELECT max(cell) FROM seal)")
    assert main(["list"]) == 1
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert len(lines) == 6 and lines[-1].startswith(f"damaged  {grid / 'local.db'}: ")
    assert captured.err == "5 cells: 3 complete, 1 incomplete, 1 damaged\n"
    assert main(["list", "--status", "complete"]) == 0
    assert main(["list", "--status", "damaged", "--json"]) == 1
    (damage,) = [json.loads(line) for line in out(capsys).splitlines() if line.startswith("{")]
    assert damage["status"] == "damaged" and len(damage["cells"]) == 1


def test_a_damaged_file_is_listed_and_the_cells_of_others_too(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (grid / "local.db").write_bytes(b"no database" * 500)
    assert main(["list"]) == 1
    lines = out(capsys).splitlines()
    assert len(lines) == 4 and lines[-1].startswith(f"damaged  {grid / 'local.db'}: ")
    assert main(["show", lines[1].split()[0]]) == 0


def test_list_is_no_place_for_typing_errors(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--root", str(results / "nowhere")]) == 2
    assert "nowhere: the folder does not exist" in capsys.readouterr().err
    for wrong in (["list", "--status", "sealed"], ["list", "--width", "0"], ["lists"], []):
        with pytest.raises(SystemExit) as error:
            main(wrong)
        assert error.value.code == 2


def test_names_of_records_that_say_little(tmp_path: Path) -> None:
    with open_cell(tmp_path, {"a": 1}, label="some", planned=["e"], config={}, provenance={}) as cell:
        cell.append_failure("e", 0, "no memory", task="t")
    found = names(survey(tmp_path)[0][0].manifest)
    assert (found.backbone, found.benchmark, found.task, found.length) == ("none", "none", "none", None)
    assert found.policy == found.method == "some"
    assert Filter(policy="some")(survey(tmp_path)[0][0]) and not Filter(task="x")(survey(tmp_path)[0][0])


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


# What no single row's hash can know: the hashes of the rows are right again after these edits.
FORGED = {
    "prediction": ("rows changed", "sample", "row", "answer 1", "better"),
    "identity": ("identity", "cell", "identity", '"seed":0', '"seed":1'),
    "seal": ("rows changed", "seal", "summary", 'rows_sha256":"', 'rows_sha256":"0'),
    "mean": ("mean score", "seal", "summary", 'mean":0.1', 'mean":0.9'),
    "count": ("are ok", "seal", "summary", '"ok":3', '"ok":2'),
    "newer": ("newer", "cell", "manifest", 'schema_version":1', 'schema_version":99'),
    "empty": ("rows_sha256", "seal", "summary", '"rows_sha256"', '"rows"'),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_verify_names_each_forged_cell(grid: Path, capsys: pytest.CaptureFixture[str], forgery: str) -> None:
    message, table, column, old, new = FORGED[forgery]
    (cell,) = [cell for cell in read_cells(grid) if cell.label == "tiny__inertiakv-0.8-1-0.9__vt-1024"]
    key = "id" if table == "cell" else "cell"
    statement = f"UPDATE {table} SET {column} = replace({column}, ?, ?) WHERE {key} = ?"
    edit(grid / "local.db", statement, old, new, cell.id, table=table)
    assert main(["verify"]) == 1
    lines = out(capsys).splitlines()
    (named,) = [line for line in lines if line.startswith("damaged")]
    assert message in named and cell.id in named and str(grid / "local.db") in named
    assert lines[-1] == "3 intact, 1 incomplete, 1 damaged"


def test_verify_names_a_file_that_was_cut(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = grid / "local.db"
    path.write_bytes(path.read_bytes()[:-4096])
    assert main(["verify"]) == 1
    assert f"damaged     {path}: " in (shown := out(capsys)) and "2 intact" in shown


def test_rows_of_nobody_are_found(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(grid / "local.db", "UPDATE sample SET cell = 'c00000000000' WHERE example = 'fwe/0003'", table="sample")
    assert main(["verify"]) == 1
    assert "a row of table sample" in out(capsys)


def dump(path: Path) -> list[Any]:
    """Return everything that can be read from a store."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    connection.text_factory = bytes
    asked = ["PRAGMA application_id", "PRAGMA user_version", "SELECT type, name, tbl_name, sql FROM sqlite_master"]
    found = [connection.execute(text).fetchall() for text in (*asked, *(f"SELECT * FROM {name}" for name in TABLES))]
    connection.close()
    return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_every_flipped_byte_is_reported_or_changes_nothing(tmp_path: Path, seed: int) -> None:
    write(tmp_path, "vt", n=4)
    write(tmp_path, "cwe", n=4, fail=1)
    write(tmp_path, "fwe", n=4, done=3, name="job-7")
    list_cells(tmp_path, "laptop", [cell.id for cell in read_cells(tmp_path)])
    places = [(path, offset) for path in files(tmp_path) for offset in range(path.stat().st_size)]
    known = {cell.id: cell for cell in read_cells(tmp_path)}
    dumps = {path: dump(path) for path in files(tmp_path)}
    chance = random.Random(seed)
    reported = 0
    for path, offset in chance.sample(places, 200):
        whole = path.read_bytes()
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ chance.randrange(1, 256)]) + whole[offset + 1 :])
        intact, damages = verify(tmp_path)
        where = f"{path}, byte {offset}"
        owned = {name for name, cell in known.items() if path in cell.sources}
        for damage in damages:
            hurt = owned if damage.cells is None else owned.intersection(damage.cells)
            assert str(path) in damage.reason and hurt, where
        assert damages or dump(path) == dumps[path], where
        reported += bool(damages)
        # What it says of the others is true.
        for cell in intact:
            try:
                (read,) = read_cells(tmp_path, [cell.id])
            except CorruptRecord as error:
                assert damages and str(path) in str(error), where
            else:
                assert read.rows == known[cell.id].rows, where
        path.write_bytes(whole)
    assert 20 < reported < 200


def test_published_files_are_verified(grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.parquet"
    export(grid, [cell.id for cell in read_cells(grid) if cell.sealed], path)
    assert main(["verify", "--root", str(path)]) == 0 and out(capsys) == "4 intact, 0 incomplete, 0 damaged\n"
    pq.write_table(pq.read_table(path).slice(1), path)
    assert main(["verify", "--root", str(path)]) == 1 and str(path) in out(capsys)


def test_every_flipped_byte_of_a_published_file_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    export(tmp_path / "runs", [write(tmp_path / "runs", n=2)], path)
    whole, before = path.read_bytes(), canonical_hash(path)
    for place in range(0, len(whole), 61):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        assert verify(path)[1] or canonical_hash(path) == before, f"byte {place}"


def test_verifying_nothing_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--root", str(tmp_path)]) == 2
    assert "no cells below" in capsys.readouterr().err


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
    only_a, only_b = write(a, "cwe"), write(b, "cwe", None)
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


def test_runs_equal_what_was_published_of_them(grid: Path, results: Path) -> None:
    ids = [cell.id for cell in read_cells(grid) if cell.sealed]
    export(grid, ids, results / "x.parquet")
    assert main(["diff", str(results / "x.parquet"), str(results / "x.parquet")]) == 0
    assert main(["diff", str(grid), str(results / "x.parquet")]) == 1, "one cell is not published"
    write(grid, "fwe", n=20)
    export(grid, [cell.id for cell in read_cells(grid)], results / "all.parquet")
    assert main(["diff", str(grid), str(results / "all.parquet")]) == 0


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


# ----------------------------------------------------------------------------------------------------------- export


def list_cells(root: Path, profile: str, ids: list[str], when: str = "2026", name: str = "local") -> None:
    """List cells as an experiment's, each in a place of its own."""
    rows = []
    for place, cell in enumerate(ids):
        entry = {"axes": {"place": place}, "cell_id": cell, "length": None, "task": "vt"}
        about = {"experiment": "grid", "profile": profile, "cell": cell, "listed": when}
        rows.append({**about, "entry": json.dumps(entry, separators=(",", ":"))})
    with open_store(root, name) as store:
        store.write(listing=rows)


def test_export_by_id_and_by_experiment(grid: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sealed = [cell.id for cell in read_cells(grid) if cell.sealed]
    assert main(["export", sealed[0], sealed[1][:9], str(results / "two.parquet")]) == 0
    assert sorted(cell.id for cell in read_cells(results / "two.parquet")) == sorted(sealed[:2])
    for profile in ("smoke", "laptop"):
        list_cells(grid, profile, sealed)
    assert main(["export", "--experiment", "grid", str(results / "all.parquet")]) == 2
    assert "several profiles (laptop, smoke)" in capsys.readouterr().err
    assert main(["export", "--experiment", "grid", "--profile", "smoke", str(results / "all.parquet")]) == 0
    assert len(read_cells(results / "all.parquet")) == 4


def test_what_is_not_exported(grid: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unsealed = next(cell.id for cell in read_cells(grid) if not cell.sealed)
    sealed = next(cell.id for cell in read_cells(grid) if cell.sealed)
    path = str(results / "x.parquet")
    assert main(["export", unsealed, path]) == 1 and "incomplete 17/20" in capsys.readouterr().err
    assert main(["export", "--experiment", "nothing", path]) == 2 and "nothing: unknown" in capsys.readouterr().err
    assert main(["export", path]) == 2 and main(["export", sealed]) == 2
    assert not Path(path).exists()
    assert main(["export", sealed, path]) == 0
    assert main(["export", sealed, path]) == 2 and main(["export", sealed, path, "--replace"]) == 0


def test_a_later_listing_of_the_same_place_replaces_the_earlier(grid: Path) -> None:
    ids = [cell.id for cell in read_cells(grid)]
    list_cells(grid, "laptop", ids[:3])
    list_cells(grid, "laptop", ids[3:4], "2027", "job-1")
    found = [entry["cell_id"] for entry in listed(grid)["grid", "laptop"]]
    assert found == [*sorted(ids[1:3]), ids[3]], "its axes are those of the first"


def test_the_end_of_a_run_leaves_a_file_that_stands_alone(grid: Path, results: Path) -> None:
    ids = [cell.id for cell in read_cells(grid)]
    list_cells(grid, "laptop", ids)
    path = write_experiment(results, "grid", "laptop")
    assert path == results / "local" / "grid.laptop.parquet"
    assert canonical_hash(path) == canonical_hash(grid), "what is incomplete is in it, and stays incomplete"
    assert {cell.progress for cell in read_cells(path)} == {"complete 3/3", "incomplete 17/20"}
    plain = pd.read_parquet(path)
    counts = plain.groupby("cell_label")["cell_planned"].agg(["size", "max"])
    assert len(counts) == 5 and counts.loc["tiny__inertiakv-0.8-1-0.9__fwe-1024"].tolist() == [17, 20]
    first = path.read_bytes()
    assert write_experiment(results, "grid", "laptop").read_bytes() == first
    with pytest.raises(FileNotFoundError, match="no records of other"):
        write_experiment(results, "other", "laptop")


# --------------------------------------------------------------------------------------- beside a run, and in a pipe


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from records_data import write
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


@pytest.mark.parametrize("verb", [["list"], ["verify"], ["show", "c1"], ["export", "c1", "x.parquet"], ["sync-wandb"]])
def test_records_of_the_old_version_are_refused(results: Path, verb: list[str], capsys: Any) -> None:
    shutil.copytree(ROOT / "tests" / "data" / "records_v1", results / "runs")
    assert main(verb) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "release 0.1.0" in line and "python -m inertia.records export" in line
