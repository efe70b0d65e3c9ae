from __future__ import annotations

import random

import coverage_of
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from inertia.statistics import format_interval, interval, macro_mean, wilson
from inertia.statistics.interval import proportion

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
    assert wilson(successes / n, n, confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_one_hit_among_few_may_be_luck() -> None:
    low, high = proportion(1, 8)
    assert low == pytest.approx(stats.chi2.ppf(0.05, 2) / 16) and low < wilson(1 / 8, 8)[0]
    assert high == wilson(1 / 8, 8)[1]
    assert proportion(7, 8) == pytest.approx((1 - high, 1 - low))
    assert proportion(3, 50) == wilson(3 / 50, 50) and proportion(3, 51)[0] < wilson(3 / 51, 51)[0]


def test_scores_of_zero_and_one_take_wilson_and_others_their_effective_size() -> None:
    assert interval([1.0, 0.0, 1.0]).method == "wilson"
    values = [0.5, 0.0, 1.0, 0.25]
    found = interval(values)
    size = found.mean * (1 - found.mean) / (np.var(values, ddof=1) / 4)
    assert found.method == "wilson-t"
    assert (found.low, found.high) == wilson(found.mean, size, freedom=3)


def test_many_scores_have_the_interval_of_student() -> None:
    values = np.random.default_rng(3).beta(20, 22, 5000)
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    found = interval(values.tolist())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-5)


