"""Shards: whoever decodes a cell's examples, in whatever parts and order, the records are those of one run."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st

from inertia.experiments import decode
from inertia.experiments import run as harness
from inertia.experiments.config import run_config
from inertia.experiments.hydra_launcher import scores_of
from inertia.experiments.shards import Shard, parse
from inertia.experiments.terminal import report
from inertia.paths import config_dir
from inertia.records import canonical_hash, read_cells, read_samples
from inertia.records.lock import claimed
from inertia.records.store import LOCKS, files, reading, rows

ROOT = Path(__file__).resolve().parents[1]
SMALL = (
    "backbone=tiny-random",
    "benchmark.tasks=[niah_single_1]",
    "benchmark.lengths=[512]",
    "benchmark.examples=4",
    "logger=none",
    "progress=false",
)
METHODS = ("full_cache", "inertiakv")


@pytest.fixture(scope="module", autouse=True)
def quick():
    """What a batch answers is computed once; provenance, which asks git and the machine, is tested elsewhere."""
    real, memory = decode.answers, {}

    def remembered(cells, example, *rest):
        key = (*(cell.id for cell in cells), example.id)
        if key not in memory:
            memory[key] = real(cells, example, *rest)
        return memory[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "answers", remembered)
        patch.setattr(harness, "collect", lambda: {"pid": os.getpid()})
        yield


@cache
def composed(method):
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return run_config(compose("config", overrides=[*SMALL, f"method={method}"]))


def jobs(shard=None, examples=4):
    base = [composed(name) for name in METHODS]
    return [replace(each, shard=parse(shard), benchmark=replace(each.benchmark, examples=examples)) for each in base]


def run(shard=None, examples=4):
    return harness.run(jobs(shard, examples))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, quick):
    root = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INERTIA_RESULTS", str(root))
        run()
    return canonical_hash(root / "runs")


@pytest.fixture
def decoded(monkeypatch):
    """Every (cell, example) that was decoded, in order."""
    seen, good = [], decode.answers

    def counted(cells, example, *rest):
        seen.extend((cell.id, example.id) for cell in cells)
        return good(cells, example, *rest)

    monkeypatch.setattr(decode, "answers", counted)
    return seen


def recorded_by(results):
    """File -> the (cell, example) pairs in it."""
    found = {}
    for path in files(results / "runs"):
        with reading(path) as connection:
            found[path.name] = {(row["cell"], row["example"]) for row in rows(connection, "sample")}
    return found


@given(st.integers(0, 40), st.integers(1, 12))
def test_shards_divide_a_plan(examples, count):
    planned = [f"e{number}" for number in range(examples)]
    parts = [Shard(number + 1, count).of(planned) for number in range(count)]
    assert sorted(itertools.chain(*parts)) == sorted(planned)
    assert all(
        [index for index, name in enumerate(planned) if index % count == number] == [int(name[1:]) for name in part]
        for number, part in enumerate(parts)
    )
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.integers(1, 999), st.integers(1, 999))
def test_what_a_shard_is_written_as_is_read_back(number, count):
    if number <= count:
        assert parse(str(Shard(number, count))) == Shard(number, count)
    else:
        with pytest.raises(ValueError, match="out of range"):
            parse(f"{number}/{count}")


@pytest.mark.parametrize("value", [3, "3", "1/0", "0/2", "1/2/3", "-1/2", "a/b", "", " 1/2", "1/2\n", True, ["1/2"]])
def test_what_is_no_shard_is_refused(value):
    with pytest.raises(ValueError, match=r"shard="):
        parse(value)


@pytest.mark.parametrize("order", [("1/1",), ("1/2", "2/2"), ("2/2", "1/2"), ("2/3", "3/3", "1/3")])
def test_shards_in_any_order_give_the_records_of_one_run(order, undisturbed, results, decoded):
    for number, shard in enumerate(order, start=1):
        outcomes = run(shard)
        assert report([outcome.cell.config for outcome in outcomes], outcomes) == 0
        whole = number == len(order)
        assert {cell.sealed for cell in read_cells(results / "runs")} == {whole}
        assert {outcome.cell.config.shard is None for outcome in outcomes} == {whole}
        value = scores_of([outcome.cell for outcome in outcomes], outcomes)
        assert (value["niah_single_1-512"] is not None) == whole, "the mean of a part was given as the cell's"
    assert canonical_hash(results / "runs") == undisturbed
    assert len(decoded) == len(set(decoded)) == 8
    assert set(recorded_by(results)) == {f"shard-{shard.replace('/', 'of')}.db" for shard in order}
    assert sum(map(len, recorded_by(results).values())) == 8


def test_shards_of_different_counts_mix_and_decode_nothing_twice(undisturbed, results, decoded):
    for shard in ("1/2", "1/3", "2/3"):
        run(shard)
    assert canonical_hash(results / "runs") == undisturbed
    assert len(decoded) == len(set(decoded)) == 8


def test_the_command_without_a_shard_takes_what_shards_have_and_decodes_the_rest(undisturbed, results, decoded):
    run("2/3")
    assert len(decoded) == 2
    outcomes = run()
    assert [outcome.summary["ok"] for outcome in outcomes] == [4, 4]
    assert canonical_hash(results / "runs") == undisturbed
    assert len(decoded) == len(set(decoded)) == 8


def test_a_shard_takes_over_what_an_interrupted_run_has(undisturbed, results, monkeypatch, decoded):
    good = decode.answers

    def interrupted(cells, example, *rest):
        if example.id.endswith("0002"):
            raise KeyboardInterrupt
        return good(cells, example, *rest)

    monkeypatch.setattr(decode, "answers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run()
    monkeypatch.setattr(decode, "answers", good)
    for shard in ("1/2", "2/2"):
        run(shard)
    assert canonical_hash(results / "runs") == undisturbed
    assert len(decoded) == len(set(decoded)) == 8


def test_a_sealed_cell_costs_a_shard_nothing(results, monkeypatch):
    run()
    monkeypatch.setattr(harness.Loaded, "get", lambda *_: pytest.fail("a sealed cell loaded its backbone"))
    outcomes = run("1/2")
    assert [outcome.summary["ok"] for outcome in outcomes] == [4, 4]
    assert set(recorded_by(results)) == {"local.db"}


def test_a_part_without_examples_is_nothing_to_do(results, capsys):
    outcomes = run("7/8")
    assert [(outcome.summary, outcome.problem) for outcome in outcomes] == [(None, None)] * 2
    assert report([outcome.cell.config for outcome in outcomes], outcomes) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line == {"cells": 2, "sealed": 0, "incomplete": 0, "shards": 2}
    assert not (results / "runs").exists()


def test_attempts_come_along(results, tmp_path, monkeypatch):
    good, hashes = decode.answers, []
    for root, shards in ((tmp_path / "whole", [None]), (tmp_path / "parts", ["1/2", "2/2"])):
        monkeypatch.setenv("INERTIA_RESULTS", str(root))

        def unlucky(cells, example, *rest):
            if example.id.endswith("0001"):
                raise RuntimeError("no luck today")
            return good(cells, example, *rest)

        monkeypatch.setattr(decode, "answers", unlucky)
        codes = [report([], run(shard)) for shard in shards]
        assert codes[-1] == 1
        monkeypatch.setattr(decode, "answers", good)
        for shard in shards:
            run(shard)
        hashes.append(canonical_hash(root / "runs"))
        assert sorted(read_samples(root / "runs")["attempt"]) == [1] * 6 + [2] * 2
        assert {cell.summary["attempts"] for cell in read_cells(root / "runs")} == {5}
    assert hashes[0] == hashes[1]


def test_a_shard_in_use_keeps_out_whoever_would_decode_the_same(undisturbed, results, decoded):
    run("1/3")
    ids = [cell.id for config in jobs() for cell in harness.cells_of(config)]
    with claimed(results / "runs" / LOCKS, ids, (2, 3), "shard 2/3"):
        for asked in ("2/3", "1/2", None):
            outcomes = run(asked)
            assert all(f"process {os.getpid()}: wait for it" in outcome.problem for outcome in outcomes)
        assert report([], run("3/3")) == 0, "another part of the same cells"
    assert len(decoded) == 6
    assert report([], run("2/3")) == 0
    assert canonical_hash(results / "runs") == undisturbed


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_parts_without_a_common_example_can_be_decoded_at_once(tmp_path_factory, one, other, data):
    parts = [(data.draw(st.integers(1, count)), count) for count in (one, other)]
    places = [set(range(200)[number - 1 :: count]) for number, count in parts]
    folder = tmp_path_factory.mktemp("locks")
    with claimed(folder, ["c1"], parts[0], "x") as first, claimed(folder, ["c1", "c2"], parts[1], "x") as second:
        assert not first and set(second) == ({"c1"} if places[0] & places[1] else set())
    assert not list(folder.iterdir())


def test_a_seal_that_was_cut_off_is_written_by_whoever_looks_next(undisturbed, results, monkeypatch, decoded):
    run("1/2")
    with monkeypatch.context() as patch:
        patch.setattr("inertia.records.writer.summarise", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run("2/2")
    assert not any(cell.sealed for cell in read_cells(results / "runs"))
    outcomes = harness.standing([cell for config in jobs() for cell in harness.cells_of(config)])
    assert [outcome.summary["ok"] for outcome in outcomes] == [4, 4]
    assert canonical_hash(results / "runs") == undisturbed
    assert len(decoded) == len(set(decoded)) == 8


def test_a_larger_plan_of_a_shard_opens_the_cell_and_a_smaller_one_takes_what_was_tried(results, decoded):
    run("1/2", examples=8)
    outcomes = run()
    assert [outcome.summary["ok"] for outcome in outcomes] == [6, 6], "four, and the two that only the shard planned"
    assert [outcome.summary["ok"] for outcome in run(examples=8)] == [8, 8]
    assert len(decoded) == len(set(decoded)) == 16


def test_a_part_that_has_all_of_a_smaller_cell_does_not_seal_a_larger_one(results, decoded):
    run()
    (first, _) = run("2/2", examples=5)
    assert first.cell.config.shard == Shard(2, 2) and first.summary["ok"] == 2
    assert [outcome.summary["ok"] for outcome in run("1/2", examples=5)] == [5, 5]
    assert len(decoded) == len(set(decoded)) == 10


def test_the_records_say_who_decoded_the_parts(results):
    for shard in ("1/2", "2/2"):
        run(shard)
    for cell in read_cells(results / "runs"):
        assert [session["status"] for session in cell.manifest["sessions"]] == ["ended", "ended"]
        assert [path.name for path in cell.sources] == ["shard-1of2.db", "shard-2of2.db"]


def test_the_same_example_in_two_files_is_equal_or_reported(results, tmp_path, monkeypatch):
    run()
    (path,) = files(results / "runs")
    (results / "runs" / "copy.db").write_bytes(path.read_bytes())
    assert [outcome.problem for outcome in run()] == [None, None]
    cell, _ = sorted(outcome.cell.id for outcome in run())
    monkeypatch.setenv("INERTIA_RESULTS", str(tmp_path / "other"))
    good = decode.answers
    monkeypatch.setattr(
        decode, "answers", lambda *given: [replace(each, prediction="other") for each in good(*given)]
    )
    run()
    (other,) = files(tmp_path / "other" / "runs")
    (results / "runs" / "copy.db").write_bytes(other.read_bytes())
    monkeypatch.setenv("INERTIA_RESULTS", str(results))
    outcomes = run(examples=5)
    assert all("is recorded twice" in each.problem and "copy.db" in each.problem for each in outcomes)
    assert all("local.db" in each.problem for each in outcomes)


def test_a_damaged_row_is_said_and_nothing_is_decoded_for_its_cell(results, decoded):
    run()
    (path,) = files(results / "runs")
    cell = min(cell.id for cell in read_cells(results / "runs"))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE sample SET row = replace(row, 'niah', 'nioh') WHERE cell = ?", [cell])
    decoded.clear()
    outcomes = run("1/2", examples=8)
    problems = [outcome.problem for outcome in outcomes if outcome.problem is not None]
    assert len(problems) == 1 and f"table sample, row {cell}" in problems[0] and "local.db" in problems[0]
    assert {name for name, _ in decoded} == {outcome.cell.id for outcome in outcomes if outcome.problem is None}


@pytest.mark.parametrize("damage", [b"", b"not a database at all" * 400, None])
def test_a_file_that_cannot_be_read_is_said_and_the_run_goes_on_beside_it(results, caplog, damage):
    run("1/2")
    path = results / "runs" / "shard-1of2.db"
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xff" * 50 + whole[150:] if damage is None else damage)
    for _ in range(2):
        assert [outcome.problem for outcome in run()] == [None, None]
    assert ("shard-1of2.db" in caplog.text) == (damage != b"")
    assert [outcome.problem for outcome in run("1/2", examples=8)] == [None, None]
    names = {path.name for path in files(results / "runs")}
    assert names == {"local.db", "shard-1of2.db", *(() if damage == b"" else ["shard-1of2-2.db"])}


def child(*words, results, fault=None):
    environment = {**os.environ, "INERTIA_RESULTS": str(results), "OMP_NUM_THREADS": "1"}
    environment.pop("INERTIA_FAULT", None)
    if fault:
        environment["INERTIA_FAULT"] = fault
    command = [sys.executable, "-m", "inertia", "-m", *SMALL, f"method={','.join(METHODS)}", *words]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process):
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def test_a_killed_shard_goes_on(undisturbed, results, decoded):
    code, _, _ = ended(child("shard=2/2", results=results, fault="committed:3"))
    assert code == -9
    for shard in ("1/2", "2/2"):
        run(shard)
    assert canonical_hash(results / "runs") == undisturbed
    assert len(decoded) == len(set(decoded)) == 6, "the row that was durable before the kill was decoded again"


@pytest.mark.slow
def test_shards_at_the_same_time_and_one_killed(undisturbed, results):
    shards = [child(f"shard={number}/3", results=results, fault=fault) for number, fault in ((1, None), (2, None))]
    killed = child("shard=3/3", results=results, fault="commit:3")
    assert ended(killed)[0] == -9
    for process in shards:
        code, _, err = ended(process)
        assert code == 0, err
    assert not any(cell.sealed for cell in read_cells(results / "runs"))
    twice = [child("shard=3/3", results=results), child(results=results)]
    codes = [ended(process)[0] for process in twice]
    assert set(codes) <= {0, 1} and 0 in codes
    assert ended(child(results=results))[0] == 0
    assert canonical_hash(results / "runs") == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
def test_the_last_shards_end_at_once(attempt, undisturbed, results):
    shards = [child(f"shard={number}/2", results=results) for number in (1, 2)]
    for process in shards:
        code, _, err = ended(process)
        assert code == 0, err
    assert canonical_hash(results / "runs") == undisturbed
