"""How sure a mean is.

Scores lie in [0, 1], are few (8 to 200), and often all alike, where resampling and mean +- 2 errors claim too much. All
intervals of scores here are Wilson's, in one of three forms:

* scores of 0 and 1: of the n scores, with the lower end of 1 to 3 hits (and the upper end of as many misses) moved out
  to the Poisson one, where Wilson's own covers 85% (the modified interval of Brown, Cai and DasGupta 2001,
  "Interval Estimation for a Binomial Proportion");
* other scores, clusters, and means over tasks: of the effective sample size m (1 - m) / variance(m), with the quantile
  of Student's t in place of the normal one, as surveys do it (Franco, Little, Louis and Slud 2019, "Comparative Study
  of Confidence Intervals for Proportions in Complex Sample Surveys");
* scores that are all alike, which show no spread: of the number of clusters. The variance of values in [0, 1] is at
  most that of a coin with their mean, so this errs to the wide side.

No library that we depend on has the last two (statsmodels, which we would take for this alone, has none of them for
scores that are no counts); scipy gives the quantiles. An interval is shown for every n of at least 1: it never leaves
[0, 1], and the tests simulate its coverage at n = 1, 2, 3, 5, 8, 25, 50 and 200.
Other quantities (`bounded=False`: a divergence, a log-likelihood) have Student's interval, from two on; equal
values have none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from inertia.statistics.sample import Sample


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval, and how that was computed.

    Attributes:
        mean: the mean of the values.
        low: lower end, NaN where there is none.
        high: upper end, likewise.
        n: number of values.
        method: "wilson" (0 and 1, or all alike), "wilson-t" (with the effective sample size), "t" (quantities
            that are not bounded) or "constant" (such values, all alike: no interval).
        confidence: nominal coverage.
    """

    mean: float
    low: float
    high: float
    n: int
    method: str
    confidence: float


def interval(
    values: Sequence[float],
    confidence: float = 0.95,
    *,
    clusters: Sequence[str] | None = None,
    bounded: bool = True,
) -> Interval | None:
    """Return the mean of per-example scores and its interval, or None for no values (print it as "-").

    Args:
        values: scores.
        confidence: nominal coverage.
        clusters: names one cluster per value: examples that share a context are not independent.
        bounded: whether the quantity lies in [0, 1], as scores do; what it measures says so, not the values at hand.

    Raises:
        ValueError: for NaN or infinite values, values outside [0, 1] that are said to be bounded, a confidence outside
            (0, 1), or clusters of another length.
    """
    sample = Sample.of(values, clusters)
    _check_confidence(confidence)
    if bounded and sample.n and sample.units == sample.n and np.isin(sample.values, (0.0, 1.0)).all():
        ends = proportion(int(sample.values.sum()), sample.n, confidence)
        return Interval(sample.mean, *ends, sample.n, "wilson", confidence)
    return _of_samples([sample], confidence, bounded)


def macro_mean(
    groups: Mapping[str, Sequence[float]],
    confidence: float = 0.95,
    *,
    clusters: Mapping[str, Sequence[str]] | None = None,
    bounded: bool = True,
) -> Interval | None:
    """Return the mean of the tasks' means, each counting once, and its interval; None if a task is empty.

    A task whose values are all alike shows no spread: it takes the variance that it would have with half a hit and half
    a miss more, so that a row of perfect scores is not reported as certain.

    Raises:
        ValueError: as `interval`.
    """
    _check_confidence(confidence)
    by_task = clusters or {}
    return _of_samples([Sample.of(values, by_task.get(task)) for task, values in groups.items()], confidence, bounded)


