"""Data files: one identity whatever the format, every flipped byte refused, text kept as text."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zipfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from outside_data import here, real, rows_file

from inertia.benchmarks.rows import DataError, Schema
from inertia.benchmarks.sources import Source

REVISION = "0123456789abcdef0123456789abcdef01234567"
ROWS = [
    {
        "_id": "0012345",
        "context": "line\u2028separator and \x85 next line",
        "answers": ["None", ""],
        "length": 3,
    },
    {"_id": "18_19", "context": "naïve café 😀", "answers": ["yes"], "length": 0},
]


SCHEMA = Schema(
    {"_id": str, "context": str, "answers": [str], "length": int},
    optional=frozenset({"_id", "length"}),
)
LOOSE = Schema(SCHEMA.fields, optional=frozenset(SCHEMA.fields))


def jsonl(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(
        "utf-8", "surrogatepass"
    )


def write(folder: Path, name: str, rows: list[dict]) -> Path:
    file = folder / name
    if name.endswith(".parquet"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
        return file
    data = jsonl(rows) if ".jsonl" in name else json.dumps(rows).encode()
    file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return file


def taken(rows) -> list[dict]:
    return [{name: row[name] for name in SCHEMA.fields} for row in rows.data]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet"])
def test_every_format_gives_the_same_rows_and_the_same_identity(tmp_path, suffix):
    oracle = here(write(tmp_path, "oracle.jsonl", ROWS)).load("x", SCHEMA)
    rows = here(write(tmp_path, "data" + suffix, ROWS)).load("x", SCHEMA)
    assert taken(rows) == ROWS
    assert rows.sha256 == oracle.sha256
    assert not any(rows.data["sanitised"])


texts = st.text(st.characters(exclude_categories=["Cs"]))
rows_like = st.fixed_dictionaries(
    {"_id": texts | st.none(), "context": texts, "answers": st.lists(texts), "length": st.integers(-(2**40), 2**40)}
)


@given(st.lists(rows_like, min_size=1, max_size=5))
def test_rows_survive_a_round_trip(tmp_path_factory, rows):
    file = tmp_path_factory.mktemp("rows") / "data.jsonl"
    file.write_bytes(jsonl(rows))
    assert taken(here(file).load("x", SCHEMA)) == rows


@pytest.mark.parametrize("text", ["2020-01-01", "2020-01-01T00:00:00Z", "12:30:45", "0012", "1e5", "None", "true", ""])
@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_text_stays_text_whatever_it_looks_like(tmp_path, text, suffix):
    row = {"_id": text, "context": text, "answers": [text], "length": 1}
    assert taken(here(write(tmp_path, "data" + suffix, [row, row])).load("x", SCHEMA)) == [row, row]


@pytest.mark.parametrize(
    ("field", "value"),
    [("context", 12), ("context", 1.5), ("length", "3"), ("length", 3.5), ("length", True), ("answers", "ab")],
)
def test_nothing_is_converted(tmp_path, field, value):
    rows = here(write(tmp_path, "data.jsonl", [ROWS[0], {**ROWS[1], field: value}])).load("x", SCHEMA)
    assert taken(rows) == ROWS[:1]
    (said,) = rows.refused
    assert said.startswith(f"data.jsonl, line 2, field {field}: ") and repr(value) in said


def test_what_is_refused_is_named_by_file_line_and_field_and_the_rows_after_it_serve(tmp_path, caplog):
    bad = [
        "{",
        "[1]",
        '{"context": "a", "context": "b", "answers": []}',
        {"answers": ["a"]},
        {"context": None, "answers": ["a"]},
        {"context": "a", "answers": ["a", 1]},
        '{"context": "a", "answers": ["a"], "length": NaN}',
    ]
    rows = rows_file(tmp_path, [ROWS[0], *bad, "", ROWS[1]]).load("x", SCHEMA)
    assert taken(rows) == ROWS and list(rows.data["row"]) == [0, 8]
    assert [said.split(":")[0] for said in rows.refused] == [
        "rows.jsonl, line 2",
        "rows.jsonl, line 3",
        "rows.jsonl, line 4",
        "rows.jsonl, line 5, field context",
        "rows.jsonl, line 6, field context",
        "rows.jsonl, line 7, field answers[1]",
        "rows.jsonl, line 8, field length",
    ]
    assert "rows.jsonl: 7 of 9 rows refused: rows.jsonl, line 2: not JSON" in caplog.text
    whole = rows_file(tmp_path, [ROWS[0], ROWS[1]]).load("x", SCHEMA)
    assert not whole.refused and whole.sha256 != rows.sha256


def test_rows_of_a_json_list_are_named_by_line_and_number(tmp_path):
    (tmp_path / "data.json").write_text('[{"context": "a", "answers": []},\n {"context": 1, "answers": []}, {}]')
    said = here(tmp_path / "data.json").load("x", SCHEMA).refused
    assert said[0].startswith("data.json, line 2, row 1, field context: str wanted, got int 1")
    assert said[1].startswith("data.json, line 2, row 2, field context: missing")


@pytest.mark.parametrize("content", ["[", "[{}", "[{},]", "[{}] x", "{} {}", "", "[{} {}]", '[{"a": 1, "a": 2}]'])
def test_a_broken_json_file_is_refused_as_a_whole(tmp_path, content):
    (tmp_path / "data.json").write_text(content)
    with pytest.raises(DataError, match="data.json.* is not JSON"):
        here(tmp_path / "data.json").load("x", LOOSE)


@pytest.mark.parametrize("content", ["", "\n\n", '{"context": 1, "answers": []}\n', "x\n"])
def test_a_file_without_a_row_that_serves_is_refused(tmp_path, content):
    (tmp_path / "data.jsonl").write_text(content)
    with pytest.raises(DataError, match="data.jsonl has no row that serves as 'x'"):
        here(tmp_path / "data.jsonl").load("x", SCHEMA)


def test_odd_file_names_and_byte_order_marks_serve(tmp_path):
    file = tmp_path / "a[1] *{x}.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + jsonl(ROWS).replace(b"\n", b"\r\n"))
    assert taken(here(file).load("x", SCHEMA)) == ROWS


@pytest.mark.parametrize("name", ["data.jsonl", "data.jsonl.gz", "data.parquet"])
def test_every_flipped_byte_is_refused_by_the_pin(tmp_path, name):
    file = write(tmp_path, name, ROWS)
    good = file.read_bytes()
    source = here(file, pins={name: hashlib.sha256(good).hexdigest()})
    assert len(source.load("x", SCHEMA).data) == 2
    for position in range(0, len(good), max(1, len(good) // 200)):
        bad = bytearray(good)
        bad[position] ^= 1
        file.write_bytes(bytes(bad))
        with pytest.raises(DataError, match=r"changed: expected sha256 \w{64}, found \w{64}"):
            source.load("x", SCHEMA)


def test_a_file_without_a_pin_is_refused_once_pins_are_given(tmp_path):
    file = write(tmp_path, "data.jsonl", ROWS)
    with pytest.raises(DataError, match="data.jsonl has no pin; pinned are: other.jsonl"):
        here(file, pins={"other.jsonl": "0" * 64}).load("x", SCHEMA)


def test_every_row_and_their_order_are_part_of_the_identity(tmp_path):
    one, two = ROWS
    variants = [ROWS, [two, one], [one], [one, two, one], [one, {**two, "length": 1}], [{**one, "further": 1}]]
    assert len({rows_file(tmp_path, rows).load("x", SCHEMA).sha256 for rows in variants}) == 6


def test_identity_is_content_even_where_the_clock_is_turned_back(tmp_path):
    file = write(tmp_path, "data.jsonl", ROWS)
    before, stat = here(file).load("x", SCHEMA), file.stat()
    write(tmp_path, "data.jsonl", [ROWS[0], {**ROWS[1], "_id": "19_18"}])
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = here(file).load("x", SCHEMA)
    assert file.stat().st_size == stat.st_size
    assert after.data[1]["_id"] == "19_18"
    assert after.sha256 != before.sha256


def test_lone_surrogates_are_replaced_and_flagged_and_spare_the_other_rows(tmp_path):
    bad = {"_id": None, "context": "cut \ud83d here", "answers": ["\udc00"], "length": None}
    rows = rows_file(tmp_path, [ROWS[0], bad, ROWS[1]]).load("x", SCHEMA)
    assert list(rows.data["sanitised"]) == [False, True, False]
    assert taken(rows) == [ROWS[0], {**bad, "context": "cut \ufffd here", "answers": ["\ufffd"]}, ROWS[1]]


def test_bytes_that_are_no_text_cost_their_own_row(tmp_path):
    (tmp_path / "data.jsonl").write_bytes(jsonl([ROWS[0], {**ROWS[1], "context": "\ud83d"}, ROWS[1]]))
    rows = here(tmp_path / "data.jsonl").load("x", SCHEMA)
    assert taken(rows) == ROWS and rows.refused[0].startswith("data.jsonl, line 2: not UTF-8")


def test_two_different_surrogates_are_two_different_data(tmp_path):
    digests = set()
    for code in ("\\ud800", "\\ud801", "\\ufffd"):
        rows = rows_file(tmp_path, [f'{{"context": "{code}"}}']).load("x", LOOSE)
        assert rows.data[0]["context"] == "\ufffd"
        digests.add(rows.sha256)
    assert len(digests) == 3


@pytest.mark.parametrize("name", ["data.jsonl.gz", "data.parquet"])
def test_damaged_files_say_so(tmp_path, name):
    file = write(tmp_path, name, ROWS)
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DataError, match="damaged"):
        here(file).load("x", SCHEMA)


def test_a_folder_must_hold_exactly_one_file_of_the_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="exactly one of hotpotqa.*found: none"):
        here(tmp_path).load("hotpotqa", SCHEMA)
    write(tmp_path, "hotpotqa.jsonl.gz", ROWS)
    write(tmp_path, "qasper.jsonl", ROWS[:1])
    assert len(here(tmp_path).load("hotpotqa", SCHEMA).data) == 2
    assert len(here(tmp_path).load("qasper", SCHEMA).data) == 1
    write(tmp_path, "hotpotqa.jsonl", ROWS)
    with pytest.raises(FileNotFoundError, match="found: hotpotqa.jsonl, hotpotqa.jsonl.gz"):
        here(tmp_path).load("hotpotqa", SCHEMA)


def test_the_name_fills_the_path_and_reaches_into_archives(tmp_path):
    write(tmp_path, "my_qasper.jsonl", ROWS)
    assert len(here(tmp_path / "my_{name}.jsonl").load("qasper", SCHEMA).data) == 2
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("data/qasper.jsonl", jsonl(ROWS))
    source = here(tmp_path / "data.zip/data/{name}.jsonl")
    assert taken(source.load("qasper", SCHEMA)) == ROWS
    with pytest.raises(FileNotFoundError, match="no member 'data/trec.jsonl'"):
        source.load("trec", SCHEMA)
    (tmp_path / "data.zip").write_bytes((tmp_path / "data.zip").read_bytes()[:-30])
    with pytest.raises(DataError, match="damaged"):
        source.load("qasper", SCHEMA)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "http", "path": "x"}, "allowed: hub, path"),
        ({"kind": "hub", "path": "x"}, "needs repo"),
        ({"kind": "hub", "path": "x", "repo": "a/b"}, "needs revision, got None"),
        ({"kind": "hub", "path": "x", "repo": "a/b", "revision": "main"}, "needs revision, got 'main'"),
        ({"kind": "path", "path": "x", "repo": "a/b"}, "takes no repo"),
    ],
)
def test_sources_are_checked_when_they_are_made(settings, message):
    with pytest.raises(ValueError, match=message):
        Source(**settings)


def test_unknown_endings_and_missing_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="allowed endings: .jsonl"):
        here(tmp_path / "data.csv").load("x", SCHEMA)
    with pytest.raises(FileNotFoundError, match="no data file"):
        here(tmp_path / "data.jsonl").load("x", SCHEMA)


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """A Hub cache with one file at `REVISION`, and no network."""
    import huggingface_hub.constants

    snapshot = tmp_path / "datasets--owner--data" / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return snapshot


def test_the_hub_works_offline_from_its_cache(hub_cache):
    write(hub_cache, "qasper.jsonl", ROWS)
    source = Source(kind="hub", repo="owner/data", revision=REVISION, path="{name}.jsonl")
    assert taken(source.load("qasper", SCHEMA)) == ROWS
    with pytest.raises(FileNotFoundError, match="cannot get trec.jsonl of owner/data .* use source path"):
        source.load("trec", SCHEMA)
    moved = Source(kind="hub", repo="owner/data", revision=REVISION[::-1], path="{name}.jsonl")
    with pytest.raises(FileNotFoundError, match="cannot get qasper.jsonl"):
        moved.load("qasper", SCHEMA)


def test_where_data_lie_is_no_part_of_their_identity(hub_cache, tmp_path):
    write(hub_cache, "qasper.jsonl", ROWS)
    hub = Source(kind="hub", repo="owner/data", revision=REVISION, path="qasper.jsonl").load("qasper", SCHEMA)
    assert hub.sha256 == here(write(tmp_path, "elsewhere.parquet", ROWS)).load("qasper", SCHEMA).sha256


def test_texts_come_from_plain_files_and_from_rows(tmp_path):
    (tmp_path / "a.txt").write_text("One.\nTwo.")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"One.\nTwo."))
    (tmp_path / "c.json").write_text('{"text": "One.\\nTwo."}')
    write(tmp_path, "d.jsonl", [{"text": "One."}, {"text": "Two."}])
    texts = [here(tmp_path / name).load_text("x") for name in ("a.txt", "b.txt.gz", "c.json", "d.jsonl")]
    assert {text.text for text in texts} == {"One.\nTwo."}
    assert len({text.sha256 for text in texts}) == 1
    write(tmp_path, "e.jsonl", [{"text": "One."}, {"txt": "Two."}])
    with pytest.raises(DataError, match="e.jsonl, line 2, field text: missing, there are: txt"):
        here(tmp_path / "e.jsonl").load_text("x")


def test_the_real_essays_load_in_full():
    essays = here(real("ruler_inputs", "PaulGrahamEssays.json.gz")).load_text("essays")
    assert len(essays.text.split()) == pytest.approx(525_000, rel=0.01)


def test_a_mark_of_byte_order_is_no_part_of_a_text(tmp_path):
    (tmp_path / "text.txt").write_bytes(b"\xef\xbb\xbfOne. Two.")
    assert here(tmp_path / "text.txt").load_text("x").text == "One. Two."


def test_a_parquet_file_whose_texts_are_no_utf8_is_damaged(tmp_path):
    buffers = [None, pyarrow.py_buffer(b"\0\0\0\0\2\0\0\0"), pyarrow.py_buffer(b"\xff\xfe")]
    texts = pyarrow.Array.from_buffers(pyarrow.string(), 1, buffers)
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "text.parquet")
    with pytest.raises(DataError, match=r"text\.parquet is damaged .*utf-8"):
        here(tmp_path / "text.parquet").load_text("x")
