"""Shards: whoever decodes a cell's examples, in whatever parts and order, the records are those of one run."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st

from inertia.experiments import absorb
from inertia.experiments import run as harness
from inertia.experiments.config import run_config
from inertia.experiments.hydra_launcher import scores_of
from inertia.experiments.shards import Shard, parse, shard_roots
from inertia.experiments.terminal import report
from inertia.paths import config_dir
from inertia.records import CellWriter, canonical_hash, open_cell, read_cells, read_samples

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
    real, memory = harness.answers, {}

    def remembered(cells, example, *rest):
        key = (*(cell.id for cell in cells), example.id)
        if key not in memory:
            memory[key] = real(cells, example, *rest)
        return memory[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "answers", remembered)
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
    seen, good = [], harness.answers

    def counted(cells, example, *rest):
        seen.extend((cell.id, example.id) for cell in cells)
        return good(cells, example, *rest)

    monkeypatch.setattr(harness, "answers", counted)
    return seen


def left(results):
    """What is left of shards' cells."""
    return [
        path
        for root in shard_roots(results)
        if root.is_dir()
        for path in [*root.glob("*__c*"), *root.glob(".removed*"), *root.glob("groups/*.jsonl")]
    ]


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
        assert (results / "runs").exists() == whole
        assert {outcome.cell.config.shard is None for outcome in outcomes} == {whole}
        value = scores_of([outcome.cell for outcome in outcomes], outcomes)
        assert (value["niah_single_1-512"] is not None) == whole, "the mean of a part was given as the cell's"
    assert canonical_hash(results / "runs") == undisturbed
    assert left(results) == []
    assert len(decoded) == len(set(decoded)) == 8


def test_shards_of_different_counts_mix_and_decode_nothing_twice(undisturbed, results, decoded):
    for shard in ("1/2", "1/3", "2/3"):
        run(shard)
    assert canonical_hash(results / "runs") == undisturbed
    assert len(decoded) == len(set(decoded)) == 8
    assert left(results) == []


def test_the_command_without_a_shard_takes_what_shards_have_and_decodes_the_rest(undisturbed, results, decoded):
    run("2/3")
    assert len(decoded) == 2
    outcomes = run()
    assert [outcome.summary["ok"] for outcome in outcomes] == [4, 4]
    assert canonical_hash(results / "runs") == undisturbed
    assert len(decoded) == len(set(decoded)) == 8
    assert left(results) == []


