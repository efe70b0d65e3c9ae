from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from inertia.records.settle import TRANSPORT_COLUMNS

from inertia.records import (
    CorruptRecord,
    NewerSchema,
    Unsealed,
    canonical_hash,
    cell_id,
    export,
    open_cell,
    read_cell,
    read_cells,
    read_samples,
    sample_schema,
)
from inertia.records.schema import COLUMNS, SCHEMA_VERSION

GOLDEN = Path(__file__).parent / "data"


def identity(value: float | None, **policy: Any) -> dict[str, Any]:
    budget = {"kind": "ratio" if value is not None else None, "value": value}
    return {"benchmark": {"name": "ruler", "task": "vt"}, "policy": {"budget": budget, **policy}, "seed": 0}


def write(root: Path, about: dict[str, Any], n: int = 3, *, done: int | None = None, **changes: Any) -> str:
    planned = [f"e{index}" for index in range(n)]
    with open_cell(root, about, label="some", planned=planned, config={}, provenance={}) as cell:
        for index, name in enumerate(planned[:done]):
            row = {
                "example_id": name,
                "task": "vt",
                "index": index,
                "prediction": "x",
                "score": 1.0,
                **changes,
            }
            cell.append(row)
        if done is None:
            cell.seal()
    return cell.id


def test_one_schema_whatever_the_data(tmp_path: Path) -> None:
    for place, changes in enumerate(
        [{}, {"budget_tokens": 5, "retained_tokens": 2}, {"retained_tokens": 1.5}]
    ):
        write(tmp_path, identity(place), **changes)
    paths = sorted(tmp_path.glob("*/samples.parquet"))
    assert {pq.read_schema(path) for path in paths} == {sample_schema()}
    assert len(pq.ParquetDataset(paths).read()) == 9


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
    write(tmp_path, identity(None))
    write(tmp_path, identity(0.9, aggregation={"alpha": 0.8}))
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
    name = write(tmp_path, about, prediction=text, references=[text], metrics={})
    export(tmp_path, [name], tmp_path / "out.parquet")
    for source in (tmp_path, tmp_path / "out.parquet"):
        frame = read_samples(source)
        assert frame["prediction"].tolist() == [text] * 3
        assert frame["references"].tolist() == [[text]] * 3
        assert frame["policy.scorer.name"].tolist() == [text] * 3


def test_dtypes_do_not_depend_on_the_data(tmp_path: Path) -> None:
    write(tmp_path / "full", identity(1), length=4, budget_tokens=5, retained_tokens=2.5, truncated=True)
    write(tmp_path / "empty", identity(1))
    (tmp_path / "none").mkdir()
    frames = [read_samples(tmp_path / name) for name in ("full", "empty", "none")]
    columns = [*COLUMNS, "cell_label", "cell_sealed", "cell_planned"]
    assert frames[0][columns].dtypes.equals(frames[1][columns].dtypes)
    assert frames[0][columns].dtypes.equals(frames[2][columns].dtypes)
    assert frames[0]["budget_tokens"].dtype == "Int64" and frames[0]["index"].dtype == "int64"
    assert frames[1]["budget_tokens"].isna().all() and len(frames[2]) == 0


def test_identity_lists_are_hashable_text_and_values_keep_their_type(tmp_path: Path) -> None:
    write(tmp_path, identity(0.9, weights=[0.25, 0.75], flag=True, tokens=512.0))
    row = read_samples(tmp_path).iloc[0]
    assert row["policy.weights"] == "[0.25,0.75]"
    assert row["policy.flag"] is True and row["policy.tokens"] == 512 and type(row["policy.tokens"]) is int


def test_unsealed_cells_are_shown_skipped_or_refused_by_name(tmp_path: Path) -> None:
    sealed, unsealed = write(tmp_path, identity(0.9)), write(tmp_path, identity(0.5), n=20, done=17)
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
    ids = [write(root, identity(value)) for value in (0.9, 0.75, None)]
    extra = write(root, identity(0.5))
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
    write(tmp_path, identity(0.9))
    with pytest.raises(KeyError, match="c00000000000"):
        export(tmp_path, ["c00000000000"], tmp_path / "x.parquet")