def wilson(share: float, n: float, confidence: float = 0.95, freedom: float = math.inf) -> tuple[float, float]:
    """Return Wilson's score interval of a share in [0, 1] of n independent scores.

    In closed form, for `scipy.stats.binomtest(...).proportion_ci(method="wilson")` takes integers only.

    Args:
        share: the mean.
        n: number of scores, or effective number; above 0.
        confidence: nominal coverage.
        freedom: degrees of freedom of Student's t, whose quantile it takes.

    Raises:
        ValueError: a share outside [0, 1], or no scores.
    """
    _check_confidence(confidence)
    if not (n > 0 and 0 <= share <= 1):
        raise ValueError(f"share={share}, n={n}: expected a share in [0, 1] and n > 0")
    quantile = t_quantile(confidence, freedom)
    weight = quantile * quantile / n
    centre = (share + weight / 2) / (1 + weight)
    half = math.sqrt(weight * share * (1 - share) + weight * weight / 4) / (1 + weight)
    # The ends are exact where the formula is: rounding must not leave 0.9999999 above a perfect score.
    low = 0.0 if share == 0 else max(0.0, centre - half)
    high = 1.0 if share == 1 else min(1.0, centre + half)
    return min(low, share), max(high, share)


def proportion(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's interval of a proportion, with Poisson's end where one to three scores are unlike the others.

    Raises:
        ValueError: unless 0 <= successes <= n and n > 0.
    """
    low, high = wilson(successes / n if n else math.nan, n, confidence)
    few = 2 if n <= 50 else 3
    if 1 <= successes <= few:
        low = min(low, _poisson_low(successes, n, confidence))
    if 1 <= n - successes <= few:
        high = max(high, 1 - _poisson_low(n - successes, n, confidence))
    return low, high


def t_quantile(confidence: float, freedom: float) -> float:
    """Return the quantile of Student's t, or for infinite freedom of the normal distribution, two-sided."""
    from scipy.special import ndtri, stdtrit

    level = (1 + confidence) / 2
    return float(ndtri(level) if math.isinf(freedom) else stdtrit(freedom, level))


def format_interval(result: Interval | None, *, scale: float = 100.0, digits: int = 1) -> str:
    """Return "85.0 [62.1, 96.8]" (n = 0: "-"; no ends: "[-]"), scaled to percent points by default."""
    if result is None:
        return "-"
    mean, low, high = (f"{scale * value:.{digits}f}" for value in (result.mean, result.low, result.high))
    return f"{mean} [-]" if math.isnan(result.low) else f"{mean} [{low}, {high}]"


def _of_samples(samples: Sequence[Sample], confidence: float, bounded: bool) -> Interval | None:
    """Return the interval of the mean of the samples' means; None where one of them, or the list, is empty."""
    if not samples or any(sample.n == 0 for sample in samples):
        return None
    tasks, n = len(samples), sum(sample.n for sample in samples)
    mean = sum(sample.mean for sample in samples) / tasks
    for value in (value for sample in samples for value in sample.values if bounded and not 0 <= value <= 1):
        raise ValueError(f"value {value} lies outside [0, 1]; give bounded=False for a quantity that is no share")
    if all(sample.constant for sample in samples):
        if not bounded:
            return Interval(mean, math.nan, math.nan, n, "constant", confidence)
        # With the same share in every task, the variance of the mean is that of so many scores.
        units = tasks**2 / sum(1 / sample.units for sample in samples)
        return Interval(mean, *wilson(min(mean, 1.0), units, confidence), n, "wilson", confidence)
    variance = sum(_variance(sample, bounded) for sample in samples) / tasks**2
    freedom = max(1, sum(sample.units - 1 for sample in samples))
    if not bounded:
        half = t_quantile(confidence, freedom) * math.sqrt(variance)
        return Interval(mean, mean - half, mean + half, n, "t", confidence)
    ends = wilson(mean, mean * (1 - mean) / variance, confidence, freedom)
    return Interval(mean, *ends, n, "wilson-t", confidence)


def _variance(sample: Sample, bounded: bool) -> float:
    if not sample.constant:
        return sample.variance
    share = (sample.mean * sample.units + 0.5) / (sample.units + 1)
    return share * (1 - share) / (sample.units + 1) if bounded else 0.0


def _poisson_low(events: int, n: int, confidence: float) -> float:
    from scipy.special import chdtri

    return float(chdtri(2 * events, confidence)) / (2 * n)


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}: expected a fraction between 0 and 1, such as 0.95")
