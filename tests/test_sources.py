"""Data files: one identity whatever the format, every flipped byte refused, text kept as text."""

from __future__ import annotations

import gzip
import json
import os
import zipfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inertia.benchmarks.sources import DataError, Manifest, Source, require

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


def here(path: Path | str, **settings) -> Source:
    return Source(kind="path", path=str(path), **settings)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet"])
def test_every_format_gives_the_same_rows_and_the_same_identity(tmp_path, suffix):
    oracle = here(write(tmp_path, "oracle.jsonl", ROWS)).load("x")
    rows = here(write(tmp_path, "data" + suffix, ROWS)).load("x")
    assert list(rows.rows) == ROWS
    assert rows.sha256 == oracle.sha256
    assert not rows.sanitised


scalars = (
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.integers(-(2**40), 2**40)
    | st.none()
    | st.booleans()
)


@given(st.lists(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), scalars), max_size=5))
def test_rows_survive_a_round_trip(tmp_path_factory, rows):
    file = tmp_path_factory.mktemp("rows") / "data.jsonl"
    file.write_bytes(jsonl(rows))
    assert list(here(file).load("x").rows) == rows


@pytest.mark.parametrize("name", ["data.jsonl", "data.jsonl.gz", "data.parquet"])
def test_every_flipped_byte_is_refused_by_the_pin(tmp_path, name):
    file = write(tmp_path, name, ROWS)
    good = file.read_bytes()
    source = here(file, pins={name: here(file).load("x").file_sha256})
    assert len(source.load("x").rows) == 2
    for position in range(0, len(good), max(1, len(good) // 200)):
        bad = bytearray(good)
        bad[position] ^= 1
        file.write_bytes(bytes(bad))
        with pytest.raises(DataError, match=r"changed: expected sha256 \w{64}, found \w{64}"):
            source.load("x")


def test_a_file_without_a_pin_is_refused_once_pins_are_given(tmp_path):
    file = write(tmp_path, "data.jsonl", ROWS)
    with pytest.raises(DataError, match="data.jsonl has no pin; pinned are: other.jsonl"):
        here(file, pins={"other.jsonl": "0" * 64}).load("x")


def test_a_changed_row_is_named_by_the_manifest(tmp_path):
    file = write(tmp_path, "data.jsonl", ROWS)
    manifest = Manifest.from_json(here(file).load("x").manifest.to_json())
    manifest.check(here(file).load("x").manifest)
    write(tmp_path, "data.jsonl", [ROWS[0], {**ROWS[1], "length": 1}])
    with pytest.raises(DataError, match="item '000001' has changed"):
        manifest.check(here(file).load("x").manifest)
    write(tmp_path, "data.jsonl", [*ROWS, ROWS[0]])
    manifest.check(here(file).load("x").manifest)
    write(tmp_path, "data.jsonl", ROWS[:1])
    with pytest.raises(DataError, match="item '000001' .* is missing"):
        manifest.check(here(file).load("x").manifest)


def test_identity_is_content_even_where_the_clock_is_turned_back(tmp_path):
    file = write(tmp_path, "data.jsonl", ROWS)
    before, stat = here(file).load("x"), file.stat()
    write(tmp_path, "data.jsonl", [ROWS[0], {**ROWS[1], "_id": "19_18"}])
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = here(file).load("x")
    assert file.stat().st_size == stat.st_size
    assert after.rows[1]["_id"] == "19_18"
    assert after.sha256 != before.sha256


def test_manifest_depends_on_order_and_refuses_twins():
    one, two = ("a", "1" * 64), ("b", "2" * 64)
    assert Manifest((one, two)).sha256 != Manifest((two, one)).sha256
    assert Manifest.from_json(Manifest((two, one)).to_json()) == Manifest((two, one))
    with pytest.raises(DataError, match="unique; repeated: a"):
        Manifest((one, one))
    with pytest.raises(DataError, match="unique; repeated: a"):
        Manifest.from_json('{"a": "1", "a": "2"}')


@pytest.mark.parametrize("escaped", [True, False])
def test_lone_surrogates_are_replaced_and_flagged_and_spare_the_other_rows(tmp_path, escaped):
    bad = {"context": "cut \ud83d here", "answers": ["\udc00"]}
    file = tmp_path / "data.jsonl"
    file.write_bytes("".join(json.dumps(row) + "\n" for row in [ROWS[0], bad, ROWS[1]]).encode())
    if not escaped:
        file.write_bytes(jsonl([ROWS[0], bad, ROWS[1]]))
        with pytest.raises(DataError, match="not UTF-8"):
            here(file).load("x")
        return
    rows = here(file).load("x")
    assert rows.sanitised == {1}
    assert rows.rows[1] == {"context": "cut \ufffd here", "answers": ["\ufffd"]}
    assert [rows.rows[0], rows.rows[2]] == ROWS
    json.dumps(rows.rows[1], ensure_ascii=False).encode()
    other = here(write(tmp_path, "other.jsonl.gz", [{"a": "x"}])).load("x")
    assert not other.sanitised


def test_two_different_surrogates_are_two_different_data(tmp_path):
    digests = set()
    for code in ("\\ud800", "\\ud801", "\\ufffd"):
        file = tmp_path / "data.jsonl"
        file.write_text(f'{{"context": "{code}"}}\n')
        rows = here(file).load("x")
        assert rows.rows[0]["context"] == "\ufffd"
        digests.add(rows.sha256)
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{"a": \n', "line 2 is not JSON"),
        (b'{"a": 1}\n[2]\n', "row 1 is list, not an object"),
        (b'{"a": "\xff"}\n', "not UTF-8"),
    ],
)
def test_malformed_rows_are_refused_by_place(tmp_path, content, message):
    file = tmp_path / "data.jsonl"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        here(file).load("x")


@pytest.mark.parametrize("name", ["data.jsonl.gz", "data.parquet"])
def test_damaged_files_say_so(tmp_path, name):
    file = write(tmp_path, name, ROWS)
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DataError, match="damaged"):
        here(file).load("x")