def test_an_edited_published_file_is_noticed(tmp_path: Path) -> None:
    name = write(tmp_path, identity(0.9))
    path = tmp_path / "x.parquet"
    export(tmp_path, [name], path)
    table = pq.read_table(path)
    pq.write_table(table.slice(0, 2), path)
    with pytest.raises(CorruptRecord, match=f"cell {name}: the rows changed"):
        read_samples(path)
    edited = table.schema.metadata[b"inertia.cells"].replace(b'"value": 0.9', b'"value": 0.8')
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"inertia.cells": edited}), path)
    with pytest.raises(CorruptRecord, match="identity of cell"):
        read_samples(path)
    path.write_bytes(b"PAR1 torn")
    with pytest.raises(CorruptRecord, match="no readable parquet"):
        read_samples(path)


def test_the_canonical_hash_sees_everything_but_timings(tmp_path: Path) -> None:
    write(tmp_path / "a", identity(0.9), prefill_seconds=1.0, decode_seconds=2.0, batch_rows=1)
    write(tmp_path / "b", identity(0.9), prefill_seconds=9.0, decode_seconds=None, batch_rows=3)
    expected = canonical_hash(tmp_path / "a")
    assert canonical_hash(tmp_path / "b") == expected
    assert TRANSPORT_COLUMNS == ("prefill_seconds", "decode_seconds", "batch_rows")
    for place, changes in enumerate(
        [{"score": 0.5}, {"prediction": "y"}, {"tokens": [1]}, {"telemetry": {"a": 1}}, {"stop": "eos"}]
    ):
        write(tmp_path / str(place), identity(0.9), **changes)
        assert canonical_hash(tmp_path / str(place)) != expected
    write(tmp_path / "open", identity(0.9), done=3)
    assert canonical_hash(tmp_path / "open") != expected


def test_reading_needs_records(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_samples(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"manifest\.json is missing"):
        read_cell(tmp_path)
    with pytest.raises(ValueError, match="'maybe'"):
        read_samples(tmp_path, unsealed="maybe")


def test_other_things_below_the_root_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, identity(0.9))
    (tmp_path / "notes").mkdir()
    (tmp_path / "some__c12").mkdir()
    (tmp_path / "killed__c00000000000").mkdir()
    (tmp_path / "file__c00000000001").write_text("")
    assert len(read_cells(tmp_path)) == 1


def test_an_identity_field_named_like_a_column_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, {"task": "vt"})
    with pytest.raises(ValueError, match="'task' has the name of a record column"):
        read_samples(tmp_path)


# One folder per schema version, written by the code of its time and never edited: old results stay readable.
def test_golden_records_of_version_1_are_readable() -> None:
    root = GOLDEN / "records_v1"
    (cell,) = read_cells(root)
    assert cell.id == "c1d995b0df09" and cell.progress == "complete 2/2"
    assert cell.rows[0]["prediction"] == "0012345" and cell.rows[1]["tokens"] == [7, 8]
    assert cell.summary["score"]["mean"] == 0.75
    assert canonical_hash(root) == json.loads((root / "expected.json").read_text())["canonical_hash"]
    frame = read_samples(root, unsealed="refuse")
    assert frame["policy.protect"].tolist() == ["none", "none"]
    assert SCHEMA_VERSION == 1, "add a golden folder for the new version"


def test_a_newer_published_file_is_refused(tmp_path: Path) -> None:
    name = write(tmp_path, identity(0.9))
    export(tmp_path, [name], tmp_path / "x.parquet")
    table = pq.read_table(tmp_path / "x.parquet")
    newer = {**table.schema.metadata, b"inertia.schema_version": b"2"}
    pq.write_table(table.replace_schema_metadata(newer), tmp_path / "x.parquet")
    with pytest.raises(NewerSchema, match="update inertia"):
        read_samples(tmp_path / "x.parquet")
