from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from inertia.statistics import holm, mcnemar, paired_difference, sign_flip, wilson


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
    assert (result.low, result.high) == pytest.approx((-wilson(0, 12)[1], wilson(0, 12)[1]))


def test_constant_difference_gets_a_width() -> None:
    result = paired_difference(scores([1.0] * 10), scores([0.0] * 10))
    assert result.high == 1.0 and 0 < result.low < 1 and result.method == "wilson"


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


def test_p_values_hold_their_level_and_intervals_cover() -> None:
    generator = np.random.default_rng(6)
    rejected, covered = 0, 0
    for trial in range(600):
        common = generator.random(50) * 0.6
        a, b = (scores(common + 0.4 * generator.random(50)) for _ in range(2))
        result = paired_difference(a, b, seed=trial, resamples=500)
        rejected += result.p <= 0.05
        covered += result.low <= 0 <= result.high
    assert rejected / 600 <= 0.07
    assert 0.93 <= covered / 600 <= 0.97


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
