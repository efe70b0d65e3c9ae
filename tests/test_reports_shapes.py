"""Tables of every shape are declarations: methods, thirteen tasks, baselines, a budget sweep, traces; and claims."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import pandas as pd
import pytest
from reports_data import cell, entry, grid_rows, memory_source, needle_scores, source_of

from inertia.paper.claims import CLAIMS
from inertia.paper.methods import METHODS
from inertia.paper.reference import RULER_TASKS, reference
from inertia.paper.ruler13 import RULER13
from inertia.paper.words import LLAMA, ORDER, TITLES
from inertia.reports import Comparison, Quantity, Reference, Table, build_table
from inertia.reports.claims import claims_report, decide, is_positive
from inertia.reports.declaration import SCORE
from inertia.statistics import holm, paired_difference


def solved(k, n=8):
    """Scores of which the first k of n are 1."""
    return [float(i < k) for i in range(n)]


def cells_of(places, **settings):
    """Cells with consecutive ids from (settings, number of solved examples)."""
    return [cell(number, solved(k), **{**settings, **said}) for number, (said, k) in enumerate(places)]


def test_methods_show_score_paired_difference_and_what_was_kept_with_and_without_the_question():
    places = [
        ({"task": task, "method": method, "question_visible": seen}, k)
        for task in ("vt", "cwe")
        for method, seen, k in (("full_cache", None, 8), ("tova", False, 1), ("tova", True, 4), ("h2o", True, 7))
    ]
    table = build_table(METHODS, source_of(cells_of(places), "methods"))
    rows = grid_rows(table)
    labels = ["full_cache", "h2o question seen", "tova context only", "tova question seen"]
    assert list(rows) == labels
    assert [column.name for column in table.grid.columns] == ["score", "minus full cache", "tokens kept", "cache MiB"]
    assert table.grid.columns[0].details == ("tasks=2", "n=16")
    assert [rows[label][0][0] for label in labels] == ["100.0", "87.5", "12.5", "50.0"]
    assert rows["full_cache"][1] == () and rows["full_cache"][2:] == (("100",), ("1.0",))
    found = table.frame[table.frame["quantity"] == "minus_full_cache"].dropna(subset="p")
    # Holm over the three rows that are compared.
    assert found["p_holm"].tolist() == list(holm(dict(zip("abc", found["p"], strict=True))).values())
    ids = [f"{task}/{i}" for task in "ab" for i in range(8)]
    a, b = dict.fromkeys(ids, 1.0), {name: float(int(name[2:]) < 7) for name in ids}
    wanted = paired_difference(b, a, strata={name: name[0] for name in ids})
    h2o = entry(table.frame, quantity="minus_full_cache", method="h2o")
    assert (h2o["value"], h2o["p"], h2o["n"]) == (pytest.approx(-12.5), wanted.p, 16)


def test_thirteen_tasks_and_their_mean_are_columns_and_differences_rows():
    places = [
        ({"task": task, "method": method}, k)
        for task in reversed(RULER_TASKS)
        for method, k in (("h2o", 2), ("full_cache", 8), ("inertiakv", 6))
    ]
    table = build_table(RULER13, source_of(cells_of(places), "ruler13"))
    names = [column.name for column in table.grid.columns]
    assert names[:13] == list(RULER_TASKS) and names[13:] == ["score", "tokens kept", "cache MiB"]
    rows = grid_rows(table)
    assert list(rows) == ["full_cache", "inertiakv", "h2o", "inertiakv minus full_cache", "h2o minus full_cache"]
    assert rows["inertiakv minus full_cache"][13][0] == "-25.0"
    assert rows["inertiakv minus full_cache"][14] == ()
    on_tasks = table.frame[(table.frame["quantity"] == "minus_full_cache") & (table.frame["task"] != "mean")]
    compared = on_tasks.dropna(subset="p")
    assert len(compared) == 26  # one family: two policies on thirteen tasks
    family = {str(i): p for i, p in enumerate(compared["p"])}
    assert compared["p_holm"].tolist() == list(holm(family).values())


BASELINES = Table(
    name="table04",
    title="Table 4{ratio}, {scale} scale: {backbone}",
    experiment="table04",
    rows=("method",),
    columns=("benchmark", "question_visible"),
    references=(Reference(lambda: reference(4), "table 4", {"backbone": LLAMA}),),
    order=ORDER,
    titles=TITLES,
)


def test_baselines_stand_under_each_benchmark_with_and_without_the_question():
    places = [
        ({"benchmark": benchmark, "task": task, "length": length, "method": method, "question_visible": seen}, k)
        for benchmark, task, length in (("ruler", "vt", 1024), ("ruler", "cwe", 1024), ("longbench", "qasper", None))
        for method, seen, k in (("full_cache", None, 8), ("tova", False, 2), ("tova", True, 4), ("inertiakv", True, 6))
    ]
    table = build_table(BASELINES, source_of(cells_of(places)))
    heads = [(column.group, column.name) for column in table.grid.columns]
    ours = [("RULER", "context only"), ("RULER", "question seen")]
    ours += [("LongBench", "context only"), ("LongBench", "question seen")]
    assert heads == [*ours, ("paper", "RULER"), ("paper", "LongBench"), ("paper", "LongBench-v2")]
    assert [column.details for column in table.grid.columns[:3]] == [("tasks=2", "n=16")] * 2 + [("tasks=1", "n=8")]
    rows = {label: [line[0] if line else "-" for line in cells] for label, cells in grid_rows(table).items()}
    # The full cache has no such setting: it stands under both.
    assert rows["full_cache"][:4] == ["100.0"] * 4
    assert rows["tova"][:5] == ["25.0", "50.0", "25.0", "50.0", "48.34"]
    assert rows["inertiakv"][:4] == ["-", "75.0", "-", "75.0"]
    # What the paper has and we have not run is there, without numbers of ours.
    assert rows["kvzip"][:4] == ["-"] * 4 and rows["kvzip"][4] == "86.44"
    tova = entry(table.frame, source="ours", method="tova", benchmark="ruler", question_visible=False)
    assert (tova["value"], tova["n"], tova["task"]) == (25.0, 16, "mean")


SWEEP = Table(
    name="table07",
    title="Ratios, {scale} scale",
    experiment="table07",
    rows=("backbone", "method"),
    columns=("compression_ratio",),
    comparisons=(Comparison({"method": "full_cache"}),),
    references=(
        Reference(
            lambda: reference(7), "table 7", {"backbone": LLAMA, "benchmark": "ruler", "method": "inertiakv"}
        ),
    ),
    reference_columns=("benchmark", "compression_ratio"),
    order=ORDER,
)


def test_a_budget_sweep_has_a_column_per_ratio_and_rows_per_backbone():
    places = [
        ({"backbone": backbone, "task": "vt", "method": "inertiakv", "compression_ratio": ratio}, k)
        for backbone, (ratio, k) in product(("one", "two"), ((0.9, 2), (0.5, 6)))
    ]
    places += [({"backbone": name, "task": "vt", "method": "full_cache"}, k) for name, k in (("one", 8), ("two", 7))]
    table = build_table(SWEEP, source_of(cells_of(places)))
    assert [column.name for column in table.grid.columns[:2]] == ["50%", "90%"]
    rows = {label: [line[0] if line else "-" for line in cells] for label, cells in grid_rows(table).items()}
    assert rows["one full_cache"][:2] == ["100.0", "100.0"] and rows["two full_cache"][:2] == ["87.5", "87.5"]
    # Each backbone is compared with its own full cache.
    assert rows["one inertiakv minus one full_cache"][:2] == ["-25.0", "-75.0"]
    assert rows["two inertiakv minus two full_cache"][:2] == ["-12.5", "-62.5"]
    printed = [column for column in table.grid.columns if column.group == "paper"]
    assert len(printed) == len(set(reference(7)["compression_ratio"]))
    paper_row = rows[f"{LLAMA} inertiakv"]
    assert paper_row[:2] == ["-", "-"] and "-" not in paper_row[2:]


TRACES = Table(
    name="table13",
    title="Rank traces, {scale} scale",
    experiment="table13",
    rows=("benchmark", "alpha"),
    columns=(),
    quantities=tuple(
        Quantity(name, name.replace("_", " "), f"metrics.{name}", shown="{:.4f}".format, ends="{:.4f}".format)
        for name in ("raw_churn", "ema_churn")
    ),
    references=(
        Reference(
            lambda: reference(13),
            "table 13",
            {"backbone": LLAMA},
            rename={"trace_set": "benchmark"},
            formats={"raw_churn": ".4f", "ema_churn": ".4f"},
        ),
    ),
    reference_columns=("quantity",),
)


def test_traces_are_quantities_of_their_own_beside_a_wide_printed_table():
    def columns(i):
        return {"metrics": json.dumps({"raw_churn": 0.02 + i / 1000, "ema_churn": 0.001 * (i + 1)})}

    cells = [
        cell(number, solved(4, 4), columns=columns, task="vt", method="inertiakv", alpha=alpha)
        for number, alpha in enumerate((0.3, 0.8))
    ]
    table = build_table(TRACES, source_of(cells))
    names = [(column.group, column.name) for column in table.grid.columns]
    assert names[:2] == [("", "raw churn"), ("", "ema churn")]
    assert ("paper", "raw_churn") in names
    rows = grid_rows(table)
    assert rows["ruler 0.3"][0][0] == "0.0215" and rows["ruler 0.3"][1][0] == "0.0025"
    assert rows["ruler 0.8"][names.index(("paper", "raw_churn"))] == ("0.0244",)
    found = entry(table.frame, source="ours", benchmark="ruler", quantity="raw_churn", alpha=0.3)
    assert found["low"] < found["value"] < found["high"]


def test_a_declaration_whose_cells_are_not_told_apart_is_refused():
    places = [({"task": "vt", "method": "tova", "compression_ratio": ratio}, 4) for ratio in (0.5, 0.9)]
    with pytest.raises(ValueError, match="share method, question_visible; report them apart"):
        build_table(METHODS, source_of(cells_of(places)))


def test_examples_of_two_policies_that_differ_are_not_compared():
    first = cell(0, solved(4), task="vt", method="full_cache")
    other = cell(1, solved(4), task="vt", method="h2o")
    renamed = tuple({**sample, "example_id": sample["example_id"] + "x"} for sample in other.samples)
    with pytest.raises(ValueError, match="different examples"):
        build_table(RULER13, source_of([first, other._replace(samples=renamed)]))


@pytest.mark.parametrize(
    ("low", "value", "high", "p", "verdict"),
    [
        (4.0, 10.0, 16.0, 0.04, "supported"),
        (4.0, 10.0, 16.0, 0.06, "inconclusive"),
        (-1.0, 10.0, 16.0, 0.04, "inconclusive"),
        (-16.0, -10.0, -4.0, 0.04, "contradicted"),
        (None, 10.0, None, 0.04, "inconclusive"),
    ],
)
def test_an_effect_is_supported_only_by_interval_and_test(low, value, high, p, verdict):
    assert is_positive({"low": low, "value": value, "high": high, "p": p}) == verdict


def test_claims_are_decided_on_one_row_and_carry_the_papers_effect():
    scores = needle_scores(tasks=("vt", "cwe", "fwe"), n=16)
    first, sixth = (decide(claim, memory_source(scores)) for claim in CLAIMS)
    # Twelve of sixteen against none, and fifteen against twelve: three more of sixteen on each of three tasks.
    assert (first["value"], first["printed"], first["verdict"]) == (75.0, 21.63, "supported")
    assert (sixth["value"], sixth["printed"], sixth["n"]) == (18.75, pytest.approx(3.12), 48)
    report = claims_report([first, sixth], ["C7"])
    assert grid_rows(report)["C1"][-1] == ("supported",) and grid_rows(report)["C1"][2] == ("+21.63",)
    assert any("no records: C7" in note for note in report.grid.notes)
    assert report.frame["verdict"].tolist() == [first["verdict"], sixth["verdict"]]


def test_a_claim_over_incomplete_records_is_not_decided():
    scores = needle_scores(tasks=("vt",), n=4)
    scores["vt", 0.8] = [None, 1.0, 1.0, 1.0]
    decided = decide(CLAIMS[0], memory_source(scores))
    assert decided["verdict"] == "incomplete 7/8" and decided["value"] is None
    assert grid_rows(claims_report([decided]))["C1"][0] == ("incomplete", "7/8")


def test_a_claim_that_selects_no_row_is_a_mistake():
    with pytest.raises(ValueError, match="claim C1 selects 0 rows of table05"):
        decide(replace(CLAIMS[0], where={"task": "nothing"}), memory_source(needle_scores(tasks=("vt",))))


def test_shares_of_the_score_table_are_typed_whatever_was_run():
    table = build_table(METHODS, source_of(cells_of([({"task": "vt", "method": "full_cache"}, 8)])))
    assert table.frame.dtypes["question_visible"] == pd.BooleanDtype()
    assert SCORE.name in set(table.frame["quantity"])
