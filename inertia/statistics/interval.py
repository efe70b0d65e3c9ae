"""How sure a mean is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from inertia.statistics.resample import Sample, bootstrap_means

RESAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval, and how that was computed.

    Attributes:
        mean: the mean of the values.
        low: lower end.
        high: upper end.
        n: number of values.
        method: "bootstrap", "wilson", "bootstrap+wilson" (row averages with constant tasks) or "constant"
            (equal values outside [0, 1]: the interval has no width and says nothing).
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
    method: Literal["auto", "bootstrap", "wilson"] = "auto",
    seed: int = 0,
    confidence: float = 0.95,
    *,
    clusters: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
) -> Interval | None:
    """Return the mean of per-example scores and its interval, or None for no values (print it as "-").

    "bootstrap" is the percentile bootstrap over examples, or over clusters where `clusters` names one per
    value (examples that share a context are not independent). "wilson" is Wilson's interval. "auto" takes
    Wilson for values that are all 0 or 1 (without clusters) and the bootstrap otherwise. A bootstrap of equal
    values has no width, which would claim certainty: it is replaced by Wilson's interval with n = number of
    clusters; since the variance of values in [0, 1] is at most that of a coin with their mean, that errs to
    the wide side.

    The result is a function of the arguments alone: the generator is seeded here and no global one is
    touched.

    Raises:
        ValueError: for NaN or infinite values, a confidence outside (0, 1), clusters of another length, or
            "wilson" for values outside [0, 1].
    """
    sample = Sample.of(values, clusters)
    _check_confidence(confidence)
    if method not in ("auto", "bootstrap", "wilson"):
        raise ValueError(f"method is {method!r}: expected 'auto', 'bootstrap' or 'wilson'")
    if sample.n == 0:
        return None
    binary = clusters is None and bool(np.isin(sample.values, (0.0, 1.0)).all())
    if method == "wilson" or (method == "auto" and binary) or sample.constant:
        return _without_spread(sample, confidence, forced=method == "wilson")
    low, high = percentile_ends(bootstrap_means([sample], seed, resamples), confidence)
    return Interval(sample.mean, low, high, sample.n, "bootstrap", confidence)


def macro_mean(
    groups: Mapping[str, Sequence[float]],
    seed: int = 0,
    confidence: float = 0.95,
    *,
    clusters: Mapping[str, Sequence[str]] | None = None,
    resamples: int = RESAMPLES,
) -> Interval | None:
    """Return the mean of the tasks' means, each counting once, and its interval; None if a task is empty.

    Stratified bootstrap: examples (or clusters) are resampled within their task. Tasks whose values are all
    equal have no spread to resample; their Wilson half-widths are added in quadrature (the MOVER rule:
    squared distances of the ends from the mean add up as variances do), so that a row of perfect scores is
    not reported as certain.

    Raises:
        ValueError: as `interval`.
    """
    _check_confidence(confidence)
    by_task = clusters if clusters is not None else {}
    samples = [Sample.of(values, by_task.get(task)) for task, values in groups.items()]
    if not samples or any(sample.n == 0 for sample in samples):
        return None
    mean = sum(sample.mean for sample in samples) / len(samples)
    below = above = 0.0
    methods = []
    varying = [sample for sample in samples if not sample.constant]
    if varying:
        share = len(varying) / len(samples)
        centre = sum(sample.mean for sample in varying) / len(varying)
        low, high = percentile_ends(bootstrap_means(varying, seed, resamples), confidence)
        below, above = (share * (centre - low)) ** 2, (share * (high - centre)) ** 2
        methods.append("bootstrap")
    for sample in samples:
        if sample.constant:
            part = _without_spread(sample, confidence, forced=False)
            below += ((part.mean - part.low) / len(samples)) ** 2
            above += ((part.high - part.mean) / len(samples)) ** 2
            methods.append(part.method)
    n = sum(sample.n for sample in samples)
    ends = mean - math.sqrt(below), mean + math.sqrt(above)
    return Interval(mean, *ends, n, "+".join(dict.fromkeys(methods)), confidence)


def wilson(successes: float, n: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion; `successes` may be fractional (a sum of scores).

    In closed form, for `scipy.stats.binomtest(...).proportion_ci(method="wilson")` takes integers only.

    Raises:
        ValueError: unless 0 <= successes <= n and n > 0.
    """
    _check_confidence(confidence)
    if not (n > 0 and 0 <= successes <= n):
        raise ValueError(f"successes={successes}, n={n}: expected 0 <= successes <= n and n > 0")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # The ends are exact where the formula is: rounding must not leave 0.9999999 above a perfect score.
    low = 0.0 if share == 0 else max(0.0, centre - half)
    high = 1.0 if share == 1 else min(1.0, centre + half)
    return min(low, share), max(high, share)


def percentile_ends(means: np.ndarray, confidence: float) -> tuple[float, float]:
    """Return the two percentiles of bootstrap means ([R]) that leave `confidence` between them."""
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def format_interval(result: Interval | None, *, scale: float = 100.0, digits: int = 1) -> str:
    """Return "85.0 [62.1, 96.8]" (n = 0: "-"), scaled to percent points by default."""
    if result is None:
        return "-"
    mean, low, high = (f"{scale * value:.{digits}f}" for value in (result.mean, result.low, result.high))
    return f"{mean} [{low}, {high}]"


def _without_spread(sample: Sample, confidence: float, *, forced: bool) -> Interval:
    inside = bool(((sample.values >= 0) & (sample.values <= 1)).all())
    if not inside and forced:
        raise ValueError("Wilson's interval is for values in [0, 1]; use method='bootstrap'")
    if not inside:
        return Interval(sample.mean, sample.mean, sample.mean, sample.n, "constant", confidence)
    units = len(sample.counts)
    low, high = wilson(min(sample.mean, 1.0) * units, units, confidence)
    return Interval(sample.mean, low, high, sample.n, "wilson", confidence)


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}: expected a fraction between 0 and 1, such as 0.95")
