"""Two policies on the same examples."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from inertia.statistics.interval import RESAMPLES, percentile_ends, wilson
from inertia.statistics.resample import Sample, bootstrap_means

# Up to 2^16 sign patterns are enumerated; beyond that they are drawn.
_EXACT_UNITS = 16


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference a - b over paired examples.

    Attributes:
        difference: mean of a - b (with strata: mean of the strata's means).
        low: lower end of its interval.
        high: upper end.
        n: number of pairs.
        wins: pairs with a > b.
        losses: pairs with a < b.
        ties: the other pairs.
        p: two-sided p-value of "no difference", never 0.
        test: "mcnemar" (exact), "sign-flip" (exact) or "sign-flip-sampled".
        method: how the interval was made, "bootstrap" or "wilson".
        confidence: nominal coverage of the interval.
    """

    difference: float
    low: float
    high: float
    n: int
    wins: int
    losses: int
    ties: int
    p: float
    test: str
    method: str
    confidence: float


def paired_difference(
    a: Mapping[str, float],
    b: Mapping[str, float],
    *,
    seed: int = 0,
    confidence: float = 0.95,
    clusters: Mapping[str, str] | None = None,
    strata: Mapping[str, str] | None = None,
    test: Literal["auto", "mcnemar", "sign-flip"] = "auto",
    resamples: int = RESAMPLES,
) -> PairedDifference | None:
    """Compare scores in [0, 1] of two policies, example id -> score; None for no examples.

    The interval is the percentile bootstrap over pairs, over clusters (id -> cluster) and within strata (id
    -> task; each task then counts once). Where resampling cannot move the difference, Wilson's bound takes
    its place: if no pair differs, at most a share u of all pairs does, and |difference| <= u.

    The p-value is exact McNemar (`scipy.stats.binomtest` on the pairs that differ) when every score is 0 or 1
    and there are neither clusters nor strata; otherwise the signs of the differences are flipped, per
    cluster, in all 2^m ways for m <= 16 units that differ, beyond that in `resamples` random ways with (1 +
    hits) / (1 + draws). A pattern as extreme as the data counts as a hit, the data's own included: p is never
    0, and 1 if all pairs tie.

    Raises:
        ValueError: when the two id sets differ (a mean over what both happen to have is no comparison), a
        score
            is outside [0, 1], an id has no cluster or stratum, or McNemar is asked for where it does not
            hold.
    """
    ids = _common_ids(a, b)
    if not ids:
        return None
    first, second = (np.array([scores[name] for name in ids], dtype=np.float64) for scores in (a, b))
    both = np.concatenate([first, second])
    if not ((both >= 0) & (both <= 1)).all():
        raise ValueError("scores must be fractions in [0, 1]")
    # Subtraction noise (0.3 - 0.1 against 0.2) must not turn a tie of two sign patterns into a difference.
    differences = np.round(first - second, 12)
    stratum = _labels(strata, ids, "stratum", default="all")
    cluster = _labels(clusters, ids, "cluster", default=None)
    samples = _samples(differences, stratum, cluster)
    low, high, method = _ends(samples, seed, resamples, confidence)
    plain = clusters is None and strata is None and bool(np.isin(both, (0.0, 1.0)).all())
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    if test == "mcnemar" and not plain:
        raise ValueError(
            "McNemar's test is for scores of 0 and 1 without clusters or strata; use test='sign-flip'"
        )
    if test == "mcnemar" or (test == "auto" and plain):
        p, name = mcnemar(wins, losses), "mcnemar"
    else:
        p, name = sign_flip(_unit_sums(samples), seed, resamples)
    return PairedDifference(
        difference=float(np.mean([sample.mean for sample in samples])),
        low=low,
        high=high,
        n=len(ids),
        wins=wins,
        losses=losses,
        ties=len(ids) - wins - losses,
        p=p,
        test=name,
        method=method,
        confidence=confidence,
    )


def mcnemar(wins: int, losses: int) -> float:
    """Return the exact two-sided p-value of McNemar's test; 1 when no pair differs, for ties say nothing."""
    from scipy.stats import binomtest

    if wins + losses == 0:
        return 1.0
    # Beyond some 1,070 pairs on one side 2 * 0.5^n underflows to 0, which no p-value is.
    return max(float(binomtest(wins, wins + losses, 0.5).pvalue), sys.float_info.min)


def sign_flip(
    values: Sequence[float] | np.ndarray, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float, str]:
    """Return the two-sided p-value of the sum of `values` under random signs, and the name of the test.

    Own code, because `scipy.stats.permutation_test` has no way to leave out zeros, which change no sum but
    make the enumeration impossible; the tests compare the two.
    """
    units = np.asarray(values, dtype=np.float64)
    units = units[units != 0]
    if units.size == 0:
        return 1.0, "sign-flip"
    size = np.abs(units)
    bar = abs(units.sum()) - 1e-9 * size.sum()
    if units.size <= _EXACT_UNITS:
        patterns = (np.arange(2**units.size)[:, None] >> np.arange(units.size)) & 1
        return float((np.abs((2 * patterns - 1) @ size) >= bar).mean()), "sign-flip"
    generator = np.random.default_rng(seed)
    hits, block = 0, max(1, 2_000_000 // units.size)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        signs = 2.0 * generator.integers(0, 2, size=(rows, units.size)) - 1.0
        hits += int((np.abs(signs @ size) >= bar).sum())
    return (1 + hits) / (1 + resamples), "sign-flip-sampled"


def _common_ids(a: Mapping[str, float], b: Mapping[str, float]) -> list[str]:
    if set(a) != set(b):
        only_a, only_b = sorted(set(a) - set(b)), sorted(set(b) - set(a))
        raise ValueError(
            f"the two sides have different examples: {len(only_a)} only in a (such as {only_a[:3]}), "
            f"{len(only_b)} only in b (such as {only_b[:3]}); compare complete cells of the same examples"
        )
    return sorted(a)


def _labels(mapping: Mapping[str, str] | None, ids: list[str], what: str, default: str | None) -> list[str]:
    if mapping is None:
        return [name if default is None else default for name in ids]
    missing = [name for name in ids if name not in mapping]
    if missing:
        raise ValueError(f"{len(missing)} examples have no {what}, such as {missing[:3]}")
    return [mapping[name] for name in ids]


def _samples(differences: np.ndarray, stratum: list[str], cluster: list[str]) -> list[Sample]:
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(stratum):
        groups.setdefault(name, []).append(place)
    return [
        Sample.of(differences[places], [cluster[place] for place in places])
        for _, places in sorted(groups.items())
    ]


def _unit_sums(samples: list[Sample]) -> np.ndarray:
    # Each stratum counts once, so a difference weighs 1 / (strata x examples of its stratum).
    return np.concatenate([np.round(sample.sums, 12) / sample.n for sample in samples])


def _ends(samples: list[Sample], seed: int, resamples: int, confidence: float) -> tuple[float, float, str]:
    if not all(sample.constant for sample in samples):
        return *percentile_ends(bootstrap_means(samples, seed, resamples), confidence), "bootstrap"
    units = sum(len(sample.counts) for sample in samples)
    mean = float(np.mean([sample.mean for sample in samples]))
    if all(not sample.values.any() for sample in samples):
        bound = wilson(0, units, confidence)[1]
        return -bound, bound, "wilson"
    low, high = wilson((mean + 1) / 2 * units, units, confidence)
    return 2 * low - 1, 2 * high - 1, "wilson"
