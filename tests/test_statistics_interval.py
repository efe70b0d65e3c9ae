from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from inertia.statistics import format_interval, interval, macro_mean, wilson
from inertia.statistics.resample import Sample, bootstrap_means

SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=40)


def test_no_values_is_a_dash() -> None:
    assert interval([]) is None
    assert format_interval(interval([])) == "-"
    assert macro_mean({}) is None
    assert macro_mean({"a": [0.5, 1.0], "b": []}) is None


@given(successes=st.integers(0, 60), extra=st.integers(0, 60), confidence=st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_equals_scipy(successes: int, extra: int, confidence: float) -> None:
    n = successes + extra
    if n == 0:
        return
    expected = stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    assert wilson(successes, n, confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_bootstrap_agrees_with_scipy() -> None:
    values = np.random.default_rng(3).beta(2, 3, 40)
    ours = interval(values.tolist(), "bootstrap", seed=1)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=2)
    assert ours.mean == pytest.approx(values.mean())
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.004)


def test_binary_scores_take_wilson_and_fractions_the_bootstrap() -> None:
    assert interval([1.0, 0.0, 1.0]).method == "wilson"
    assert interval([1, 0, 1], "bootstrap").method == "bootstrap"
    assert interval([0.5, 0.0, 1.0]).method == "bootstrap"


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("method", ["auto", "bootstrap"])
def test_equal_scores_never_give_a_zero_width(value: float, method: str) -> None:
    result = interval([value] * 12, method)
    assert result.method == "wilson"
    assert 0 <= result.low <= value <= result.high <= 1
    assert result.high - result.low > 0.1


def test_perfect_scores_touch_one_exactly() -> None:
    result = interval([1.0] * 20)
    assert result.high == 1.0 and result.low == pytest.approx(0.8389, abs=1e-4)
    assert format_interval(result) == "100.0 [83.9, 100.0]"


def test_equal_values_outside_scores_are_marked() -> None:
    assert interval([7.0, 7.0]).method == "constant"


@given(values=SCORES, method=st.sampled_from(["auto", "bootstrap"]))
@settings(deadline=None)
def test_the_interval_holds_the_mean_and_stays_inside_scores(values: list[float], method: str) -> None:
    result = interval(values, method, resamples=200)
    assert -1e-12 <= result.low <= result.mean + 1e-12
    assert result.mean - 1e-12 <= result.high <= 1 + 1e-12


def test_same_seed_same_interval_other_seed_another() -> None:
    values = np.random.default_rng(0).random(30).tolist()
    assert interval(values, seed=5) == interval(values, seed=5)
    assert interval(values, seed=5) != interval(values, seed=6)
    groups = {"a": values[:10], "b": values[10:]}
    assert macro_mean(groups, seed=5) == macro_mean(groups, seed=5)
    assert macro_mean(groups, seed=5) != macro_mean(groups, seed=6)


def test_global_generators_neither_move_nor_matter() -> None:
    values = np.random.default_rng(0).random(30).tolist()
    np.random.seed(1)
    random.seed(1)
    before = np.random.get_state()[1].tobytes(), random.getstate()
    first = interval(values)
    assert (np.random.get_state()[1].tobytes(), random.getstate()) == before
    np.random.seed(2)
    assert interval(values) == first


def test_blocks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Sample.of(np.random.default_rng(0).random(31).tolist())
    whole = bootstrap_means([sample], 7, 500)
    monkeypatch.setattr("inertia.statistics.resample._BLOCK", 31 * 17)
    np.testing.assert_array_equal(bootstrap_means([sample], 7, 500), whole)


def test_clusters_of_one_change_nothing_and_names_do_not_matter() -> None:
    values = np.random.default_rng(0).random(20).tolist()
    plain = interval(values, "bootstrap")
    assert interval(values, "bootstrap", clusters=[f"c{i}" for i in range(20)]) == plain
    assert interval(values, "bootstrap", clusters=[f"z{99 - i}" for i in range(20)]) == plain


