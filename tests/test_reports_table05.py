from __future__ import annotations

import random

import pandas as pd
import pytest
from reports_data import ALPHAS, LABEL, cell, entry, grid_rows, memory_source, needle_scores, source_of

from inertia.paper.reference import reference
from inertia.paper.table05 import TABLE05
from inertia.reports import build_table


def table05(source):
    return build_table(TABLE05, source)


def test_scores_are_means_of_the_examples_with_wilson_intervals():
    frame = table05(memory_source(needle_scores(n=8))).frame
    row = entry(frame, source="ours", task="vt", alpha=0.6, quantity="score")
    assert (row["value"], row["n"], row["planned"], row["status"]) == (50.0, 8, 8, "ok")
    # Wilson for 4 of 8, from its formula: centre 1/2, half width z/(1+z²/n) * sqrt(1/(4n) + z²/(4n²))
    z, n = 1.959963984540054, 8
    half = z / (1 + z * z / n) * (0.25 / n + z * z / (4 * n * n)) ** 0.5
    assert row["low"] == pytest.approx(100 * (0.5 - half), abs=1e-4)
    assert row["high"] == pytest.approx(100 * (0.5 + half), abs=1e-4)


def test_the_mean_is_over_official_tasks_only_each_counting_the_same():
    scores = needle_scores(n=4)
    scores |= {("niah_single_1", 0.8): [1.0, 1.0, 1.0, 1.0], ("vt", 0.8): [0.5, 0.0, 0.0, 0.0]}
    scores |= {("niah_noise_3keys", 0.8): [0.0, 0.0, 0.0, 0.0]}
    table = table05(memory_source(scores))
    row = entry(table.frame, source="ours", task="mean", alpha=0.8, quantity="score")
    assert row["value"] == pytest.approx(100 * (1.0 + 0.125) / 2)
    assert row["n"] == 8
    assert row["low"] < row["value"] < row["high"]
    assert any("not in the mean: niah_noise_3keys" in note for note in table.grid.notes)


def test_without_official_tasks_the_mean_is_over_all():
    table = table05(memory_source(needle_scores(tasks=("niah_noise_3keys",))))
    assert entry(table.frame, source="ours", task="mean", alpha=0.6, quantity="score")["value"] == 50.0
    assert not any("not in the mean" in note for note in table.grid.notes)


def test_the_difference_is_paired_with_an_exact_p():
    scores = needle_scores(tasks=("vt",), n=8)
    table = table05(memory_source(scores))
    row = entry(table.frame, source="ours", task="vt", quantity="difference")
    # alpha 0 solves none, alpha 0.8 six of eight: six wins, no loss, so McNemar's exact p is 2 / 2^6.
    assert row["value"] == 75.0
    assert row["p"] == pytest.approx(2 / 64)
    assert (row["test"], row["n"], row["planned"]) == ("mcnemar", 8, 8)
    printed = grid_rows(table)["0.8 minus 0"][0]
    assert (printed[0], printed[2]) == ("+75.0", "p=.031")


def test_holm_corrects_over_the_tasks_and_leaves_the_mean_alone():
    frame = table05(memory_source(needle_scores(tasks=("vt", "cwe", "fwe"), n=8))).frame
    rows = frame[(frame["quantity"] == "difference") & (frame["source"] == "ours") & (frame["task"] != "mean")]
    assert rows["p"].tolist() == pytest.approx([2 / 64] * 3)
    assert rows["p_holm"].tolist() == pytest.approx([6 / 64] * 3)
    assert pd.isna(entry(frame, source="ours", task="mean", quantity="difference")["p_holm"])


def test_the_papers_numbers_stand_beside_ours_unchanged():
    table = table05(memory_source(needle_scores()))
    frame = table.frame
    for _, printed in reference(5).iterrows():
        row = entry(frame, status="as printed", benchmark=printed["benchmark"], alpha=printed["alpha"])
        assert row["value"] == printed["value"]
    assert entry(frame, status="as printed", benchmark="ruler", alpha=None)["value"] == 94.59  # its table 4
    assert {column.group for column in table.grid.columns} == {"", "paper"}
    assert grid_rows(table)["full cache"][-3:] == (("94.59",), ("45.87",), ("0.288",))


def test_the_papers_difference_is_that_of_its_printed_numbers():
    table = table05(memory_source(needle_scores()))
    assert entry(table.frame, status="from printed values", benchmark="ruler")["value"] == 21.63
    assert grid_rows(table)["0.8 minus 0"][-3:] == (("+21.63",), ("+1.77",), ("-0.002",))


