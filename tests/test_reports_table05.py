from __future__ import annotations

import io
import random
from dataclasses import replace

import pandas as pd
import pytest
from reports_data import ALPHAS, LABEL, memory_source, needle_scores
from rich.console import Console

from inertia.paper.reference import reference
from inertia.reports.markdown import markdown
from inertia.reports.table05 import table05
from inertia.reports.terminal import blocks, show


def entry(frame: pd.DataFrame, **wanted) -> pd.Series:
    """The one row of a report's frame with these values; alpha=None is the full cache."""
    rows = frame
    for column, value in wanted.items():
        rows = rows[rows[column].isna() if value is None else rows[column] == value]
    assert len(rows) == 1, f"{len(rows)} rows for {wanted}"
    return rows.iloc[0]


def shown(grid, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    show(grid, console)
    return console.file.getvalue()


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
    frame = table05(memory_source(scores)).frame
    row = entry(frame, source="ours", task="vt", quantity="difference")
    # alpha 0 solves none, alpha 0.8 six of eight: six wins, no loss, so McNemar's exact p is 2 / 2^6.
    assert row["value"] == 75.0
    assert row["p"] == pytest.approx(2 / 64)
    assert row["test"] == "mcnemar"


def test_holm_corrects_over_the_tasks():
    frame = table05(memory_source(needle_scores(tasks=("vt", "cwe", "fwe"), n=8))).frame
    rows = frame[(frame["quantity"] == "difference") & (frame["task"] != "mean")]
    assert rows["p"].tolist() == pytest.approx([2 / 64] * 3)
    assert rows["p_holm"].tolist() == pytest.approx([6 / 64] * 3)


def test_the_papers_numbers_stand_beside_ours_unchanged():
    table = table05(memory_source(needle_scores()))
    frame = table.frame
    for _, printed in reference(5).iterrows():
        row = entry(frame, source="paper", benchmark=printed["benchmark"], alpha=printed["alpha"])
        assert row["value"] == printed["value"]
    assert entry(frame, source="paper", benchmark="ruler", alpha=None)["value"] == 94.59  # its table 4
    assert {column.group for column in table.grid.columns} == {"", "paper"}


def test_an_incomplete_cell_shows_its_denominator_and_no_number():
    scores = needle_scores(n=8)
    scores["vt", 0.3] = [None, *scores["vt", 0.3][1:]]
    table = table05(memory_source(scores))
    row = entry(table.frame, source="ours", task="vt", alpha=0.3, quantity="score")
    assert pd.isna(row["value"])
    assert row["status"] == "incomplete 7/8"
    mean = entry(table.frame, source="ours", task="mean", alpha=0.3, quantity="score")
    assert (pd.isna(mean["value"]), mean["status"]) == (True, "incomplete 15/16")
    assert "incomplete 7/8" in markdown(table.grid)
    assert entry(table.frame, source="ours", task="vt", alpha=0.6, quantity="score")["status"] == "ok"


def test_a_cell_without_records_is_incomplete_and_one_not_planned_is_not_run():
    scores = needle_scores(tasks=("vt",), n=4)
    source = memory_source(scores)
    emptied = source._replace(samples=source.samples[source.samples["policy.aggregation.alpha"] != 0.3])
    assert (
        entry(table05(emptied).frame, source="ours", task="vt", alpha=0.3, quantity="score")["status"]
        == "incomplete 0/4"
    )
    del scores["vt", 0.3]
    frame = table05(memory_source(scores)).frame
    assert entry(frame, source="ours", task="vt", alpha=0.3, quantity="score")["status"] == "not run"
    assert entry(frame, source="paper", benchmark="ruler", alpha=0.3)["value"] == 63.55


def test_a_task_at_the_floor_is_marked_and_kept():
    scores = needle_scores(tasks=("vt", "niah_multikey_3"), n=20)
    scores |= {("niah_multikey_3", alpha): [0.0] * 20 for alpha in (None, *ALPHAS)}
    table = table05(memory_source(scores))
    row = entry(table.frame, source="ours", task="niah_multikey_3", alpha=0.8, quantity="score")
    assert row["value"] == 0.0
    assert row["note"].startswith("floor")
    assert pd.isna(entry(table.frame, source="ours", task="vt", alpha=0.8, quantity="score")["note"])
    marked = [column for column in table.grid.columns if any("†" in detail for detail in column.details)]
    assert [column.name for column in marked] == ["niah_multikey_3"]
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
    generator = random.Random(0)
    cells = list(source.index.cells)
    generator.shuffle(cells)
    shuffled = source._replace(
        index=replace(source.index, cells=tuple(cells)), samples=source.samples.sample(frac=1, random_state=0)
    )
    pd.testing.assert_frame_equal(table05(shuffled).frame, table.frame)
    assert table05(shuffled).grid == table.grid


def test_an_index_that_swaps_two_policies_is_refused():
    source = memory_source(needle_scores(tasks=("vt",)))
    cells = list(source.index.cells)
    low, high = cells[1], cells[4]
    assert (low.axes["alpha"], high.axes["alpha"]) == (0.0, 0.8)
    cells[1], cells[4] = replace(low, axes=high.axes), replace(high, axes=low.axes)
    with pytest.raises(ValueError, match=r"alpha = 0\.8 but its records say \[0\.0\]"):
        table05(source._replace(index=replace(source.index, cells=tuple(cells))))


def test_two_settings_in_one_place_are_refused():
    source = memory_source(needle_scores(tasks=("vt",)))
    twin = replace(source.index.cells[1], cell_id="cffffffffff")
    with pytest.raises(ValueError, match="report them apart"):
        table05(source._replace(index=replace(source.index, cells=(*source.index.cells, twin))))


def test_the_full_cache_may_be_listed_once_per_alpha_of_a_sweep():
    source = memory_source(needle_scores(tasks=("vt",)))
    full = source.index.cells[0]
    again = replace(full, axes={"method": "full_cache", "alpha": 0.3})
    repeated = source._replace(index=replace(source.index, cells=(*source.index.cells, again)))
    pd.testing.assert_frame_equal(table05(repeated).frame, table05(source).frame)


def test_score_versions_are_not_mixed():
    source = memory_source(needle_scores(tasks=("vt",)))
    versions = [1] * (len(source.samples) - 1) + [2]
    with pytest.raises(ValueError, match="score versions"):
        table05(source._replace(samples=source.samples.assign(score_version=versions)))


def test_examples_beyond_the_plan_do_not_count():
    source = memory_source(needle_scores(tasks=("vt",), n=8))
    extra = source.samples.assign(
        index=source.samples["index"] + 8, example_id=source.samples["example_id"] + "x", score=1.0
    )
    extended = source._replace(samples=pd.concat([source.samples, extra], ignore_index=True))
    pd.testing.assert_frame_equal(table05(extended).frame, table05(source).frame)


def test_two_lengths_are_two_columns():
    short, long = (memory_source(needle_scores(tasks=("vt",)), length=length) for length in (512, 1024))
    cells = tuple(replace(cell, cell_id="d" + cell.cell_id[1:]) for cell in short.index.cells)
    moved = short.samples.assign(cell_id="d" + short.samples["cell_id"].str[1:])
    both = long._replace(
        index=replace(long.index, cells=(*long.index.cells, *cells)),
        samples=pd.concat([long.samples, moved], ignore_index=True),
    )
    names = [(column.name, column.details[0]) for column in table05(both).grid.columns[:2]]
    assert names == [("vt", "@512"), ("vt", "@1024")]
    assert table05(both).grid.columns[2].details == ("tasks=1", "n=16")


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


@pytest.mark.parametrize("width", [80, 100, 140, 200])
def test_the_terminal_table_fits_and_loses_nothing(width):
    grid = table05(
        memory_source(needle_scores(("niah_single_1", "niah_multikey_2", "vt", "cwe", "fwe", "own_task")))
    ).grid
    text = shown(grid, width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    assert sorted(index for block in blocks(grid, width) for index in block) == list(range(len(grid.columns)))
    for row in grid.rows:
        for line in (line for cell in row.cells for line in cell):
            assert line in text
    assert text.count("full cache") >= len(blocks(grid, width))


def test_a_terminal_narrower_than_any_column_still_prints_every_column():
    grid = table05(memory_source(needle_scores(tasks=("vt",)))).grid
    assert blocks(grid, 10) == [[index] for index in range(len(grid.columns))]


def test_markdown_is_one_table_with_equal_rows():
    grid = table05(memory_source(needle_scores())).grid
    lines = [line for line in markdown(grid).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(grid.rows)
    assert {line.count("|") for line in lines} == {len(grid.columns) + 2}
