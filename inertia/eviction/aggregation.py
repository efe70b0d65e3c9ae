"""How the scores of K layers and many steps become one utility per token.

Every rule here is linear: m_t = lam * m_{t-1} + sum_l w_l * s_{t,l}. A rule is therefore the pair (lam, w), and the
core applies any of them as one [K] x [K, T] product per refresh.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

from inertia.eviction import checks


class Linear(NamedTuple):
    """The pair (lam, w): weight of the old utility, and one weight per eligible layer."""

    lam: float
    weights: tuple[float, ...]


class Aggregation(Protocol):
    """Layer weighting and time rule of a policy."""

    def linear(self, num_layers: int) -> Linear:
        """Return (lam, w) for shared scope over `num_layers` eligible layers."""

    def unit(self) -> Linear:
        """Return (lam, (scale,)) for scopes in which each layer or head keeps a utility of its own."""


# --------------------------------------------------------------------------------------------- layer weightings


class LayerWeighting(Protocol):
    """Weights v_l over the eligible layers, first layer first, summing to 1."""

    def weights(self, num_layers: int) -> tuple[float, ...]:
        """Return v_1 .. v_K."""


@dataclass(frozen=True)
class Uniform:
    """All layers count alike: v_l = 1 / K."""

    kind: ClassVar[str] = "uniform"

    def weights(self, num_layers: int) -> tuple[float, ...]:
        """Return K times 1 / K."""
        return (1.0 / num_layers,) * num_layers


@dataclass(frozen=True)
class Geometric:
    """Later layers count more: v_l proportional to alpha^(K - l), the layer half of the coupled EMA."""

    kind: ClassVar[str] = "geometric"
    alpha: float = 0.8

    def __post_init__(self) -> None:
        checks.number("layers.alpha", self.alpha, low=0, high=1)

    def weights(self, num_layers: int) -> tuple[float, ...]:
        """Return the normalised powers; 0^0 = 1, so alpha = 0 is the last layer only."""
        raw = [float(self.alpha) ** (num_layers - layer) for layer in range(1, num_layers + 1)]
        total = sum(raw)
        return tuple(value / total for value in raw)


@dataclass(frozen=True)
class Last:
    """Only the last eligible layer counts."""

    kind: ClassVar[str] = "last"

    def weights(self, num_layers: int) -> tuple[float, ...]:
        """Return 0, .., 0, 1."""
        return (0.0,) * (num_layers - 1) + (1.0,)


@dataclass(frozen=True)
class Single:
    """Only one eligible layer counts; `index` counts from 0, negative from the end."""

    index: int
    kind: ClassVar[str] = "single"

    def weights(self, num_layers: int) -> tuple[float, ...]:
        """Return 1 at the index and 0 elsewhere.

        Raises:
            ValueError: the model has no such eligible layer.
        """
        if not -num_layers <= self.index < num_layers:
            raise ValueError(
                f"layers.index={self.index} does not exist: the model has {num_layers} eligible layers; "
                f"give {-num_layers} .. {num_layers - 1}."
            )
        return tuple(float(layer == self.index % num_layers) for layer in range(num_layers))


@dataclass(frozen=True)
class Weights:
    """Given weights, one per eligible layer, non-negative; normalised to sum 1."""

    values: tuple[float, ...]
    kind: ClassVar[str] = "weights"

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        for value in self.values:
            checks.number("layers.values", value, low=0)
        if sum(self.values) <= 0:
            raise ValueError(f"layers.values={list(self.values)} sum to 0; give at least one positive weight.")

    def weights(self, num_layers: int) -> tuple[float, ...]:
        """Return the normalised weights.

        Raises:
            ValueError: their number is not that of the eligible layers.
        """
        if len(self.values) != num_layers:
            raise ValueError(
                f"layers.values has {len(self.values)} weights but the model has {num_layers} eligible layers; "
                "give one weight per eligible layer."
            )
        total = sum(self.values)
        return tuple(value / total for value in self.values)


# --------------------------------------------------------------------------------------------- time rules


class TimeRule(Protocol):
    """Memory across refreshes: m = lam * m + scale * (this step's score)."""

    def pair(self) -> tuple[float, float]:
        """Return (lam, scale)."""


@dataclass(frozen=True)
class NoMemory:
    """Each refresh starts anew."""

    kind: ClassVar[str] = "none"

    def pair(self) -> tuple[float, float]:
        """Return (0, 1)."""
        return 0.0, 1.0


@dataclass(frozen=True)
class TimeEMA:
    """Exponential moving average over refreshes."""

    kind: ClassVar[str] = "ema"
    alpha: float = 0.8

    def __post_init__(self) -> None:
        checks.number("time.alpha", self.alpha, low=0, high=1)

    def pair(self) -> tuple[float, float]:
        """Return (alpha, 1 - alpha)."""
        return float(self.alpha), 1.0 - float(self.alpha)


@dataclass(frozen=True)
class TimeCumulative:
    """Sum over all refreshes."""

    kind: ClassVar[str] = "cumulative"

    def pair(self) -> tuple[float, float]:
        """Return (1, 1)."""
        return 1.0, 1.0


# --------------------------------------------------------------------------------------------- rules


@dataclass(frozen=True)
class CoupledEMA:
    """The paper's rule: one EMA update per eligible layer, in layer order, inside each step.

    m_{t,l} = alpha * m_{t,l-1} + (1 - alpha) * s_{t,l}, so lam = alpha^K and w_l = (1 - alpha) * alpha^(K - l): one
    number sets both how many late layers are averaged and how much is remembered. alpha = 0 is the last layer only
    (0^0 = 1), alpha = 1 never learns.

    Source: InertiaKV (arXiv 2609.03515), temporal aggregation, as its evaluated implementation applies it.
    Deviations: none known.
    """

    kind: ClassVar[str] = "coupled_ema"
    alpha: float = 0.8

    def __post_init__(self) -> None:
        checks.number("alpha", self.alpha, low=0, high=1)

    def linear(self, num_layers: int) -> Linear:
        """Return (alpha^K, ((1 - alpha) * alpha^(K - l))_l)."""
        alpha = float(self.alpha)
        powers = (alpha ** (num_layers - layer) for layer in range(1, num_layers + 1))
        return Linear(alpha**num_layers, tuple((1.0 - alpha) * power for power in powers))

    def unit(self) -> Linear:
        """Refuse: coupling layers needs one utility for all of them.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "aggregation=ema couples the layers and exists in scope=shared only; "
            "for per_layer or per_head use aggregation=decoupled with time=ema."
        )


@dataclass(frozen=True)
class Cumulative:
    """Sum of all layers and steps ("H2O-style"): lam = 1, w_l = 1.

    Source: InertiaKV (arXiv 2609.03515), cumulative baseline. Deviations: none known.
    """

    kind: ClassVar[str] = "cumulative"

    def linear(self, num_layers: int) -> Linear:
        """Return (1, (1, .., 1))."""
        return Linear(1.0, (1.0,) * num_layers)

    def unit(self) -> Linear:
        """Return (1, (1,))."""
        return Linear(1.0, (1.0,))


@dataclass(frozen=True)
class Decoupled:
    """Layer weighting and temporal memory as two settings: lam = time.lam, w_l = time.scale * v_l.

    The default (uniform layers, no memory) is the single-step rule m_t = mean over layers of s_t. Ours; the coupled
    EMA is the special case geometric(alpha) with time EMA alpha^K.
    """

    kind: ClassVar[str] = "decoupled"
    layers: LayerWeighting = field(default_factory=Uniform)
    time: TimeRule = field(default_factory=NoMemory)

    def __post_init__(self) -> None:
        checks.has("aggregation.layers", self.layers, ("weights",), "Uniform()")
        checks.has("aggregation.time", self.time, ("pair",), "NoMemory()")

    def linear(self, num_layers: int) -> Linear:
        """Return (lam, (scale * v_l)_l)."""
        lam, scale = self.time.pair()
        return Linear(lam, tuple(scale * value for value in self.layers.weights(num_layers)))

    def unit(self) -> Linear:
        """Return (lam, (scale,)); the layer weighting must be the default, since units do not share a utility.

        Raises:
            ValueError: a layer weighting was asked for.
        """
        if not isinstance(self.layers, Uniform):
            raise ValueError(
                f"layer weighting {self.layers.kind!r} exists in scope=shared only; "
                "for per_layer or per_head leave aggregation.layers at uniform."
            )
        lam, scale = self.time.pair()
        return Linear(lam, (scale,))
