from __future__ import annotations

import pytest
from reports_data import ALPHAS, LABEL, memory_source, needle_scores

from inertia.paper.figure09 import FIGURE09
from inertia.reports import build_figure
from inertia.reports.plotting import curves, rendered
from inertia.reports.tidy import tidy_rows


def drawn(panel, scores):
    return curves(FIGURE09, FIGURE09.panels[panel], tidy_rows(memory_source(scores), FIGURE09.table))[0]


def test_the_papers_curves_are_its_table_over_their_maximum():
    ruler, longbench, second = drawn(0, needle_scores())
    assert ruler.x == ALPHAS
    assert ruler.values[0] == pytest.approx(53.97 / 78.72)
    assert ruler.values[3] == pytest.approx(75.6 / 78.72)
    assert longbench.values[4] == 1.0
    assert second.values[1] == 1.0
    assert ruler.low == ()


def test_our_curves_are_scores_and_intervals_over_the_largest_score():
    found = drawn(1, needle_scores(tasks=("vt",), n=8))
    assert [curve.label for curve in found] == ["mean (tasks = 1)", "vt @1024"]
    vt = found[1]
    # floor(alpha * 8) of 8 are solved: 0, 2, 4, 6, 7, 7
    assert vt.values == pytest.approx((0, 2 / 7, 4 / 7, 6 / 7, 1, 1))
    assert vt.low[0] == 0
    assert vt.high[0] > 0
    assert all(low <= value <= high for low, value, high in zip(vt.low, vt.values, vt.high, strict=True))


def test_incomplete_points_are_gaps_and_flat_zero_curves_are_left_out():
    scores = needle_scores(tasks=("vt", "cwe"), n=8)
    scores["vt", 0.3] = [None, *scores["vt", 0.3][1:]]
    scores |= {("cwe", alpha): [0.0] * 8 for alpha in ALPHAS}
    found = {curve.label: curve for curve in drawn(1, scores)}
    assert 0.3 not in found["vt @1024"].x
    assert 0.3 not in found["mean (tasks = 2)"].x
    assert "cwe @1024" not in found
    figure = build_figure(FIGURE09, memory_source(scores))
    assert "not drawn (uninformative at this scale): cwe @1024" in figure.get_supxlabel()


def test_the_figure_names_scale_backbone_and_records():
    figure = build_figure(FIGURE09, memory_source(needle_scores()))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert "Llama-3.1-8B-Instruct" in titles[0]
    assert "laptop scale" in titles[1]
    assert LABEL in titles[1]
    assert "8 examples per point, 95% intervals" in titles[1]
    assert "0123456789ab" in figure.get_supxlabel()


def test_no_interval_is_cut_off():
    scores = needle_scores(tasks=("vt",), n=4)
    highest = max(end for curve in drawn(1, scores) for end in curve.high)
    assert highest > 1
    for axes in build_figure(FIGURE09, memory_source(scores)).axes:
        assert axes.get_ylim()[0] < 0
        assert axes.get_ylim()[1] > highest


def test_files_are_byte_identical_and_free_of_dates_and_user_settings():
    import matplotlib

    source = memory_source(needle_scores(tasks=("vt",), n=4))
    first = rendered(build_figure(FIGURE09, source))
    with matplotlib.rc_context({"savefig.dpi": 40, "savefig.facecolor": "red", "lines.linewidth": 9}):
        second = rendered(build_figure(FIGURE09, source))
    assert first == second
    assert first["png"].startswith(b"\x89PNG")
    assert first["pdf"].startswith(b"%PDF")
    assert b"CreationDate" not in first["pdf"]


def test_nothing_complete_still_draws():
    scores = {key: [None] * 4 for key in needle_scores(tasks=("vt",))}
    figure = build_figure(FIGURE09, memory_source(scores))
    assert any("no complete curve" in text.get_text() for text in figure.axes[1].texts)
