"""What we keep is what kvpress 0.5.5 kept: stored results of `make parity`, done again without kvpress."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

import parity_cases as cases
from inertia.backbones.tiny import tiny_model

ROOT = Path(__file__).resolve().parents[1]


GOLDENS = {
    name: json.loads((ROOT / "tests" / "data" / "parity" / f"{name}.json").read_text(encoding="utf-8"))
    for name in ("prefill", "decode")
}
ENTRIES = [(name, entry) for name, golden in GOLDENS.items() for entry in golden["cases"]]


@cache
def model_of(name, model):
    stored = GOLDENS[name]["models"][model]
    found = tiny_model(**stored["recipe"])
    assert cases.weights_sha256(found) == stored["sha256"], "tiny_model gives other weights than when kvpress ran"
    return found


def case_of(entry):
    return cases.Case(*(entry[field] for field in cases.Case._fields))


def numbers(text):
    return [int(word) for word in text.split()]


@pytest.mark.parametrize(("name", "entry"), ENTRIES, ids=[case_of(entry).name for _, entry in ENTRIES])
def test_we_keep_what_kvpress_kept(name, entry):
    case, stored = case_of(entry), GOLDENS[name]["models"][entry["model"]]
    given = cases.Input(numbers(stored["ids"]), numbers(stored["tokens"]))
    assert cases.entry(case, cases.ours(model_of(name, case.model), case, given)) == entry


def test_the_stored_cases_are_those_that_make_parity_runs():
    listed = {case.name for case in cases.cases()}
    assert {case_of(entry).name for _, entry in ENTRIES} == listed
    assert len(ENTRIES) == len(listed) == 72
    for golden in GOLDENS.values():
        assert golden["kvpress"] == "0.5.5"
        assert {name: stored["recipe"] for name, stored in golden["models"].items()} == cases.MODELS


def test_the_stored_sets_tell_methods_apart():
    for name, golden in GOLDENS.items():
        groups = {}
        for entry in golden["cases"]:
            groups.setdefault((entry["model"], entry["budget"]), []).append(json.dumps(entry["kept"]))
        assert len(groups) == 6
        for kept in groups.values():
            assert len(set(kept)) == len(kept) == {"prefill": 9, "decode": 3}[name]


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("snapkv", {"pool": 3}),
        ("snapkv", {"window": 60}),
        ("streaming_llm", {"sinks": 3}),
        ("expected_attention", {"future": 1}),
        ("expected_attention", {"covariance": False}),
        ("adakv_expected_attention", {"epsilon": 0.0}),
        ("adakv_snapkv", {"alpha": 1}),
        ("kvzip", {"chunk": 81}),
        ("kvzip", {"sinks": 0}),
    ],
)
def test_wrong_settings_are_found_out(method, wrong):
    name, entry = next((name, entry) for name, entry in ENTRIES if entry["method"] == method)
    case, stored = case_of(entry), GOLDENS[name]["models"][entry["model"]]
    other = case._replace(settings={**case.settings, **wrong})
    given = cases.Input(numbers(stored["ids"]), [])
    assert cases.entry(other, cases.ours(model_of(name, case.model), other, given))["kept"] != entry["kept"]


def test_positions_are_written_as_ranges():
    assert cases.ranges([0, 1, 2, 3, 7, 9, 10]) == "0-3 7 9-10"
    assert cases.ranges([]) == ""
    start = cases.DECODE_PROMPT
    steps = [[0, 1, start], [0, 1, start + 1], [0, 1, start + 1, start + 2], [0, start + 1, start + 2]]
    assert cases.evicted(steps) == f"{start} - 1,{start + 3}"