def test_values_outside_scores_have_the_interval_of_student() -> None:
    values = np.random.default_rng(3).normal(2, 3, 12)
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    found = interval(values.tolist(), bounded=False)
    assert found.method == "t" and (found.low, found.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("n", [1, 2, 12])
def test_equal_scores_never_give_a_zero_width(value: float, n: int) -> None:
    result = interval([value] * n)
    assert result.method == "wilson"
    assert 0 <= result.low <= value <= result.high <= 1
    assert result.high - result.low > 0.1


def test_perfect_scores_touch_one_exactly() -> None:
    result = interval([1.0] * 20)
    assert result.high == 1.0 and result.low == pytest.approx(0.8389, abs=1e-4)
    assert format_interval(result) == "100.0 [83.9, 100.0]"


def test_the_quantity_decides_the_form_not_its_values() -> None:
    small = [0.01, 0.02, 0.04, 0.03]
    assert interval(small, bounded=False).method == "t" and interval(small).method == "wilson-t"
    with pytest.raises(ValueError, match="1.5 lies outside.*bounded=False"):
        interval([0.5, 1.5])
    with pytest.raises(ValueError, match="bounded=False"):
        macro_mean({"a": [0.5], "b": [-0.5]})


def test_equal_values_outside_scores_are_marked() -> None:
    found = interval([7.0, 7.0], bounded=False)
    assert found.method == "constant" and np.isnan(found.low) and np.isnan(found.high)
    assert format_interval(found, scale=1) == "7.0 [-]"


@given(values=SCORES)
@settings(deadline=None)
def test_the_interval_holds_the_mean_and_stays_inside_scores(values: list[float]) -> None:
    result = interval(values)
    assert -1e-12 <= result.low <= result.mean + 1e-12
    assert result.mean - 1e-12 <= result.high <= 1 + 1e-12


def test_order_does_not_matter() -> None:
    values = (np.random.default_rng(0).integers(0, 5, 30) / 4).tolist()
    assert interval(values) == interval(values[::-1])
    assert macro_mean({"a": values[:10], "b": values[10:]}) == macro_mean({"b": values[10:], "a": values[:10]})


def test_global_generators_neither_move_nor_matter() -> None:
    values = np.random.default_rng(0).random(30).tolist()
    np.random.seed(1)
    random.seed(1)
    before = np.random.get_state()[1].tobytes(), random.getstate()
    first = interval(values)
    assert (np.random.get_state()[1].tobytes(), random.getstate()) == before
    np.random.seed(2)
    assert interval(values) == first


def test_clusters_of_one_change_nothing_and_names_do_not_matter() -> None:
    values = np.random.default_rng(0).random(20).tolist()
    plain = interval(values)
    for names in ([f"c{i}" for i in range(20)], [f"z{99 - i}" for i in range(20)]):
        found = interval(values, clusters=names)
        assert (found.low, found.high) == pytest.approx((plain.low, plain.high))


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
    assert result.low == pytest.approx(wilson(1, 2)[0])


def test_macro_mean_counts_each_task_once() -> None:
    groups = {"small": [0.0, 1.0], "large": [1.0, 0.5] * 50}
    assert macro_mean(groups).mean == pytest.approx((0.5 + 0.75) / 2)


def test_macro_mean_of_one_task_is_its_interval() -> None:
    values = np.random.default_rng(0).random(30).tolist()
    assert macro_mean({"a": values}) == interval(values)


def test_macro_mean_of_perfect_tasks_is_not_certain() -> None:
    one = macro_mean({"a": [1.0] * 20})
    four = macro_mean({name: [1.0] * 20 for name in "abcd"})
    assert (one.low, one.high) == pytest.approx(wilson(1, 20))
    assert (four.low, four.high) == pytest.approx(wilson(1, 80))
    # A short task counts as much as a long one, and tells less.
    assert macro_mean({"a": [1.0] * 4, "b": [1.0] * 76}).low < four.low
    mixed = macro_mean({"a": [1.0] * 20, "b": [0.2, 0.9] * 10})
    varying = interval([0.2, 0.9] * 10)
    assert mixed.method == "wilson-t"
    assert mixed.mean - mixed.low > (varying.mean - varying.low) / 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(values=[0.1, float("nan")]), "nan"),
        (dict(values=[0.1], confidence=95), "95"),
        (dict(values=[0.1], clusters=["a", "b"]), "2 clusters for 1"),
    ],
)
def test_wrong_input_is_refused_by_value(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        interval(**arguments)


@pytest.mark.parametrize(("share", "n"), [(2.0, 8), (-0.1, 8), (0.5, 0)])
def test_a_share_that_is_none_is_refused(share: float, n: int) -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        wilson(share, n)


# ------------------------------------------------------------------------------------------ coverage

GRID = np.linspace(0.001, 0.999, 999)


@pytest.mark.parametrize("n", coverage_of.SIZES)
def test_a_proportion_is_covered_for_every_p(n: int) -> None:
    covered = [coverage_of.of_proportion(n, p) for p in GRID]
    assert min(covered) >= 0.915
    assert 0.95 <= np.mean(covered) <= (0.965 if n >= 8 else 1)


@pytest.mark.parametrize("n", coverage_of.SIZES)
@pytest.mark.parametrize("scores", coverage_of.SCORES)
def test_scores_are_covered_whatever_their_shape(scores: str, n: int) -> None:
    draw, truth = coverage_of.SCORES[scores]
    covered = coverage_of.of(truth, 1000, lambda generator: interval(draw(generator, n)))
    # Few high scores among zeros: what a sample does not hold, no interval knows.
    assert covered >= (0.90 if scores == "rare" else 0.925)
    assert covered <= 0.99 or n < 8


@pytest.mark.parametrize("n", [8, 25, 50])
@pytest.mark.parametrize("tasks", coverage_of.TASKS)
def test_the_macro_mean_is_covered(tasks: str, n: int) -> None:
    draws, truths = zip(*coverage_of.TASKS[tasks], strict=True)

    def drawn(generator: np.random.Generator) -> object:
        return macro_mean({str(task): draw(generator, n) for task, draw in enumerate(draws)})

    assert 0.925 <= coverage_of.of(float(np.mean(truths)), 600, drawn) <= 0.99


def test_clusters_are_covered_and_without_them_too_little_is() -> None:
    names = np.repeat([f"c{i}" for i in range(12)], 4).tolist()

    def drawn(generator: np.random.Generator) -> np.ndarray:
        return np.repeat(generator.beta(2, 2, 12), 4) * 0.8 + generator.beta(2, 2, 48) * 0.2

    clustered = coverage_of.of(0.5, 1000, lambda generator: interval(drawn(generator), clusters=names))
    naive = coverage_of.of(0.5, 1000, lambda generator: interval(drawn(generator)))
    assert 0.93 <= clustered <= 0.97
    assert naive < 0.8
