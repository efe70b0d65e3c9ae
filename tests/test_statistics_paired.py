from __future__ import annotations

import itertools

import coverage_of
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from inertia.statistics import holm, mcnemar, paired_difference, sign_flip


def scores(values: list[float] | np.ndarray) -> dict[str, float]:
    return {f"e{place:03d}": float(value) for place, value in enumerate(values)}


def test_unequal_examples_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"1 only in a \(such as \['e002'\]\)"):
        paired_difference(scores([1, 0, 1]), scores([1, 0]))


def test_no_examples_is_none() -> None:
    assert paired_difference({}, {}) is None


def test_pairs_are_matched_by_id_not_by_order() -> None:
    a = scores([0.1, 0.9, 0.4, 0.6])
    b = dict(reversed(scores([0.2, 0.7, 0.4, 0.1]).items()))
    result = paired_difference(a, b)
    assert result == paired_difference(dict(reversed(a.items())), dict(sorted(b.items())))
    assert result.difference == pytest.approx((-0.1 + 0.2 + 0 + 0.5) / 4)
    assert (result.wins, result.losses, result.ties) == (2, 1, 1)


@given(st.lists(st.sampled_from([-3, -1, 0, 0, 1, 2]), min_size=1, max_size=8))
def test_sign_flip_equals_enumeration(values: list[int]) -> None:
    observed = abs(sum(values))
    sums = [
        abs(sum(s * v for s, v in zip(signs, values, strict=True)))
        for signs in itertools.product((-1, 1), repeat=len(values))
    ]
    expected = sum(total >= observed for total in sums) / len(sums)
    p, name = sign_flip(values)
    assert name == "sign-flip" and p == pytest.approx(expected) and p > 0


def test_sign_flip_equals_scipy() -> None:
    values = np.random.default_rng(0).normal(0.4, 1, 12)
    theirs = stats.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert sign_flip(values)[0] == pytest.approx(theirs.pvalue)


def test_sampled_sign_flip_is_near_the_exact_one_and_seeded() -> None:
    values = np.random.default_rng(1).normal(0.35, 1, 18)
    theirs = stats.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf)
    p, name = sign_flip(values, seed=3, resamples=20_000)
    assert name == "sign-flip-sampled" and p == pytest.approx(theirs.pvalue, abs=0.01)
    assert sign_flip(values, seed=3) == sign_flip(values, seed=3)


def test_float_noise_does_not_break_a_tie() -> None:
    # 0.3 - 0.1 and 0.9 - 0.7 differ as floats: without rounding, patterns that tie with the data would not.
    a, b = scores([0.3, 0.6, 0.9, 0.5]), scores([0.1, 0.4, 0.7, 0.7])
    result = paired_difference(a, b)
    assert (result.wins, result.losses) == (3, 1)
    assert result.p == pytest.approx(10 / 16)


@pytest.mark.parametrize("n", [5, 40, 2000])
def test_p_is_never_zero(n: int) -> None:
    ones, zeros = scores([1.0] * n), scores([0.0] * n)
    assert 0 < paired_difference(ones, zeros).p <= 2 * 0.5 ** min(n, 1000)
    sampled = paired_difference(ones, zeros, test="sign-flip", resamples=999)
    assert sampled.p == pytest.approx(2 * 0.5**n if n == 5 else 1 / 1000)


def test_all_ties_say_nothing_and_are_not_certain() -> None:
    result = paired_difference(scores([1, 0, 1] * 4), scores([1, 0, 1] * 4))
    assert result.p == 1.0 and result.ties == 12 and result.difference == 0
    # As if one of 14 pairs had been won and one lost.
    assert result.high == -result.low == pytest.approx(stats.t.ppf(0.975, 13) * (2 / 14 / 14) ** 0.5)


def test_constant_difference_gets_a_width() -> None:
    result = paired_difference(scores([1.0] * 10), scores([0.0] * 10))
    assert result.high == 1.0 and 0 < result.low < 1


@given(wins=st.integers(0, 30), losses=st.integers(0, 30))
def test_mcnemar_is_the_binomial_test_on_discordant_pairs(wins: int, losses: int) -> None:
    n, k = wins + losses, min(wins, losses)
    tail = sum(stats.binom.pmf(i, n, 0.5) for i in range(k + 1))
    assert mcnemar(wins, losses) == pytest.approx(min(1.0, 2 * tail))


def test_mcnemar_equals_sign_flip_on_binary_scores() -> None:
    generator = np.random.default_rng(4)
    a, b = scores(generator.integers(0, 2, 20)), scores(generator.integers(0, 2, 20))
    assert paired_difference(a, b).test == "mcnemar"
    assert paired_difference(a, b).p == pytest.approx(paired_difference(a, b, test="sign-flip").p)


def test_mcnemar_is_refused_where_it_does_not_hold() -> None:
    with pytest.raises(ValueError, match="McNemar"):
        paired_difference(scores([0.5]), scores([1.0]), test="mcnemar")
    with pytest.raises(ValueError, match="McNemar"):
        paired_difference(scores([0]), scores([1]), clusters={"e000": "c"}, test="mcnemar")


def test_scores_outside_the_unit_interval_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        paired_difference(scores([85.0]), scores([80.0]))


def test_clusters_flip_together() -> None:
    a, b = scores([1.0] * 12), scores([0.5] * 12)
    clusters = {name: f"c{place // 4}" for place, name in enumerate(sorted(a))}
    assert paired_difference(a, b).p == pytest.approx(2 / 2**12)
    assert paired_difference(a, b, clusters=clusters).p == pytest.approx(2 / 2**3)


