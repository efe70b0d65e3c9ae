"""Rules that watch a decode and change with it: the paper's two attempts at an adaptive alpha, and a lazy refresh.

A rule is a value; what it has seen of one sequence lives in a watcher that its session owns.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, ClassVar, Protocol

from inertia.eviction import checks
from inertia.eviction.aggregation import CoupledEMA, Linear

if TYPE_CHECKING:
    from torch import Tensor


class Watcher(Protocol):
    """Sees every scored step of one sequence and may change the pair (lam, w) before it is applied."""

    def update(self, scores: Tensor, utility: Tensor, positions: Tensor, budget: int) -> Linear:
        """Return the pair for this step.

        Args:
            scores: layer scores of the filled slots, [K, n].
            utility: utilities before this step, [n].
            positions: true positions of the slots, [n]; a slot may hold another token at the next step.
            budget: tokens that may stay.
        """


def top(values: Tensor, positions: Tensor, count: int) -> frozenset[int]:
    """Return the positions of the `count` highest values [n]."""
    return frozenset(positions[values.topk(min(count, values.shape[0])).indices].tolist())


def apart(first: frozenset[int], second: frozenset[int]) -> float:
    """Return 1 - Jaccard of two sets."""
    return 1.0 - len(first & second) / len(first | second)


@dataclass(frozen=True)
class SelectedEMA:
    """Coupled EMA whose alpha is chosen once, from noise and drift of the first steps.

    sigma is the mean disagreement of the layers' top sets at a step, delta that of the mean score between steps, both
    averaged over the first `window` scored steps after the cut; eta = sigma / delta. Chosen is the alpha of the grid
    that minimises eta^2 (1 - alpha) / (1 + alpha) + (alpha / (1 - alpha))^2: the variance left by averaging plus the
    squared lag behind a drift.

    Source: InertiaKV (arXiv 2609.03515), appendix H (a negative result).
    Deviations: the paper gives no formula from eta to alpha; ours picks 0.8 or 0.95 over the range of eta it reports.
    """

    kind: ClassVar[str] = "selected_ema"
    start: float = 0.8
    grid: tuple[float, ...] = (0.3, 0.6, 0.8, 0.95)
    window: int = 10

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", tuple(self.grid))
        for alpha in (self.start, *self.grid):
            checks.number("alpha", alpha, low=0, high=1, high_open=True)
        if not self.grid:
            raise ValueError("aggregation.grid is empty; give at least one alpha.")
        checks.integer("aggregation.window", self.window, low=1)

    def linear(self, num_layers: int) -> Linear:
        """Return the pair that counts until alpha is chosen."""
        return CoupledEMA(self.start).linear(num_layers)

    def unit(self) -> Linear:
        """Refuse, as the coupled EMA does."""
        return CoupledEMA(self.start).unit()

    def choose(self, eta: float) -> float:
        """Return the alpha of the grid for a noise-to-drift ratio; without any drift the largest."""
        if eta == float("inf"):
            return max(self.grid)
        return min(self.grid, key=lambda alpha: eta**2 * (1 - alpha) / (1 + alpha) + (alpha / (1 - alpha)) ** 2)

    def watcher(self) -> SelectedWatcher:
        """Return what watches one sequence."""
        return SelectedWatcher(self)


class SelectedWatcher:
    """State of `SelectedEMA` for one sequence."""

    def __init__(self, rule: SelectedEMA) -> None:
        self.rule = rule
        self.alpha = rule.start
        self.noise: list[float] = []
        self.drift: list[float] = []
        self.before: frozenset[int] | None = None

    def update(self, scores: Tensor, utility: Tensor, positions: Tensor, budget: int) -> Linear:
        """Measure noise and drift for `window` steps, then choose."""
        if len(self.noise) < self.rule.window:
            pairs = list(combinations([top(layer, positions, budget) for layer in scores], 2))
            self.noise.append(sum(apart(a, b) for a, b in pairs) / max(len(pairs), 1))
            mean = top(scores.mean(dim=0), positions, budget)
            if self.before is not None:
                self.drift.append(apart(mean, self.before))
            self.before = mean
            if len(self.noise) == self.rule.window:
                sigma = sum(self.noise) / len(self.noise)
                delta = sum(self.drift) / max(len(self.drift), 1)
                self.alpha = self.rule.choose(sigma / delta if delta > 0 else float("inf"))
        return CoupledEMA(self.alpha).linear(scores.shape[0])


@dataclass(frozen=True)
class ReactiveEMA:
    """Coupled EMA that turns to a lower alpha while the step's own ranking disagrees with the running one.

    Source: InertiaKV (arXiv 2609.03515), appendix H (a negative result).
    Deviations: threshold and lower alpha are ours.
    """

    kind: ClassVar[str] = "reactive_ema"
    alpha: float = 0.8
    low: float = 0.3
    threshold: float = 0.1

    def __post_init__(self) -> None:
        for name in ("alpha", "low", "threshold"):
            checks.number(name, getattr(self, name), low=0, high=1)

    def linear(self, num_layers: int) -> Linear:
        """Return the pair of the usual alpha."""
        return CoupledEMA(self.alpha).linear(num_layers)

    def unit(self) -> Linear:
        """Refuse, as the coupled EMA does."""
        return CoupledEMA(self.alpha).unit()

    def watcher(self) -> ReactiveWatcher:
        """Return what watches one sequence."""
        return ReactiveWatcher(self)


class ReactiveWatcher:
    """State of `ReactiveEMA`: none beyond the rule."""

    def __init__(self, rule: ReactiveEMA) -> None:
        self.rule = rule

    def update(self, scores: Tensor, utility: Tensor, positions: Tensor, budget: int) -> Linear:
        """Compare the step's mean score with the running utility."""
        # One slot is always about to go, so the sets compared are half the budget: the whole budget hardly differs.
        half = max(1, budget // 2)
        gap = apart(top(scores.mean(dim=0), positions, half), top(utility, positions, half))
        alpha = self.rule.low if gap > self.rule.threshold else self.rule.alpha
        return CoupledEMA(alpha).linear(scores.shape[0])


@dataclass(frozen=True)
class AdaptiveRefresh:
    """Refresh less often while refreshing changes little.

    The change is the total variation between the utilities, normalised to sum 1, before and after a refresh. Below
    `low` the interval doubles, up to `longest`; above `high` it falls back to 1.

    Source: ours.
    """

    kind: ClassVar[str] = "adaptive"
    low: float = 0.02
    high: float = 0.1
    longest: int = 16

    def __post_init__(self) -> None:
        checks.number("refresh.low", self.low, low=0, high=1)
        checks.number("refresh.high", self.high, low=self.low, high=1)
        checks.integer("refresh.longest", self.longest, low=1)

    def due(self, step: int) -> bool:
        """Tell whether step 1 is scored: it is; later steps are the session's to decide, by `interval`."""
        return step == 1

    def interval(self, change: float, interval: int) -> int:
        """Return the steps until the next refresh.

        Args:
            change: total variation that the last refresh made.
            interval: steps between the last two refreshes.
        """
        if change > self.high:
            return 1
        return min(2 * interval, self.longest) if change < self.low else interval


def total_variation(before: Tensor, after: Tensor) -> float:
    """Return half the L1 distance of two utility vectors [n], each shifted to be non-negative and scaled to sum 1."""
    parts = [vector - vector.min().clamp(max=0) for vector in (before, after)]
    p, q = (part / part.sum().clamp(min=1e-30) for part in parts)
    return float((p - q).abs().sum() / 2)
