"""Policies of the literature by name, each as its source ran it.

`configs/method/<name>.yaml` composes the same values for the command line; a test holds the two together.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from inertia.eviction.aggregation import CoupledEMA, Cumulative, Decoupled
from inertia.eviction.budget import Budget, Ratio, Tokens, Unlimited
from inertia.eviction.policy import Policy
from inertia.eviction.refresh import Every, Once


def budget(compression_ratio: float | None, tokens: int | None) -> Budget:
    """Return the budget of the one setting that is given; 0.9 removed when none is.

    Raises:
        ValueError: both are given.
    """
    if tokens is not None and compression_ratio is not None:
        raise ValueError(
            f"compression_ratio={compression_ratio!r} and tokens={tokens!r} are both given; give one of them."
        )
    if tokens is not None:
        return Tokens(tokens)
    return Ratio(0.9 if compression_ratio is None else compression_ratio)


def full_cache() -> Policy:
    """Nothing is ever evicted."""
    return Policy(budget=Unlimited())


def inertiakv(alpha: float = 0.8, compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
    """Coupled EMA of attention, refreshed every step. Source: InertiaKV (arXiv 2609.03515)."""
    return Policy(aggregation=CoupledEMA(alpha), budget=budget(compression_ratio, tokens))


def inertiakv_lazy(
    alpha: float = 0.8, interval: int = 4, compression_ratio: float | None = None, tokens: int | None = None
) -> Policy:
    """InertiaKV scored every `interval` steps (Lazy-r). Source: InertiaKV (arXiv 2609.03515)."""
    return Policy(aggregation=CoupledEMA(alpha), refresh=Every(interval), budget=budget(compression_ratio, tokens))


def score_free(alpha: float = 0.8, compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
    """InertiaKV scored at step 1 only. Source: InertiaKV (arXiv 2609.03515)."""
    return Policy(aggregation=CoupledEMA(alpha), refresh=Once(), budget=budget(compression_ratio, tokens))


def single_step(compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
    """Attention of the current step, uniform over layers, no memory. Source: ours, the control for both axes."""
    return Policy(aggregation=Decoupled(), budget=budget(compression_ratio, tokens))


def h2o(compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
    """Sum of attention over layers and decode steps, the paper's "H2O-style" cumulative rule.

    Source: InertiaKV (arXiv 2609.03515).
    Deviations: from H2O itself (arXiv 2306.14048): one set for all layers, no prefill sums, no recent half.
    """
    return Policy(aggregation=Cumulative(), budget=budget(compression_ratio, tokens))


METHODS: Mapping[str, Callable[..., Policy]] = {
    "full_cache": full_cache,
    "inertiakv": inertiakv,
    "inertiakv_lazy": inertiakv_lazy,
    "score_free": score_free,
    "single_step": single_step,
    "h2o": h2o,
}


def named(name: str, **settings: object) -> Policy:
    """Return the method `name` with some of its settings replaced.

    Raises:
        ValueError: unknown name or setting (the message lists the known ones), or a value out of range.
    """
    if name not in METHODS:
        raise ValueError(f"method {name!r} is unknown; give one of {', '.join(sorted(METHODS))}.")
    allowed = list(inspect.signature(METHODS[name]).parameters)
    unknown = [key for key in settings if key not in allowed]
    if unknown:
        raise ValueError(
            f"method {name!r} has no setting {', '.join(map(repr, unknown))}; it has {', '.join(allowed) or 'none'}."
        )
    return METHODS[name](**settings)
