"""One printed number with its interval, asked of `inertia.statistics` in the few ways that reports need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from inertia.statistics import PairedDifference, interval, macro_mean, paired_difference

Values = Mapping[str, float]
"""Example id -> score in [0, 1]."""


class Estimate(NamedTuple):
    """A value with its 95% interval: a score in [0, 1], or a difference in [-1, 1] with p and test."""

    value: float
    low: float
    high: float
    p: float | None = None
    test: str | None = None


def mean(values: Values) -> Estimate | None:
    """Return the mean over examples, None for no examples."""
    found = interval(list(values.values()))
    return None if found is None else Estimate(found.mean, found.low, found.high)


def mean_over(tasks: Sequence[Values]) -> Estimate | None:
    """Return the mean of the tasks' means, resampled within each task; None if a task has no examples."""
    if len(tasks) == 1:
        return mean(tasks[0])
    found = macro_mean({str(position): list(values.values()) for position, values in enumerate(tasks)})
    return None if found is None else Estimate(found.mean, found.low, found.high)


def difference(a: Values, b: Values) -> Estimate | None:
    """Return the mean of a - b, paired by example id; None for no examples."""
    return _paired(paired_difference(a, b))


def mean_difference(a: Sequence[Values], b: Sequence[Values]) -> Estimate | None:
    """Return the mean over tasks of the mean of a - b, paired by example id; both list the same tasks."""
    strata = {f"{task}/{name}": str(task) for task, values in enumerate(a) for name in values}
    return _paired(paired_difference(_flat(a), _flat(b), strata=strata))


def _flat(tasks: Sequence[Values]) -> dict[str, float]:
    return {f"{task}/{name}": value for task, values in enumerate(tasks) for name, value in values.items()}


def _paired(found: PairedDifference | None) -> Estimate | None:
    return None if found is None else Estimate(found.difference, found.low, found.high, found.p, found.test)