def test_shared_contexts_widen_the_interval() -> None:
    generator = np.random.default_rng(0)
    context = generator.random(20)
    values = np.repeat(context, 5).tolist()
    clusters = np.repeat([f"c{i}" for i in range(20)], 5).tolist()
    alone, together = interval(values), interval(values, clusters=clusters)
    assert together.mean == pytest.approx(alone.mean)
    ratio = (together.high - together.low) / (alone.high - alone.low)
    assert ratio == pytest.approx(5**0.5, rel=0.15)


def test_perfect_scores_in_clusters_count_clusters() -> None:
    result = interval([1.0] * 20, clusters=["a", "b"] * 10)
    assert result.low == pytest.approx(wilson(2, 2)[0])


def test_macro_mean_counts_each_task_once() -> None:
    groups = {"small": [0.0, 1.0], "large": [1.0, 0.5] * 50}
    assert macro_mean(groups).mean == pytest.approx((0.5 + 0.75) / 2)


def test_macro_mean_of_one_task_is_its_interval() -> None:
    values = np.random.default_rng(0).random(30).tolist()
    one = macro_mean({"a": values}, seed=3)
    assert (one.low, one.high) == pytest.approx(
        tuple(interval(values, seed=3).__dict__[k] for k in ("low", "high"))
    )


def test_macro_mean_of_perfect_tasks_is_not_certain() -> None:
    one = macro_mean({"a": [1.0] * 20})
    four = macro_mean({name: [1.0] * 20 for name in "abcd"})
    assert (one.low, one.high) == pytest.approx(wilson(20, 20))
    assert 1 - four.low == pytest.approx((1 - one.low) / 2)
    mixed = macro_mean({"a": [1.0] * 20, "b": [0.2, 0.9] * 10})
    varying = interval([0.2, 0.9] * 10)
    assert mixed.method == "bootstrap+wilson"
    assert mixed.mean - mixed.low > (varying.mean - varying.low) / 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(values=[0.1, float("nan")]), "nan"),
        (dict(values=[0.1], confidence=95), "95"),
        (dict(values=[0.1], clusters=["a", "b"]), "2 clusters for 1"),
        (dict(values=[2.0], method="wilson"), r"\[0, 1\]"),
        (dict(values=[0.1], method="bca"), "bca"),
    ],
)
def test_wrong_input_is_refused_by_value(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        interval(**arguments)


def _coverage(hits: list[bool]) -> float:
    return sum(hits) / len(hits)


def test_bootstrap_covers_at_its_level() -> None:
    generator = np.random.default_rng(11)
    hits = []
    for trial in range(1500):
        values = generator.beta(2, 1.5, 80)
        result = interval(values, "bootstrap", seed=trial, resamples=600)
        hits.append(result.low <= 2 / 3.5 <= result.high)
    assert 0.93 <= _coverage(hits) <= 0.97


def test_wilson_covers_at_its_level_on_average() -> None:
    generator = np.random.default_rng(12)
    shares = generator.random(4000)
    draws = generator.binomial(40, shares)
    hits = [
        low <= share <= high
        for share, (low, high) in zip(shares, (wilson(k, 40) for k in draws), strict=True)
    ]
    assert 0.93 <= _coverage(hits) <= 0.97


def test_macro_mean_and_clusters_cover_at_their_level() -> None:
    generator = np.random.default_rng(13)
    macro, clustered, naive = [], [], []
    names = np.repeat([f"c{i}" for i in range(60)], 4).tolist()
    for trial in range(800):
        groups = {"a": generator.beta(2, 2, 60), "b": generator.beta(5, 2, 40)}
        result = macro_mean(groups, seed=trial, resamples=500)
        macro.append(result.low <= (0.5 + 5 / 7) / 2 <= result.high)
        values = np.repeat(generator.beta(2, 2, 60), 4) * 0.8 + generator.beta(2, 2, 240) * 0.2
        result = interval(values, seed=trial, clusters=names, resamples=500)
        clustered.append(result.low <= 0.5 <= result.high)
        result = interval(values, seed=trial, resamples=500)
        naive.append(result.low <= 0.5 <= result.high)
    assert 0.93 <= _coverage(macro) <= 0.97
    assert 0.925 <= _coverage(clustered) <= 0.97
    assert _coverage(naive) < 0.8
