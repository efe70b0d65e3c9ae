from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from reports_data import list_entries, needle_scores, write_runs

from inertia.paper import make_claims, make_figure, make_table
from inertia.paper.table05 import TABLE05
from inertia.records import CorruptRecord, Unsealed, listed, read_cells
from inertia.records.store import files, reading, row_hash, rows
from inertia.report import main
from inertia.reports import build_table, load_source
from inertia.reports.publish import publish
from inertia.reports.source import the_profile

SCORES = needle_scores(tasks=("vt", "niah_noise_3keys"), n=4)


def contents(paths: list[Path]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished and published experiment; tests that change anything copy it."""
    results = tmp_path_factory.mktemp("finished")
    write_runs(results, SCORES)
    publish(results, "table05", "laptop")
    return results


def test_tables_are_rebuilt_to_the_same_bytes_from_runs_and_from_published(finished):
    table, paths = make_table(5, origin="runs", results=finished)
    assert [path.name for path in paths] == [f"table05.{kind}" for kind in ("csv", "md", "parquet", "tex", "html")]
    first = contents(paths)
    for path in paths:
        path.unlink()
    assert contents(make_table(5, origin="runs", results=finished)[1]) == first
    assert contents(make_table(5, origin="published", results=finished)[1]) == first
    assert "ab" * 20 in first["table05.csv"].decode()


def test_figures_are_rebuilt_to_the_same_bytes_from_published(finished):
    paths = make_figure(9, origin="runs", results=finished)
    assert [path.name for path in paths] == ["figure09.png", "figure09.pdf"]
    assert contents(make_figure(9, origin="published", results=finished)) == contents(paths)


def test_csv_and_parquet_hold_the_same_numbers_and_every_cell(finished):
    _, paths = make_table(5, results=finished)
    csv, parquet = pd.read_csv(paths[0]), pd.read_parquet(paths[2])
    assert csv["value"].tolist() == pytest.approx(parquet["value"].tolist())
    index = json.loads((finished / "published" / "table05.laptop.json").read_text())
    listed = {cell for cells in parquet["cells"].dropna() for cell in cells.split()}
    assert listed == {cell["cell_id"] for cell in index["cells"]}


def test_the_published_records_stand_alone(finished, tmp_path):
    (tmp_path / "published").mkdir()
    for path in (finished / "published").iterdir():
        (tmp_path / "published" / path.name).write_bytes(path.read_bytes())
    alone = make_table(5, results=tmp_path)[1]
    assert contents(alone) == contents(make_table(5, results=finished)[1])


def test_another_profile_leaves_the_reference_files_alone(tmp_path):
    write_runs(tmp_path, SCORES, profile="smoke")
    _, paths = make_table(5, "smoke", results=tmp_path)
    assert {path.name.partition(".")[2].rpartition(".")[0] for path in paths} == {"smoke"}


def test_an_altered_record_is_refused(tmp_path):
    write_runs(tmp_path, {("vt", 0.0): [0.0, 1.0]})
    (path,) = files(tmp_path / "runs")
    with reading(path) as connection:
        row = next(rows(connection, "sample"))
    row["row"] = row["row"].replace('"score":0', '"score":1')
    with sqlite3.connect(path) as connection:
        changed = (row["row"], row_hash("sample", row.values()), row["example"])
        connection.execute("UPDATE sample SET row = ?, hash = ? WHERE example = ?", changed)
    with pytest.raises(CorruptRecord, match="changed after the seal"):
        make_table(5, origin="runs", results=tmp_path)


def test_an_unfinished_run_prints_incomplete_and_is_not_published(tmp_path):
    scores = SCORES | {("vt", 0.3): [1.0, None, 0.0, 0.0]}
    write_runs(tmp_path, scores)
    table, _ = make_table(5, results=tmp_path)
    rows = table.frame[(table.frame["task"] == "vt") & (table.frame["alpha"] == 0.3)]
    assert rows["status"].tolist() == ["incomplete 3/4"]
    with pytest.raises(Unsealed, match="incomplete 3/4"):
        publish(tmp_path, "table05", "laptop")
    assert not (tmp_path / "published").exists() or not list((tmp_path / "published").iterdir())


def test_finishing_the_run_completes_the_table(tmp_path):
    write_runs(tmp_path, {("vt", 0.0): [1.0, None]})
    assert make_table(5, results=tmp_path)[0].frame["status"].str.contains("incomplete 1/2").any()
    write_runs(tmp_path, {("vt", 0.0): [1.0, 1.0]})
    assert not make_table(5, results=tmp_path)[0].frame["status"].str.contains("incomplete").any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table", "6"], "no table 6; allowed: 5, methods, ruler13"),
        (["figure", "5"], "no figure 5; allowed: 9"),
        (["needs", "figure", "10"], "no figure 10; allowed: 9"),
        (["tables"], "run `python -m inertia -m experiment=table05 profile=laptop`"),
        (["claims"], "run `python -m inertia -m experiment=table05 profile=laptop`"),
        (
            ["table", "5", "--profile", "nowhere"],
            "run `python -m inertia -m experiment=table05 profile=nowhere`",
        ),
        (["table", "5", "--source", "published"], "no published records of table05 at profile laptop"),
        (["publish", "table05"], "no runs records of table05 at profile laptop"),
    ],
)
def test_what_is_missing_is_named_with_the_fix(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("INERTIA_RESULTS", str(tmp_path))
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_broken_index_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("INERTIA_RESULTS", str(tmp_path))
    path = tmp_path / "published" / "table05.laptop.json"
    path.parent.mkdir()
    path.write_text('{"experiment": "table05"}')
    assert main(["table", "5"]) == 2
    assert "table05.laptop.json is no experiment index (no backbone)" in capsys.readouterr().err


def test_the_command_writes_prints_and_survives_a_poor_terminal(finished, tmp_path):
    import os

    env = os.environ | {"INERTIA_RESULTS": str(finished), "PYTHONIOENCODING": "ascii", "COLUMNS": "90"}
    done = subprocess.run(
        [sys.executable, "-m", "inertia.report", "table", "5"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "full cache" in done.stdout
    assert "table05.csv" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if not line.startswith("wrote")) <= 90


def test_needs_names_the_experiment(capsys):
    assert main(["needs", "figure", "9"]) == 0
    assert main(["needs", "table", "05"]) == 0
    assert main(["needs", "table", "methods"]) == 0
    assert capsys.readouterr().out == "table05\ntable05\nmethods\n"


@pytest.mark.parametrize("origin", ["runs", "auto"])
def test_only_published_records_alone_write_committed_files(finished, tmp_path, origin):
    shutil.copytree(finished, tmp_path / "results")
    results = tmp_path / "results"
    committed = ("tables", "figures", "claims")
    for folder in (*committed, "local"):
        shutil.rmtree(results / folder, ignore_errors=True)
    made = [make_table(5, None, origin, results)[1], make_figure(9, None, origin, results)]
    made.append(make_claims(None, origin, results)[1])
    assert {path.parent.parent for paths in made for path in paths} == {results / "local"}
    assert not any((results / folder).exists() for folder in committed)
    make_table(5, None, "published", results)
    assert {path.suffix for path in (results / "tables").iterdir()} == {".csv", ".html", ".md", ".parquet", ".tex"}


def test_all_tables_are_made_of_what_there_is_and_the_rest_is_named(finished, monkeypatch, capsys):
    monkeypatch.setenv("INERTIA_RESULTS", str(finished))
    assert main(["tables", "--source", "published"]) == 0
    said = capsys.readouterr()
    assert "table05.csv" in said.out
    assert "left out methods: no such records" in said.err and "left out ruler13" in said.err


def test_scores_of_any_experiment_by_the_command(finished, monkeypatch, capsys):
    monkeypatch.setenv("INERTIA_RESULTS", str(finished))
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["scores", "table05"]) == 0
    said = capsys.readouterr().out
    assert "inertiakv (alpha=0.95)" in said and "scores-table05.md" in said


def test_the_profile_is_the_only_one_there_is_else_the_reference(tmp_path):
    assert the_profile(tmp_path, "table05") == "laptop"
    write_runs(tmp_path, {("vt", None): [1.0]}, profile="custom")
    assert the_profile(tmp_path, "table05") == "custom"
    write_runs(tmp_path, {("vt", None): [1.0]}, profile="smoke")
    assert the_profile(tmp_path, "table05") == "laptop"


def change_listing(results: Path, change) -> None:
    entries = listed(results / "runs")["table05", "laptop"]
    change(entries)
    list_entries(results / "runs", "table05", "laptop", entries)


def test_a_listing_that_swaps_two_policies_is_refused(tmp_path):
    write_runs(tmp_path, {("vt", 0.0): [0.0], ("vt", 0.8): [1.0]})

    def swap(cells):
        cells[0]["axes"], cells[1]["axes"] = cells[1]["axes"], cells[0]["axes"]

    change_listing(tmp_path, swap)
    with pytest.raises(ValueError, match=r"aggregation.alpha = 0\.8 but its records say 0"):
        load_source(tmp_path, "table05")


def test_a_listing_of_another_task_is_refused(tmp_path):
    write_runs(tmp_path, {("vt", 0.0): [0.0]})
    change_listing(tmp_path, lambda cells: cells[0].update(task="cwe"))
    with pytest.raises(ValueError, match="task = 'cwe' but its records say 'vt'"):
        load_source(tmp_path, "table05")


def test_what_was_swept_along_with_the_full_cache_does_not_matter(tmp_path):
    write_runs(tmp_path, SCORES)
    plain = make_table(5, results=tmp_path)[0]
    source = load_source(tmp_path, "table05")

    def sweep(cells):
        for cell in (cell for cell in cells if cell["axes"]["method"] == "full_cache"):
            cell["axes"] = {"method": "full_cache", "alpha": 0.3}

    change_listing(tmp_path, sweep)
    swept = make_table(5, results=tmp_path)[0]
    pd.testing.assert_frame_equal(swept.frame, plain.frame)
    assert swept.grid == plain.grid
    # Nor does it matter how often the same cell is listed.
    assert build_table(TABLE05, source._replace(cells=source.cells * 2)).grid == plain.grid


def test_examples_beyond_the_plan_do_not_count(tmp_path):
    write_runs(tmp_path, {("vt", 0.0): [1.0, 0.0], ("vt", 0.8): [1.0, 1.0, 0.0, 0.0]})
    change_listing(tmp_path, lambda cells: [cell.update(planned=2) for cell in cells])
    frame = make_table(5, results=tmp_path)[0].frame
    found = frame[(frame["task"] == "vt") & (frame["quantity"] == "score") & (frame["alpha"] == 0.8)].iloc[0]
    assert (found["value"], found["n"], found["status"]) == (100.0, 2, "ok")


def test_score_versions_are_not_mixed(tmp_path):
    write_runs(tmp_path, {("vt", 0.0): [0.0]})
    write_runs(tmp_path, {("vt", 0.0): [0.0], ("vt", 0.8): [1.0]}, score_version=2)
    change_listing(tmp_path, lambda cells: cells.append({**cells[0], "cell_id": cell_of_version_1(tmp_path)}))
    with pytest.raises(ValueError, match=r"score versions \[1, 2\]"):
        load_source(tmp_path, "table05")


def cell_of_version_1(results: Path) -> str:
    return next(cell.id for cell in read_cells(results / "runs") if cell.identity["score_version"] == 1)