def test_strata_count_once_each() -> None:
    a, b = scores([1.0, 1.0, 0.5, 0.5, 0.5, 0.6]), scores([0.0, 0.0, 0.5, 0.5, 0.5, 0.5])
    strata = {name: "x" if place < 2 else "y" for place, name in enumerate(sorted(a))}
    assert paired_difference(a, b, strata=strata).difference == pytest.approx((1.0 + 0.025) / 2)
    with pytest.raises(ValueError, match="6 examples have no stratum"):
        paired_difference(a, b, strata={})


def test_pairing_finds_what_two_intervals_miss() -> None:
    generator = np.random.default_rng(5)
    hard = generator.random(60) * 0.9
    a, b = scores(np.clip(hard + 0.03 + generator.normal(0, 0.02, 60), 0, 1)), scores(hard)
    result = paired_difference(a, b)
    assert result.low > 0 and result.p < 0.01
    assert stats.ttest_ind(list(a.values()), list(b.values())).pvalue > 0.2


def test_the_interval_is_that_of_bonett_and_price_with_student_s_t() -> None:
    a, b = scores([1, 1, 1, 1, 0, 0, 1, 0] * 3), scores([1, 0, 0, 1, 1, 0, 0, 0] * 3)
    wins, losses, n = 10 / 26, 4 / 26, 26
    half = stats.t.ppf(0.975, 25) * ((wins + losses - (wins - losses) ** 2) / n) ** 0.5
    found = paired_difference(a, b)
    assert (found.low, found.high) == pytest.approx((wins - losses - half, wins - losses + half))


def test_the_interval_scales_with_the_differences() -> None:
    a, b = np.array([1, 1, 0.5, 0.5, 0, 1]), np.array([0, 0.5, 0.5, 1, 0, 0.5])
    large, small = coverage_of.paired(a, b), coverage_of.paired(a / 10, b / 10)
    assert (large.low, large.high) == pytest.approx((10 * small.low, 10 * small.high))


def test_clusters_that_answer_alike_count_once() -> None:
    a, b = np.array([1.0, 0, 1, 1, 0, 1, 1, 0]), np.array([0.0, 0, 1, 0, 1, 0, 1, 0])
    once = coverage_of.paired(a, b)
    four = {f"e{place:03d}": f"c{place // 4}" for place in range(32)}
    repeated = coverage_of.paired(np.repeat(a, 4), np.repeat(b, 4), clusters=four)
    assert (repeated.low, repeated.high) == pytest.approx((once.low, once.high))


@pytest.mark.parametrize("n", coverage_of.SIZES)
def test_paired_proportions_are_covered_for_every_discordance(n: int) -> None:
    shares = (0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 0.95)
    covered = {
        (wins, losses): coverage_of.of_pairs(n, wins, losses)
        for wins in shares
        for losses in shares
        if wins + losses <= 1
    }
    assert min(covered.values()) >= 0.94
    # Where hardly any pair differs, or nearly all are won, it errs to the wide side.
    common = [value for (wins, losses), value in covered.items() if min(wins, losses) >= 0.2]
    assert max(common) <= 0.98 or n < 25


@pytest.mark.parametrize("n", coverage_of.SIZES)
@pytest.mark.parametrize("ties", [0, 0.5, 0.9])
@pytest.mark.parametrize("shape", coverage_of.SCORES)
def test_paired_scores_are_covered_whatever_their_shape(shape: str, ties: float, n: int) -> None:
    draw, _ = coverage_of.SCORES[shape]

    def drawn(generator: np.random.Generator) -> object:
        a, b = draw(generator, n), draw(generator, n)
        return coverage_of.ends(np.where(generator.random(n) < ties, 0, a - b))

    assert coverage_of.of(0.0, 600, drawn) >= 0.93


@pytest.mark.parametrize("n", [8, 25, 50])
@pytest.mark.parametrize("tasks", coverage_of.TASKS)
def test_paired_means_over_tasks_are_covered(tasks: str, n: int) -> None:
    draws = [draw for draw, _ in coverage_of.TASKS[tasks]]

    def drawn(generator: np.random.Generator) -> object:
        # Half of the pairs tie.
        pairs = [draw(generator, n) - draw(generator, n) for draw in draws]
        return coverage_of.ends(*(difference * (generator.random(n) < 0.5) for difference in pairs))

    assert 0.93 <= coverage_of.of(0.0, 600, drawn) <= 0.995


def test_p_values_hold_their_level_and_intervals_cover() -> None:
    rejected = []

    def drawn(generator: np.random.Generator) -> object:
        common = generator.random(50) * 0.6
        found = coverage_of.paired(*(common + 0.4 * generator.random(50) for _ in range(2)), resamples=500)
        rejected.append(found.p <= 0.05)
        return found

    assert 0.93 <= coverage_of.of(0.0, 600, drawn) <= 0.97
    assert np.mean(rejected) <= 0.07


def test_holm_by_hand() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == pytest.approx(
        {"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02}
    )
    assert holm({}) == {}
    with pytest.raises(ValueError, match="'x' is 1.5"):
        holm({"x": 1.5})


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
@settings(deadline=None)
def test_holm_lies_between_raw_and_bonferroni_and_keeps_order(values: list[float]) -> None:
    raw = {str(place): p for place, p in enumerate(values)}
    adjusted = holm(raw)
    assert list(adjusted) == list(raw)
    for name, p in raw.items():
        assert p <= adjusted[name] <= min(1.0, p * len(raw)) + 1e-12
    order = sorted(raw, key=raw.get)
    assert [adjusted[name] for name in order] == sorted(adjusted.values())


def test_holm_keeps_the_family_error() -> None:
    p = np.random.default_rng(7).random((4000, 10))
    false = sum(min(holm({str(i): value for i, value in enumerate(row)}).values()) <= 0.05 for row in p)
    assert false / 4000 <= 0.06
