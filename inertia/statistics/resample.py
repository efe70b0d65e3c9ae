"""The bootstrap itself: one seeded generator, clusters resampled within strata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Resamples are drawn in blocks of about this many indices (8 bytes each), whatever the sample size.
_BLOCK = 2_000_000


@dataclass(frozen=True)
class Sample:
    """The values of one stratum, summed by cluster; without clusters every value is one of its own.

    Attributes:
        values: float64 [n].
        sums: sum of the values of each cluster, float64 [C].
        counts: number of values of each cluster, float64 [C].
    """

    values: np.ndarray
    sums: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, values: Sequence[float], clusters: Sequence[str] | None = None) -> Sample:
        """Build a sample; clusters are numbered by first appearance, so their names do not change any draw.

        Raises:
            ValueError: for values that are not finite or clusters of another length.
        """
        array = np.asarray(values, dtype=np.float64).reshape(-1)
        if not np.isfinite(array).all():
            raise ValueError(f"values hold {array[~np.isfinite(array)][0]}: record a failed example instead")
        if clusters is None:
            return cls(array, array, np.ones_like(array))
        if len(clusters) != len(array):
            raise ValueError(f"{len(clusters)} clusters for {len(array)} values: name one cluster per value")
        number = {name: place for place, name in enumerate(dict.fromkeys(clusters))}
        codes = np.array([number[name] for name in clusters], dtype=np.int64)
        size = len(number)
        return cls(
            array, np.bincount(codes, array, size), np.bincount(codes, minlength=size).astype(np.float64)
        )

    @property
    def n(self) -> int:
        """Number of values."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return float(self.values.mean())

    @property
    def constant(self) -> bool:
        """Whether resampling cannot change the mean: all cluster means are equal."""
        means = self.sums / self.counts
        return bool(np.ptp(means) <= 1e-12 * max(1.0, float(np.abs(means).max())))


def bootstrap_means(strata: Sequence[Sample], seed: int, resamples: int) -> np.ndarray:
    """Return bootstrap replicates of the mean over strata of the stratum means, float64 [resamples].

    Own code, because `scipy.stats.bootstrap` knows neither clusters nor strata; without them the tests hold
    the two against each other.
    """
    generator = np.random.default_rng(seed)
    total = np.zeros(resamples)
    for sample in strata:
        size = len(sample.counts)
        block = max(1, _BLOCK // size)
        for start in range(0, resamples, block):
            rows = min(block, resamples - start)
            drawn = generator.integers(0, size, size=(rows, size))
            total[start : start + rows] += sample.sums[drawn].sum(1) / sample.counts[drawn].sum(1)
    return total / len(strata)
