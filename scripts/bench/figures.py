"""From timings to figures."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np


def typical(repeats: Sequence[Sequence[float]], period: int = 1, dear: int = 0, share: float = 0.5) -> float:
    """Return the cost of a step: the median, or another quantile, of its time.

    A policy that scores every fourth step has dear steps and cheap ones, and a median of all would hide the dear ones.
    So each kind has a quantile of its own, weighted by how often it comes.

    Args:
        repeats: seconds of consecutive steps, per repeat.
        period: steps of which one is dear, at least 1.
        dear: index of the first dear step of each repeat, below `period`.
        share: which quantile.

    Raises:
        ValueError: a repeat without a dear step.
    """
    fewest = min(map(len, repeats))
    if fewest < period:
        raise ValueError(f"{fewest} timed steps are fewer than a period of {period}; take more steps.")
    costly = [time for times in repeats for time in times[dear::period]]
    cheap = [time for times in repeats for at, time in enumerate(times) if at % period != dear] or [0.0]
    return float(np.quantile(costly, share) + (period - 1) * np.quantile(cheap, share)) / period


def paired(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Return the ratio of one step's cost to another's, per repeat.

    Both were measured within seconds of each other in a repeat, so a machine that slows down slows both. After an
    interrupt the last repeat may be there for one of them only; it does not count.
    """
    return [one / other for one, other in zip(over, under, strict=False)]


def share_beyond(whole: Sequence[float], without: Sequence[float]) -> float:
    """Return the share of a step's time that it takes beyond another step, median over repeats; below 0 is noise."""
    return median(1 - 1 / ratio for ratio in paired(whole, without))


def windows(values: Sequence[float], count: int) -> list[float]:
    """Return the medians of so many windows of equal size; what does not fill the last is left out.

    Raises:
        ValueError: fewer values than windows.
    """
    size = len(values) // count
    if size == 0:
        raise ValueError(f"{len(values)} values do not fill {count} windows; take more steps.")
    return [median(values[at * size : (at + 1) * size]) for at in range(count)]


def slope(values: Sequence[float]) -> float:
    """Return the least-squares slope of equally spaced values, from the first to the last, relative to their mean.

    0.05 means that the fitted line ends 5% of the mean above where it began.
    """
    per_step = np.polyfit(range(len(values)), values, 1)[0]
    return float(per_step * (len(values) - 1) / np.mean(values))
