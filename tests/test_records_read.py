"""Reading records back: frames, published files, the union of several stores, damage."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from records_data import edit, only_file, write_cell
from records_data import identity as grid_identity
from records_data import write as write_grid

from inertia.records import (
    CorruptRecord,
    OldRecords,
    Unsealed,
    canonical_hash,
    cell_id,
    export,
    open_cell,
    read_cells,
    read_samples,
    sample_schema,
    sample_table,
)
from inertia.records.attempts import TRANSPORT_COLUMNS
from inertia.records.read import survey
from inertia.records.schema import COLUMNS, SCHEMA_VERSION
from inertia.records.store import open_store

GOLDEN = Path(__file__).parent / "data"


def identity(value: float | None, **policy: Any) -> dict[str, Any]:
    budget = {"kind": "ratio" if value is not None else None, "value": value}
    return {"benchmark": {"name": "ruler", "task": "vt"}, "policy": {"budget": budget, **policy}, "seed": 0}


def test_one_schema_whatever_the_data(tmp_path: Path) -> None:
    paths = []
    for place, changes in enumerate([{}, {"budget_tokens": 5, "retained_tokens": 2}, {"retained_tokens": 1.5}]):
        name = write_cell(tmp_path / "runs", identity(place), **changes)
        paths.append(tmp_path / f"{place}.parquet")
        export(tmp_path / "runs", [name], paths[-1])
    expected = list(sample_schema())
    assert all(list(pq.read_schema(path))[: len(COLUMNS)] == expected for path in paths)
    assert len(pq.ParquetDataset(paths).read(columns=list(COLUMNS))) == 9


def test_schema_is_the_contract() -> None:
    expected = (
        "schema_version:int32 cell_id:string example_id:string task:string length:int64? index:int64 "
        "status:string error:string? attempt:int32 prediction:string? references:list<element: string not "
        "null> score:double? metrics:string prompt_tokens:int64? new_tokens:int64? tokens:list<element: "
        "int32 not null> stop:string? budget_tokens:int64? retained_tokens:double? peak_tokens:int64? "
        "cache_bytes:int64? evictions:int64? truncated:bool? prompt_sha256:string? group_id:string "
        "prefill_seconds:double? decode_seconds:double? batch_rows:int32? telemetry:string"
    )
    found = " ".join(f"{field.name}:{field.type}{'?' if field.nullable else ''}" for field in sample_schema())
    assert found == expected


def test_the_baseline_without_a_budget_survives_grouping(tmp_path: Path) -> None:
    write_cell(tmp_path, identity(None))
    write_cell(tmp_path, identity(0.9, aggregation={"alpha": 0.8}))
    frame = read_samples(tmp_path)
    assert set(frame["policy.budget.value"]) == {"none", 0.9}
    assert set(frame["policy.aggregation.alpha"]) == {"none", 0.8}
    assert frame.groupby(["policy.budget.value", "policy.aggregation.alpha"]).size().sum() == 6
    pivot = frame.pivot_table(index="policy.budget.value", columns="task", values="score", aggfunc="count")
    assert pivot["vt"].sum() == 6
    assert frame.groupby("budget_tokens", dropna=False).size().sum() == 6


@pytest.mark.parametrize("text", ["0012345", "18_19", "None", "nan", "", "true", "1e5", "\u2028a\nb"])
def test_text_stays_text_through_every_loader(tmp_path: Path, text: str) -> None:
    about = identity(0.9, scorer={"name": text})
    name = write_cell(tmp_path, about, prediction=text, references=[text], metrics={})
    export(tmp_path, [name], tmp_path / "out.parquet")
    for source in (tmp_path, tmp_path / "out.parquet"):
        frame = read_samples(source)
        assert frame["prediction"].tolist() == [text] * 3
        assert frame["references"].tolist() == [[text]] * 3
        assert frame["policy.scorer.name"].tolist() == [text] * 3


def test_dtypes_do_not_depend_on_the_data(tmp_path: Path) -> None:
    write_cell(tmp_path / "full", identity(1), length=4, budget_tokens=5, retained_tokens=2.5, truncated=True)
    write_cell(tmp_path / "empty", identity(1))
    (tmp_path / "none").mkdir()
    frames = [read_samples(tmp_path / name) for name in ("full", "empty", "none")]
    columns = [*COLUMNS, "cell_label", "cell_sealed", "cell_planned"]
    assert frames[0][columns].dtypes.equals(frames[1][columns].dtypes)
    assert frames[0][columns].dtypes.equals(frames[2][columns].dtypes)
    assert frames[0]["budget_tokens"].dtype == "Int64" and frames[0]["index"].dtype == "int64"
    assert frames[1]["budget_tokens"].isna().all() and len(frames[2]) == 0


def test_identity_lists_are_hashable_text_and_values_keep_their_type(tmp_path: Path) -> None:
    write_cell(tmp_path, identity(0.9, weights=[0.25, 0.75], flag=True, tokens=512.0))
    row = read_samples(tmp_path).iloc[0]
    assert row["policy.weights"] == "[0.25,0.75]"
    assert row["policy.flag"] is True and row["policy.tokens"] == 512 and type(row["policy.tokens"]) is int


def test_unsealed_cells_are_shown_skipped_or_refused_by_name(tmp_path: Path) -> None:
    sealed, unsealed = write_cell(tmp_path, identity(0.9)), write_cell(tmp_path, identity(0.5), n=20, done=17)
    frame = read_samples(tmp_path)
    assert frame.groupby("cell_id").size().to_dict() == {sealed: 3, unsealed: 17}
    assert frame.groupby("cell_id")["cell_planned"].first().to_dict() == {sealed: 3, unsealed: 20}
    assert set(read_samples(tmp_path, unsealed="skip")["cell_id"]) == {sealed}
    for refuse in (
        lambda: read_samples(tmp_path, unsealed="refuse"),
        lambda: export(tmp_path, [sealed, unsealed], tmp_path / "x.parquet"),
    ):
        with pytest.raises(Unsealed, match=rf"{unsealed} some \(incomplete 17/20\)"):
            refuse()
    assert not (tmp_path / "x.parquet").exists()


def test_failed_rows_have_no_score(tmp_path: Path) -> None:
    with open_cell(tmp_path, {"a": 1}, label="l", planned=["e"], config={}, provenance={}) as cell:
        cell.append_failure("e", 0, "out of memory", task="vt")
    row = read_samples(tmp_path).iloc[0]
    assert row["status"] == "failed" and pd.isna(row["score"]) and row["error"] == "out of memory"


def test_a_published_file_stands_alone(tmp_path: Path) -> None:
    root, path = tmp_path / "runs", tmp_path / "published" / "table.parquet"
    ids = [write_cell(root, identity(value)) for value in (0.9, 0.75, None)]
    extra = write_cell(root, identity(0.5))
    export(root, ids, path)
    first = path.read_bytes()
    export(root, reversed(ids), path)
    assert path.read_bytes() == first
    expected = read_samples(root)
    expected = expected[expected["cell_id"] != extra].reset_index(drop=True)
    before = {cell.id: cell for cell in read_cells(root)}
    shutil.rmtree(root)
    pd.testing.assert_frame_equal(read_samples(path), expected)
    for cell in read_cells(path):
        assert cell.manifest == before[cell.id].manifest and cell.summary == before[cell.id].summary
        assert cell.rows == before[cell.id].rows and cell_id(cell.identity) == cell.id


def test_unknown_cells_are_not_published(tmp_path: Path) -> None:
    write_cell(tmp_path, identity(0.9))
    with pytest.raises(KeyError, match="c00000000000"):
        export(tmp_path, ["c00000000000"], tmp_path / "x.parquet")


def test_an_edited_published_file_is_noticed(tmp_path: Path) -> None:
    name = write_cell(tmp_path, identity(0.9))
    path = tmp_path / "x.parquet"
    export(tmp_path, [name], path)
    table = pq.read_table(path)
    pq.write_table(table.slice(0, 2), path)
    with pytest.raises(CorruptRecord, match=f"cell {name}: 2 rows of cell {name}, sealed with 3"):
        read_samples(path)
    edited = table.schema.metadata[b"inertia.cells"].replace(b'"value": 0.9', b'"value": 0.8')
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"inertia.cells": edited}), path)
    with pytest.raises(CorruptRecord, match="identity of cell"):
        read_samples(path)
    path.write_bytes(b"PAR1 torn")
    with pytest.raises(CorruptRecord, match="no readable parquet"):
        read_samples(path)


def test_the_canonical_hash_sees_everything_but_timings(tmp_path: Path) -> None:
    write_cell(tmp_path / "a", identity(0.9), prefill_seconds=1.0, decode_seconds=2.0, batch_rows=1)
    write_cell(tmp_path / "b", identity(0.9), prefill_seconds=9.0, decode_seconds=None, batch_rows=3)
    expected = canonical_hash(tmp_path / "a")
    assert canonical_hash(tmp_path / "b") == expected
    assert TRANSPORT_COLUMNS == ("prefill_seconds", "decode_seconds", "batch_rows")
    for place, changes in enumerate(
        [{"score": 0.5}, {"prediction": "y"}, {"tokens": [1]}, {"telemetry": {"a": 1}}, {"stop": "eos"}]
    ):
        write_cell(tmp_path / str(place), identity(0.9), **changes)
        assert canonical_hash(tmp_path / str(place)) != expected
    write_cell(tmp_path / "open", identity(0.9), done=3)
    assert canonical_hash(tmp_path / "open") != expected


def test_reading_needs_records(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_samples(tmp_path / "nowhere")
    assert read_cells(tmp_path) == [] and len(read_samples(tmp_path)) == 0
    with pytest.raises(ValueError, match="'maybe'"):
        read_samples(tmp_path, unsealed="maybe")


def test_other_things_below_the_root_are_ignored(tmp_path: Path) -> None:
    write_cell(tmp_path, identity(0.9))
    (tmp_path / "notes").mkdir()
    (tmp_path / "some__c12").mkdir()
    (tmp_path / "file__c00000000001").write_text("")
    (tmp_path / "folder.db").mkdir()
    assert len(read_cells(tmp_path)) == 1


def test_an_identity_field_named_like_a_column_is_an_error(tmp_path: Path) -> None:
    write_cell(tmp_path, {"task": "vt"})
    with pytest.raises(ValueError, match="'task' has the name of a record column"):
        read_samples(tmp_path)


# One file per schema version, written by the code of its time and never edited: old results stay readable.
def test_golden_records_of_version_1_are_readable() -> None:
    path = GOLDEN / "records_v1.parquet"
    (cell,) = read_cells(path)
    assert cell.id == "c1d995b0df09" and cell.progress == "complete 2/2"
    assert cell.rows[0]["prediction"] == "0012345" and cell.rows[1]["tokens"] == [7, 8]
    assert cell.summary["score"]["mean"] == 0.75
    assert canonical_hash(path) == json.loads((GOLDEN / "records_v1" / "expected.json").read_text())["canonical_hash"]
    frame = read_samples(path, unsealed="refuse")
    assert frame["policy.protect"].tolist() == ["none", "none"]
    assert SCHEMA_VERSION == 1, "add a golden file for the new version"


def test_the_committed_published_records_keep_their_meaning() -> None:
    path = Path(__file__).parents[1] / "results" / "published" / "table05.laptop.parquet"
    assert canonical_hash(path) == "6d5242d57ad770dd6e2de117cab8aefe356dd41661b9f3abb3cab82e8472bdc0"
    assert len(read_samples(path, unsealed="refuse", columns=["score"])) == 504


@pytest.mark.parametrize("place", ["runs", "shards/1of2/runs", "dataset", "anywhere"])
def test_a_root_of_the_old_version_is_refused_with_the_way_out(tmp_path: Path, place: str) -> None:
    if place == "dataset":
        (tmp_path / "dataset" / "backbone=tiny" / "benchmark=ruler").mkdir(parents=True)
        shutil.copy(GOLDEN / "records_v1.parquet", tmp_path / "dataset" / "backbone=tiny" / "benchmark=ruler")
    else:
        shutil.copytree(GOLDEN / "records_v1", tmp_path / place)
    root = tmp_path / ("runs" if place.startswith("shards") else place)
    root.mkdir(exist_ok=True)
    for read in (read_cells, read_samples, survey, canonical_hash):
        with pytest.raises(OldRecords, match=r"0\.1\.0.* run python -m inertia\.records export") as caught:
            read(root)
        assert "\n" not in str(caught.value) and str(tmp_path / place) in str(caught.value)


def test_a_newer_published_file_is_refused(tmp_path: Path) -> None:
    name = write_cell(tmp_path, identity(0.9))
    export(tmp_path, [name], tmp_path / "x.parquet")
    table = pq.read_table(tmp_path / "x.parquet")
    newer = {**table.schema.metadata, b"inertia.schema_version": b"2"}
    pq.write_table(table.replace_schema_metadata(newer), tmp_path / "x.parquet")
    with pytest.raises(CorruptRecord, match="newer than 1, the newest this inertia reads: update inertia"):
        read_samples(tmp_path / "x.parquet")


# ------------------------------------------------------------------------------------------- the union of several files


def mixed(root: Path) -> None:
    """Sealed, failed and incomplete cells in two files, with and without budgets, lengths and equal identities."""
    write_grid(root, "vt", None, row={"prediction": "None", "references": [], "metrics": {"a": 1}})
    write_grid(root, "vt", 0.8, row={"truncated": True, "stop": "eos", "retained_tokens": 1.5}, name="other")
    write_grid(root, "vt", 1, row={"budget_tokens": 5, "evictions": 2**40}, weights=[0.25, 0.75], flag=True)
    write_grid(root, "cwe", 0.5, n=11, fail=3)
    write_grid(root, "fwe", 0.5, n=9, done=6, name="other")
    with open_cell(root, {"only": None}, label="l", planned=["b", "a"], config={}, provenance={}) as cell:
        cell.append_failure("b", 0, "no memory", task="t")


@pytest.mark.parametrize("unsealed", ["include", "skip"])
def test_the_fast_frame_is_the_checked_one(tmp_path: Path, unsealed: Any) -> None:
    runs = tmp_path / "runs"
    mixed(runs)
    checked = read_samples(runs, unsealed=unsealed)
    fast = read_samples(runs, unsealed=unsealed, check=False)
    pd.testing.assert_frame_equal(fast, checked)
    assert [type(value) for value in fast["tokens"]] == [type(value) for value in checked["tokens"]]
    some = read_samples(runs, unsealed=unsealed, check=False, columns=["score", "cell_id"])
    pd.testing.assert_frame_equal(some, checked[some.columns])
    assert list(some.columns[:3]) == ["cell_id", "score", "cell_label"]
    pd.testing.assert_frame_equal(read_samples(runs, unsealed=unsealed, columns=["score", "cell_id"]), some)
    sealed = read_samples(runs, unsealed="skip")
    ids = sorted(set(sealed["cell_id"]))
    (tmp_path / "set").mkdir()
    export(runs, ids[::2], tmp_path / "set" / "some.parquet")
    export(runs, ids[1::2], tmp_path / "set" / "others.parquet")
    for check in (True, False):
        pd.testing.assert_frame_equal(read_samples(tmp_path / "set", check=check), sealed)
    pd.testing.assert_frame_equal(
        read_samples(runs, cells=ids[:2]),
        sealed[sealed["cell_id"].isin(ids[:2])].reset_index(drop=True)[read_samples(runs, cells=ids[:2]).columns],
    )


def test_values_of_an_identity_keep_their_types(tmp_path: Path) -> None:
    values = [1, True, 1.5, "1", None]
    for value in values:
        write_cell(tmp_path, {"x": value}, n=1)
    found = {(type(value), value) for value in read_samples(tmp_path)["x"]}
    assert found == {(int, 1), (bool, True), (float, 1.5), (str, "1"), (str, "none")}
    assert sample_table(tmp_path)["x"].type == pa.string()


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


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    mixed(tmp_path)
    with pytest.raises(Unsealed, match="incomplete 6/9"):
        read_samples(tmp_path, check=False, unsealed="refuse")
    with pytest.raises(ValueError, match=r"\['scores'\]"):
        read_samples(tmp_path, check=False, columns=["scores"])


def test_duckdb_reads_the_table_and_the_file_by_label(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="needs duckdb: pip install -c constraints.txt duckdb")
    names = [write_grid(tmp_path / "runs", "vt", alpha) for alpha in (None, 0.8)]
    samples = sample_table(tmp_path / "runs", columns=["task", "score"])  # noqa: F841 - duckdb finds it by its name
    assert dict(duckdb.sql('SELECT "policy.aggregation.alpha", count(*) FROM samples GROUP BY 1').fetchall()) == {
        None: 3,
        0.8: 3,
    }
    export(tmp_path / "runs", names, tmp_path / "x.parquet")
    query = f"SELECT cell_label, task, avg(score) FROM read_parquet('{tmp_path}/*.parquet') GROUP BY ALL"
    assert {row[0]: row[2] for row in duckdb.sql(query).fetchall()} == pytest.approx(
        {f"tiny__{policy}__vt-1024": 1 / 6 for policy in ("full_cache", "inertiakv-0.8-1-0.9")}
    )


def test_two_files_hold_one_cell(tmp_path: Path) -> None:
    name = write_grid(tmp_path / "whole", n=6)
    with open_cell_of(tmp_path / "parts", "a") as cell:
        for index in (0, 2, 4):
            cell.append(row_at(index))
    with open_cell_of(tmp_path / "parts", "b") as cell:
        assert len(cell.missing) == 3
        for index in (1, 3, 5):
            cell.append(row_at(index))
        cell.seal()
    (cell,) = read_cells(tmp_path / "parts")
    assert [path.name for path in cell.sources] == ["a.db", "b.db"] and cell.progress == "complete 6/6"
    assert len(cell.manifest["sessions"]) == 2 and [row["index"] for row in cell.rows] == list(range(6))
    assert cell.id == name and canonical_hash(tmp_path / "parts") == canonical_hash(tmp_path / "whole")
    (tmp_path / "parts" / "a.db").rename(tmp_path / "a.db")
    (cell,) = read_cells(tmp_path / "parts")
    assert cell.progress == "incomplete 3/6", "a seal counts for the rows that are there"


def open_cell_of(root: Path, name: str) -> Any:
    settings = {"label": "tiny__inertiakv-0.8-1-0.9__vt-1024", "config": {}, "provenance": {}, "name": name}
    return open_cell(root, grid_identity(), planned=[f"vt/{index:04d}" for index in range(6)], **settings)


def row_at(index: int) -> dict[str, Any]:
    return {
        "example_id": f"vt/{index:04d}",
        "task": "vt",
        "index": index,
        "length": 1024,
        "prediction": f"answer {index}",
        "references": ["a", "b"],
        "score": (index % 2) / 2,
        "tokens": [1, index],
        "prompt_tokens": 900,
        "budget_tokens": 90,
        "retained_tokens": 90.0,
    }


@pytest.mark.parametrize("score", [1.0, 0.5])
def test_one_example_in_two_files_says_one_thing_or_is_a_conflict(tmp_path: Path, score: float) -> None:
    write_cell(tmp_path / "a", identity(0.9), decode_seconds=1.0)
    write_cell(tmp_path / "b", identity(0.9), score=score, decode_seconds=2.0)
    write_cell(tmp_path / "a", identity(0.5))
    shutil.copy(tmp_path / "b" / "local.db", tmp_path / "a" / "b.db")
    cells, damages = survey(tmp_path / "a")
    if score == 1.0:
        assert not damages and len(read_cells(tmp_path / "a")) == 2
        return
    (damage,) = damages
    assert damage.cells == (cell_id(identity(0.9)),) and "a/b.db" in damage.reason and "a/local.db" in damage.reason
    assert [cell.id for cell in cells] == [cell_id(identity(0.5))], "the other cell goes on"
    with pytest.raises(CorruptRecord, match="recorded twice"):
        read_cells(tmp_path / "a")


def test_two_identities_with_one_id_are_told_apart(tmp_path: Path) -> None:
    name = write_cell(tmp_path, identity(0.9))
    shutil.copy(tmp_path / "local.db", tmp_path / "twin.db")
    edit(tmp_path / "twin.db", "UPDATE cell SET identity = '{}'", table="cell")
    cells, damages = survey(tmp_path)
    assert cells == [] and damages[0].cells == (name,) and "different identities" in damages[0].reason


DAMAGED_FILES: dict[str, Callable[[Path], Any]] = {
    "no database": lambda path: path.write_bytes(b"this is no database at all, whatever its name says" * 100),
    "another program's": lambda path: edit_pragma(path, "application_id", 7),
    "newer": lambda path: edit_pragma(path, "user_version", 99),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:5000]),
    "overwritten": lambda path: path.write_bytes(path.read_bytes()[:100] + b"\xff" * 4000),
}


def edit_pragma(path: Path, name: str, value: int) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA {name} = {value}")
    connection.close()


@pytest.mark.parametrize("damage", DAMAGED_FILES)
def test_a_damaged_file_costs_its_own_cells_alone(tmp_path: Path, damage: str) -> None:
    here, there = write_cell(tmp_path, identity(0.9)), write_cell(tmp_path, identity(0.5), name="other")
    DAMAGED_FILES[damage](tmp_path / "other.db")
    cells, damages = survey(tmp_path)
    assert [cell.id for cell in cells] == [here] and all("other.db" in each.reason for each in damages) and damages
    assert [cell.id for cell in read_cells(tmp_path, [here])] == [here]
    assert len(read_samples(tmp_path, cells=[here])) == 3
    for read in (read_cells, read_samples):
        with pytest.raises(CorruptRecord, match=r"other\.db"):
            read(tmp_path)
    with pytest.raises(CorruptRecord, match=r"other\.db"):
        read_cells(tmp_path, [there])


def test_a_locked_file_costs_its_own_cells_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inertia.records.store._READ_SECONDS", 0)
    here, _ = write_cell(tmp_path, identity(0.9)), write_cell(tmp_path, identity(0.5), name="other")
    holder = sqlite3.connect(tmp_path / "other.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    cells, (damage,) = survey(tmp_path)
    assert [cell.id for cell in cells] == [here] and "other.db" in damage.reason and "locked" in damage.reason
    holder.close()
    assert len(survey(tmp_path)[0]) == 2


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE sample SET row = replace(row, 'ok', 'no')", "not what was written"),
        ("UPDATE sample SET score = 0.5 WHERE example = 'vt/0001'", "vt/0001"),
        ("UPDATE session SET provenance = '{}' || provenance", "not what was written"),
        ("DELETE FROM session", "session is missing"),
    ],
)
def test_a_changed_row_hurts_its_cell_alone(tmp_path: Path, statement: str, message: str) -> None:
    name = write_cell(tmp_path, identity(0.9))
    other = write_cell(tmp_path, identity(0.5), name="other")
    edit(tmp_path / "local.db", statement)
    with pytest.raises(CorruptRecord, match=message) as caught:
        read_cells(tmp_path)
    assert name in str(caught.value) and "local.db" in str(caught.value)
    assert [cell.id for cell in read_cells(tmp_path, [other])] == [other]


def test_a_lost_row_is_no_sealed_cell(tmp_path: Path) -> None:
    write_cell(tmp_path, identity(0.9))
    edit(only_file(tmp_path), "DELETE FROM sample WHERE example = 'vt/0001'")
    (cell,) = read_cells(tmp_path)
    assert cell.progress == "incomplete 2/3"


def test_a_row_that_is_no_row_is_noticed_without_hashes_too(tmp_path: Path) -> None:
    write_cell(tmp_path, identity(0.9))
    other = write_cell(tmp_path, identity(0.5))
    for wrong in ("{", '{"schema_version": 99, "cell_id": "x", "example_id": "e", "index": 1}', "[1]"):
        shutil.copy(tmp_path / "local.db", tmp_path / "copy")
        edit(tmp_path / "local.db", "UPDATE sample SET row = ? WHERE cell = ?", wrong, other)
        with pytest.raises(CorruptRecord, match=other):
            read_samples(tmp_path, check=False, columns=["score"])
        (tmp_path / "copy").replace(tmp_path / "local.db")
    assert len(read_samples(tmp_path, check=False)) == 6


def test_a_store_without_rows_is_empty(tmp_path: Path) -> None:
    with open_store(tmp_path, "local"):
        pass
    assert read_cells(tmp_path) == [] and len(read_samples(tmp_path)) == 0
