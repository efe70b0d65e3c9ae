"""Two policies on the same examples."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from inertia.statistics.interval import t_quantile
from inertia.statistics.sample import Sample

RESAMPLES = 10_000
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

    The interval is that of `adjusted_ends`, over clusters (id -> cluster) and within strata (id -> task; each task then
    counts once).

    The p-value is exact McNemar (`scipy.stats.binomtest` on the pairs that differ) when every score is 0 or 1
    and there are neither clusters nor strata; otherwise the signs of the differences are flipped, per
    cluster, in all 2^m ways for m <= 16 units that differ, beyond that in `resamples` random ways with (1 +
    hits) / (1 + draws). A pattern as extreme as the data counts as a hit, the data's own included: p is never
    0, and 1 if all pairs tie.

    Raises:
        ValueError: when the two id sets differ (a mean over what both happen to have is no comparison), a score is
            outside [0, 1], an id has no cluster or stratum, or McNemar is asked for where it does not hold.
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
    difference = float(np.mean([sample.mean for sample in samples]))
    low, high = adjusted_ends(samples, confidence)
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
        difference=difference,
        low=min(low, difference),
        high=max(high, difference),
        n=len(ids),
        wins=wins,
        losses=losses,
        ties=len(ids) - wins - losses,
        p=p,
        test=name,
        confidence=confidence,
    )


def adjusted_ends(samples: Sequence[Sample], confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of the mean of the samples' mean differences, within [-1, 1].

    The adjusted Wald interval: as if one more pair had been won and one more lost (over all strata together), whose
    variance keeps the few pairs that differ in a small sample from claiming too much, and all ties from claiming
    certainty.

    Source: Bonett and Price 2012, "Adjusted Wald Confidence Interval for a Difference of Binomial Proportions Based on
    Paired Data". Own code: of our libraries none has an interval for paired proportions.
    Deviations: for scores other than 0 and 1 the two pairs differ by the root mean square of the differences that are
    not 0; pairs are clusters where there are any; Student's t replaces the normal quantile, without which 0/1 scores
    cover 92% at n = 8.
    """
    means = np.concatenate([sample.sums / sample.counts for sample in samples])
    differ = means[means != 0]
    size = math.sqrt(float((differ**2).mean())) if differ.size else 1.0
    centre = variance = 0.0
    for sample in samples:
        # Clusters of the usual size: 1 / strata of one with each sign.
        weight, count = 1 / len(samples), sample.n / sample.units
        total = sample.n + 2 * weight * count
        mean = float(sample.sums.sum()) / total
        squares = float(((sample.sums - mean * sample.counts) ** 2).sum())
        squares += weight * count**2 * ((size - mean) ** 2 + (size + mean) ** 2)
        centre += mean / len(samples)
        variance += squares / total**2 / len(samples) ** 2
    freedom = max(1, sum(sample.units - 1 for sample in samples) + 2)
    half = t_quantile(confidence, freedom) * math.sqrt(variance)
    return max(-1.0, centre - half), min(1.0, centre + half)


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
