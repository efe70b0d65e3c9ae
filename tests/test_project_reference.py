from __future__ import annotations

import pytest

from inertia.paper.reference import RULER_TASKS, names, reference


def test_every_stored_table_loads_by_name():
    assert len(names()) == 16
    for name in names():
        frame = reference(name)
        assert len(frame) >= 6
        assert not frame.isna().all(axis=1).any()


def test_a_number_a_short_name_and_a_full_name_are_the_same_table():
    assert reference(5).equals(reference("table05"))
    assert reference(5).equals(reference("table05_alpha"))
    assert reference(12)["delta"].tolist() == reference("table12_cumulative_minus_ema")["delta"].tolist()


@pytest.mark.parametrize("table", [0, 6, 15, "table", "table5", "alpha", ""])
def test_unknown_tables_are_refused_with_the_list(table):
    with pytest.raises(KeyError, match="table05_alpha"):
        reference(table)


def test_pinned_values_of_the_paper():
    sweep = reference(5).set_index(["benchmark", "alpha"])["value"]
    assert sweep["ruler", 0.0] == 53.97
    assert sweep["ruler", 0.8] == 75.6
    assert sweep["longbench_v2", 0.3] == 0.298
    assert len(sweep) == 18


def test_alphas_are_numbers_and_the_full_cache_has_none():
    frame = reference(4)
    assert frame["alpha"].dtype.kind == "f"
    assert frame.loc[frame["method"] == "full_cache", "alpha"].isna().all()
    assert frame.loc[frame["method"] == "inertiakv", "alpha"].notna().all()


def test_text_stays_text():
    assert set(reference("efficiency")["context"].astype(str)) >= {"64k"}
    assert (reference(11)["backbone"] == "(not stated)").all()


def test_the_thirteen_ruler_tasks():
    assert len(RULER_TASKS) == len(set(RULER_TASKS)) == 13
