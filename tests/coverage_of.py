"""How often intervals hold the truth: by enumeration for 0/1 scores, by simulation for others."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

import numpy as np
from scipy import stats

from inertia.statistics import interval, paired_difference
from inertia.statistics.paired import adjusted_ends
from inertia.statistics.sample import Sample

QUARTERS = np.array([0, 0.25, 0.5, 0.75, 1])
Draw = Callable[[np.random.Generator, int], np.ndarray]


def quarters(*weights: float) -> tuple[Draw, float]:
    """Scores in quarters by weight, and their mean."""
    shares = np.array(weights) / sum(weights)
    return lambda generator, n: generator.choice(QUARTERS, n, p=shares), float(QUARTERS @ shares)


def coins(p: float) -> tuple[Draw, float]:
    """Scores of 0 and 1, and their mean."""
    return lambda generator, n: (generator.random(n) < p).astype(float), p


SIZES = (1, 2, 3, 5, 8, 25, 50, 200)
SCORES = {
    "flat": quarters(1, 1, 1, 1, 1),
    "skewed": quarters(1, 1, 2, 4, 12),
    "middling": quarters(1, 4, 10, 4, 1),
    "all or nothing": quarters(5, 1, 1, 1, 5),
    "low": quarters(16, 4, 2, 1, 1),
    "nearly perfect": quarters(1, 0, 0, 3, 46),
    "rare": quarters(40, 5, 2, 1, 2),
}
PERFECT: tuple[Draw, float] = (lambda generator, n: np.ones(n), 1.0)
TASKS = {
    "4 at 90%": [coins(0.9)] * 4,
    "13 at 90%": [coins(0.9)] * 13,
    "13 from 2 to 98%": [coins(p) for p in np.linspace(0.02, 0.98, 13)],
    "quarters": list(SCORES.values()),
    "mixed": [coins(0.95), SCORES["skewed"], coins(0.3), PERFECT, SCORES["nearly perfect"]],
    "nearly all perfect": [coins(0.995)] * 10 + [coins(0.5)] * 3,
}


@cache
def _proportions(n: int) -> tuple[np.ndarray, np.ndarray]:
    found = [interval([1.0] * k + [0.0] * (n - k)) for k in range(n + 1)]
    return np.array([one.low for one in found]), np.array([one.high for one in found])


def of_proportion(n: int, p: float) -> float:
    """Exact coverage of the interval of n coins."""
    low, high = _proportions(n)
    return float(stats.binom.pmf(np.arange(n + 1), n, p)[(low <= p) & (p <= high)].sum())


@cache
def _pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    wins, losses = np.divmod(np.arange((n + 1) ** 2), n + 1)
    keep = wins + losses <= n
    counts = np.stack([wins[keep], losses[keep], n - wins[keep] - losses[keep]], 1)
    ends = [adjusted_ends([Sample.of(np.repeat([1.0, -1.0, 0.0], row))]) for row in counts]
    return counts, np.array(ends)


def of_pairs(n: int, wins: float, losses: float) -> float:
    """Exact coverage of the interval of n paired 0/1 scores of which these shares differ."""
    counts, ends = _pairs(n)
    inside = (ends[:, 0] <= wins - losses + 1e-12) & (wins - losses - 1e-12 <= ends[:, 1])
    return float(stats.multinomial.pmf(counts[inside], n, [wins, losses, 1 - wins - losses]).sum())


def of(truth: float, draws: int, found: Callable[[np.random.Generator], object], seed: int = 0) -> float:
    """Share of draws whose interval (anything with `low` and `high`) holds the truth."""
    generator = np.random.default_rng(seed)
    results = [found(generator) for _ in range(draws)]
    return sum(one.low <= truth + 1e-12 and truth - 1e-12 <= one.high for one in results) / draws


def ends(*differences: np.ndarray) -> object:
    """The interval of the mean of some tasks' mean differences."""
    low, high = adjusted_ends([Sample.of(values) for values in differences])
    return SimpleNamespace(low=low, high=high)


def paired(a: np.ndarray, b: np.ndarray, **options: object) -> object:
    """The paired difference of two arrays of scores; examples are named by place."""
    first, second = ({f"e{place:03d}": float(x) for place, x in enumerate(values)} for values in (a, b))
    return paired_difference(first, second, **options)
