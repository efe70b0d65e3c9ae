from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from reports_data import needle_scores, write_runs

from inertia.records import CorruptRecord, Unsealed
from inertia.records.store import files, reading, row_hash, rows
from inertia.reports import make_figure, make_table
from inertia.reports.__main__ import main
from inertia.reports.publish import publish

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
    assert [path.name for path in paths] == ["table05.csv", "table05.md", "table05.parquet"]
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
    assert [path.name for path in paths] == ["table05.smoke.csv", "table05.smoke.md", "table05.smoke.parquet"]


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
        (["table", "6"], "no table 6; allowed: 5"),
        (["figure", "5"], "no figure 5; allowed: 9"),
        (["needs", "figure", "10"], "no figure 10; allowed: 9"),
        (
            ["table", "5", "--profile", "nowhere"],
            "run `python -m inertia -m experiment=table05 profile=nowhere`",
        ),
        (["table", "5", "--source", "published"], "table05.laptop.json missing"),
        (["publish", "table05"], "not listed in"),
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
    assert "is no experiment index (KeyError('cells'))" in capsys.readouterr().err


def test_the_command_writes_prints_and_survives_a_poor_terminal(finished, tmp_path):
    import os

    env = os.environ | {"INERTIA_RESULTS": str(finished), "PYTHONIOENCODING": "ascii", "COLUMNS": "90"}
    done = subprocess.run(
        [sys.executable, "-m", "inertia.reports", "table", "5"],
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
    assert capsys.readouterr().out == "table05\n"