def test_an_incomplete_cell_shows_its_denominator_and_no_number():
    scores = needle_scores(n=8)
    scores["vt", 0.3] = [None, *scores["vt", 0.3][1:]]
    table = table05(memory_source(scores))
    row = entry(table.frame, source="ours", task="vt", alpha=0.3, quantity="score")
    assert pd.isna(row["value"])
    assert row["status"] == "incomplete 7/8"
    mean = entry(table.frame, source="ours", task="mean", alpha=0.3, quantity="score")
    assert (pd.isna(mean["value"]), mean["status"]) == (True, "incomplete 15/16")
    assert ("incomplete", "7/8") in grid_rows(table)["0.3"]
    assert entry(table.frame, source="ours", task="vt", alpha=0.6, quantity="score")["status"] == "ok"


def test_a_cell_without_records_is_incomplete_and_one_not_planned_is_not_run():
    scores = needle_scores(tasks=("vt",), n=4)
    emptied = memory_source(scores | {("vt", 0.3): [None] * 4})
    found = entry(table05(emptied).frame, source="ours", task="vt", alpha=0.3, quantity="score")
    assert found["status"] == "incomplete 0/4"
    del scores["vt", 0.3]
    table = table05(memory_source(scores))
    assert entry(table.frame, source="ours", task="vt", alpha=0.3, quantity="score")["status"] == "not run"
    assert entry(table.frame, source="paper", benchmark="ruler", alpha=0.3)["value"] == 63.55
    assert grid_rows(table)["0.3"][0] == ()


def test_a_task_at_the_floor_is_marked_and_kept():
    scores = needle_scores(tasks=("vt", "niah_multikey_3"), n=20)
    scores |= {("niah_multikey_3", alpha): [0.0] * 20 for alpha in (None, *ALPHAS)}
    table = table05(memory_source(scores))
    row = entry(table.frame, source="ours", task="niah_multikey_3", alpha=0.8, quantity="score")
    assert row["value"] == 0.0
    assert row["note"].startswith("floor")
    assert pd.isna(entry(table.frame, source="ours", task="vt", alpha=0.8, quantity="score")["note"])
    marked = [column for column in table.grid.columns if any("†" in detail for detail in column.details)]
    assert [column.name for column in marked] == ["niah_multikey_3"] and marked[0].dim
    mean = entry(table.frame, source="ours", task="mean", alpha=0.8, quantity="score")
    assert mean["value"] == pytest.approx(80.0 / 2)  # not dropped: it halves the mean


def test_a_task_without_contrast_is_marked():
    scores = needle_scores(tasks=("vt", "fwe"), n=8)
    scores |= {("fwe", alpha): [1.0, 0.5] * 4 for alpha in (None, *ALPHAS)}
    notes = table05(memory_source(scores)).grid.notes
    assert any("fwe @1024" in note and "no contrast" in note for note in notes)
    assert not any("vt @1024" in note for note in notes)


def test_rows_are_found_by_name_not_by_order():
    source = memory_source(needle_scores())
    table = table05(source)
    cells = list(source.cells)
    random.Random(0).shuffle(cells)
    shuffled = table05(source._replace(cells=tuple(cells)))
    pd.testing.assert_frame_equal(shuffled.frame, table.frame)
    assert shuffled.grid == table.grid


def test_two_settings_in_one_place_are_refused():
    source = memory_source(needle_scores(tasks=("vt",)))
    twin = cell(99, [1.0] * 8, task="vt", method="inertiakv", alpha=0.0, **{"refresh.interval": 4})
    with pytest.raises(ValueError, match="report them apart"):
        table05(source._replace(cells=(*source.cells, twin)))


def test_other_methods_are_left_out():
    source = memory_source(needle_scores(tasks=("vt",)))
    other = cell(99, [1.0] * 8, task="vt", method="h2o")
    mixed = table05(source._replace(cells=(*source.cells, other)))
    pd.testing.assert_frame_equal(mixed.frame, table05(source).frame)


def test_two_lengths_are_two_columns_and_both_count_in_the_mean():
    cells = [
        cell(10 * length + number, values, task=task, length=length, alpha=alpha, method="inertiakv")
        for length in (512, 1024)
        for number, ((task, alpha), values) in enumerate(needle_scores(tasks=("vt",)).items())
        if alpha is not None
    ]
    columns = table05(source_of(cells, "table05")).grid.columns
    assert [(column.name, column.details[0]) for column in columns[:2]] == [("vt", "@512"), ("vt", "@1024")]
    assert columns[2].details == ("tasks=1", "n=16")


def test_frame_types_do_not_depend_on_what_is_missing():
    scores = needle_scores(tasks=("vt",), n=4)
    full = table05(memory_source(scores)).frame
    none = table05(memory_source({key: [None] * 4 for key in scores})).frame
    assert full.dtypes.to_dict() == none.dtypes.to_dict()
    assert none[none["source"] == "ours"]["value"].isna().all()


def test_title_and_notes_carry_scale_backbone_budget_and_records():
    grid = table05(memory_source(needle_scores())).grid
    for text in ("laptop scale", LABEL, "90% compression"):
        assert text in grid.title
    assert any("0123456789ab, recorded 2026-01-02T03:04:05+00:00" in note for note in grid.notes)
