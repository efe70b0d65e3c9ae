"""The values of one task, by cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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
        """Build a sample.

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
        _, codes = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
        return cls(array, np.bincount(codes, array), np.bincount(codes).astype(np.float64))

    @property
    def n(self) -> int:
        """Number of values."""
        return len(self.values)

    @property
    def units(self) -> int:
        """Number of clusters: what is independent of one another."""
        return len(self.counts)

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return float(self.values.mean())

    @property
    def constant(self) -> bool:
        """Whether the sample says nothing of its spread: all cluster means are equal."""
        means = self.sums / self.counts
        return bool(np.ptp(means) <= 1e-12 * max(1.0, float(np.abs(means).max())))

    @property
    def variance(self) -> float:
        """Variance of the mean, over at least two clusters; linear in the residuals where clusters differ in size."""
        residuals = self.sums - self.mean * self.counts
        return float((residuals**2).sum()) * self.units / (self.units - 1) / self.n**2