def test_a_folder_must_hold_exactly_one_file_of_the_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="exactly one of hotpotqa.*found: none"):
        here(tmp_path).load("hotpotqa")
    write(tmp_path, "hotpotqa.jsonl.gz", ROWS)
    write(tmp_path, "qasper.jsonl", ROWS[:1])
    assert len(here(tmp_path).load("hotpotqa").rows) == 2
    assert len(here(tmp_path).load("qasper").rows) == 1
    write(tmp_path, "hotpotqa.jsonl", ROWS)
    with pytest.raises(FileNotFoundError, match="found: hotpotqa.jsonl, hotpotqa.jsonl.gz"):
        here(tmp_path).load("hotpotqa")


def test_the_name_fills_the_path_and_reaches_into_archives(tmp_path):
    write(tmp_path, "my_qasper.jsonl", ROWS)
    assert len(here(tmp_path / "my_{name}.jsonl").load("qasper").rows) == 2
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("data/qasper.jsonl", jsonl(ROWS))
    source = here(tmp_path / "data.zip/data/{name}.jsonl")
    assert list(source.load("qasper").rows) == ROWS
    with pytest.raises(FileNotFoundError, match="no member 'data/trec.jsonl'"):
        source.load("trec")
    (tmp_path / "data.zip").write_bytes((tmp_path / "data.zip").read_bytes()[:-30])
    with pytest.raises(DataError, match="damaged"):
        source.load("qasper")


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
        here(tmp_path / "data.csv").load("x")
    with pytest.raises(FileNotFoundError, match="no data file"):
        here(tmp_path / "data.jsonl").load("x")
    with pytest.raises(DataError, match="field answers is missing; the row has: context"):
        require({"context": ""}, ("context", "answers"), "row 3")


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
    assert list(source.load("qasper").rows) == ROWS
    with pytest.raises(FileNotFoundError, match="cannot get trec.jsonl of owner/data .* use source path"):
        source.load("trec")
    moved = Source(kind="hub", repo="owner/data", revision=REVISION[::-1], path="{name}.jsonl")
    with pytest.raises(FileNotFoundError, match="cannot get qasper.jsonl"):
        moved.load("qasper")


def test_where_data_lie_is_no_part_of_their_identity(hub_cache, tmp_path):
    write(hub_cache, "qasper.jsonl", ROWS)
    hub = Source(kind="hub", repo="owner/data", revision=REVISION, path="qasper.jsonl").load("qasper")
    assert hub.sha256 == here(write(tmp_path, "elsewhere.parquet", ROWS)).load("qasper").sha256


def test_rows_and_texts_serve_as_their_own_source(tmp_path):
    rows = here(write(tmp_path, "data.jsonl", ROWS)).load("qasper")
    assert rows.load("qasper") is rows
    with pytest.raises(ValueError, match="read for 'qasper', asked for 'trec'"):
        rows.load("trec")
    (tmp_path / "a.txt").write_text("One. Two.")
    text = here(tmp_path / "a.txt").load_text("essays")
    assert text.load_text("essays") is text
    with pytest.raises(ValueError, match="read for 'essays', asked for 'x'"):
        text.load_text("x")


def test_texts_come_from_plain_files_and_from_rows(tmp_path):
    (tmp_path / "a.txt").write_text("One.\nTwo.")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"One.\nTwo."))
    (tmp_path / "c.json").write_text('{"text": "One.\\nTwo."}')
    write(tmp_path, "d.jsonl", [{"text": "One."}, {"text": "Two."}])
    texts = [here(tmp_path / name).load_text("x") for name in ("a.txt", "b.txt.gz", "c.json", "d.jsonl")]
    assert {text.text for text in texts} == {"One.\nTwo."}
    assert len({text.sha256 for text in texts}) == 1
    write(tmp_path, "e.jsonl", [{"text": "One."}, {"txt": "Two."}])
    with pytest.raises(DataError, match="row 1 has no string field 'text'"):
        here(tmp_path / "e.jsonl").load_text("x")


def test_the_real_files_load_in_full():
    if "INERTIA_TEST_DATA" not in os.environ:
        pytest.skip("INERTIA_TEST_DATA is not set")
    data = Path(os.environ["INERTIA_TEST_DATA"])
    expected = {
        "longbench/hotpotqa_first25": 25,
        "longbench/gov_report_first25": 25,
        "longbench/multi_news_first50": 50,
        "longbench/qmsum_first25": 25,
        "longbench/qasper_first13": 13,
        "longbench/2wikimqa_mini": 13,
        "longbench/musique_mini": 7,
        "longbench/passage_retrieval_en_mini": 15,
        "longbench/qasper_mini": 9,
        "longbench_v2/questions_all503": 503,
        "longbench_v2/subset20": 20,
    }
    counts = {name: len(here(data / f"{name}.jsonl.gz").load(name).rows) for name in expected}
    assert counts == expected
    essays = here(data / "ruler_inputs" / "PaulGrahamEssays.json.gz").load_text("essays")
    assert len(essays.text.split()) == pytest.approx(525_000, rel=0.01)