def test_a_shard_takes_over_what_an_interrupted_run_has(undisturbed, results, monkeypatch, decoded):
    good = harness.answers

    def interrupted(cells, example, *rest):
        if example.id.endswith("0002"):
            raise KeyboardInterrupt
        return good(cells, example, *rest)

    monkeypatch.setattr(harness, "answers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run()
    monkeypatch.setattr(harness, "answers", good)
    for shard in ("1/2", "2/2"):
        run(shard)
    assert canonical_hash(results / "runs") == undisturbed
    assert len(decoded) == len(set(decoded)) == 8


def test_a_sealed_cell_costs_a_shard_nothing(results, monkeypatch):
    run()
    monkeypatch.setattr(harness.Loaded, "get", lambda *_: pytest.fail("a sealed cell loaded its backbone"))
    outcomes = run("1/2")
    assert [outcome.summary["ok"] for outcome in outcomes] == [4, 4]
    assert not (results / "shards").exists()


def test_a_part_without_examples_is_nothing_to_do(results, capsys):
    outcomes = run("7/8")
    assert [(outcome.summary, outcome.problem) for outcome in outcomes] == [(None, None)] * 2
    assert report([outcome.cell.config for outcome in outcomes], outcomes) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line == {"cells": 2, "sealed": 0, "incomplete": 0, "shards": 2}
    assert not (results / "shards").exists()


def test_attempts_come_along(results, tmp_path, monkeypatch):
    good, hashes = harness.answers, []
    for root, shards in ((tmp_path / "whole", [None]), (tmp_path / "parts", ["1/2", "2/2"])):
        monkeypatch.setenv("INERTIA_RESULTS", str(root))

        def unlucky(cells, example, *rest):
            if example.id.endswith("0001"):
                raise RuntimeError("no luck today")
            return good(cells, example, *rest)

        monkeypatch.setattr(harness, "answers", unlucky)
        codes = [report([], run(shard)) for shard in shards]
        assert codes[-1] == 1
        monkeypatch.setattr(harness, "answers", good)
        for shard in shards:
            run(shard)
        hashes.append(canonical_hash(root / "runs"))
        assert sorted(read_samples(root / "runs")["attempt"]) == [1] * 6 + [2] * 2
        assert {cell.summary["attempts"] for cell in read_cells(root / "runs")} == {5}
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("calls", [1, 2, 3, 5])
def test_an_absorption_that_is_cut_off_goes_on(calls, undisturbed, results, monkeypatch, decoded):
    run("1/2")
    copy, made = absorb._copy, []

    def cut_off(writer, attempts):
        made.append(writer)
        if len(made) == calls:
            raise KeyboardInterrupt
        copy(writer, attempts)

    monkeypatch.setattr(absorb, "_copy", cut_off)
    with pytest.raises(KeyboardInterrupt):
        run("2/2")
    monkeypatch.setattr(absorb, "_copy", copy)
    run("2/2")
    assert canonical_hash(results / "runs") == undisturbed
    assert len(decoded) == len(set(decoded)) == 8
    assert left(results) == []


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_attempts_are_counted_once_where_their_absorption_is_cut_off(rows, results, monkeypatch):
    good, keep, made = harness.answers, CellWriter.keep, []

    def unlucky(*_):
        raise RuntimeError("no luck today")

    def cut_off(writer, row, **how):
        if writer.directory.parent == results / "runs":
            made.append(row)
            if len(made) > rows:
                raise KeyboardInterrupt
        keep(writer, row, **how)

    monkeypatch.setattr(harness, "answers", unlucky)
    run("2/2")
    monkeypatch.setattr(harness, "answers", good)
    run("2/2")
    monkeypatch.setattr(CellWriter, "keep", cut_off)
    with pytest.raises(KeyboardInterrupt):
        run("1/2")
    monkeypatch.setattr(CellWriter, "keep", keep)
    run()
    assert sorted(read_samples(results / "runs")["attempt"]) == [1] * 4 + [2] * 4
    assert {cell.summary["attempts"] for cell in read_cells(results / "runs")} == {6}


def test_a_removal_that_is_cut_off_goes_on(undisturbed, results, monkeypatch):
    run("1/2")
    monkeypatch.setattr(shutil, "rmtree", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run("2/2")
    monkeypatch.undo()
    monkeypatch.setenv("INERTIA_RESULTS", str(results))
    assert any(path.name.startswith(".removed") for path in left(results))
    run()
    assert canonical_hash(results / "runs") == undisturbed
    assert left(results) == []


def test_whoever_finds_the_cell_held_leaves_it_and_is_content(undisturbed, results):
    run("1/2")
    (cell, _) = (cells[0] for cells in map(harness.cells_of, jobs()))
    with open_cell(results / "runs", cell.identity, label="x", planned=cell.planned, config={}, provenance={}):
        outcomes = run("2/2")
        assert report([], outcomes) == 0
        assert [outcome.cell.config.shard for outcome in outcomes] == [Shard(2, 2), None]
    assert report([], run("2/2")) == 0
    assert canonical_hash(results / "runs") == undisturbed
    assert left(results) == []


def test_a_shard_in_use_is_not_removed_under_its_writer(results):
    run("1/2")
    (cell, _) = (cells[0] for cells in map(harness.cells_of, jobs("1/2")))
    with open_cell(cell.root, cell.identity, label="x", planned=cell.planned, config={}, provenance={}):
        run()
        assert [path.name.rpartition("__")[2] for path in left(results)] == [cell.id]
    run()
    assert left(results) == []


def test_a_shard_that_knows_more_than_the_sealed_cell_stays(results, decoded):
    run("1/2", examples=8)
    run()
    assert len(left(results)) == 2, "rows that are nowhere else were removed"
    run(examples=8)
    assert left(results) == []
    assert len(decoded) == len(set(decoded)) == 16


def test_the_manifest_says_who_decoded_the_parts(results):
    for shard in ("1/2", "2/2"):
        run(shard)
    for cell in read_cells(results / "runs"):
        parts = cell.manifest["sessions"][-1]["provenance"]["shards"]
        assert {name: [session["status"] for session in sessions] for name, sessions in parts.items()} == {
            "1of2": ["complete"],
            "2of2": ["complete"],
        }


def test_a_damaged_cell_is_said_and_nothing_is_decoded_for_it(results, decoded):
    run()
    folders = sorted((results / "runs").glob("*__c*"))
    (folders[0] / "samples.jsonl").write_text("garbage\n")
    (folders[0] / "summary.json").unlink()
    decoded.clear()
    outcomes = run("1/2", examples=8)
    problems = [outcome.problem for outcome in outcomes if outcome.problem is not None]
    assert len(problems) == 1 and "line 1" in problems[0]
    assert {cell for cell, _ in decoded} == {outcome.cell.id for outcome in outcomes if outcome.problem is None}


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
    code, _, _ = ended(child("shard=2/2", results=results, fault="group-synced:1"))
    assert code == -9
    for shard in ("1/2", "2/2"):
        run(shard)
    assert canonical_hash(results / "runs") == undisturbed
    assert len(decoded) == len(set(decoded)) == 6, "the row that was durable before the kill was decoded again"


@pytest.mark.slow
def test_shards_at_the_same_time_and_one_killed(undisturbed, results):
    shards = [child(f"shard={number}/3", results=results, fault=fault) for number, fault in ((1, None), (2, None))]
    killed = child("shard=3/3", results=results, fault="group-half:1")
    assert ended(killed)[0] == -9
    for process in shards:
        code, _, err = ended(process)
        assert code == 0, err
    assert not (results / "runs").exists()
    twice = [child("shard=3/3", results=results), child(results=results)]
    codes = [ended(process)[0] for process in twice]
    assert set(codes) <= {0, 1} and 0 in codes
    assert ended(child(results=results))[0] == 0
    assert canonical_hash(results / "runs") == undisturbed
    assert left(results) == []


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
def test_the_last_shards_end_at_once(attempt, undisturbed, results):
    shards = [child(f"shard={number}/2", results=results) for number in (1, 2)]
    for process in shards:
        code, _, err = ended(process)
        assert code == 0, err
    assert canonical_hash(results / "runs") == undisturbed
    assert left(results) == []
