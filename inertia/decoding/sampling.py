"""Which token follows: the likeliest one, or a draw that depends on (seed, sample, step) alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inertia.eviction import checks

if TYPE_CHECKING:
    from transformers import LogitsProcessorList


@dataclass(frozen=True)
class Sampling:
    """Draw tokens instead of taking the likeliest; transformers' logits processors do the warping, in its order.

    Attributes:
        temperature: divides the logits, above 0.
        top_k: only so many of the likeliest tokens; None for all.
        top_p: only the likeliest tokens that make up this probability.
        min_p: only tokens at least this probable, relative to the likeliest.
        samples: answers per prompt and policy; they share its prefill.

    Deviations: from transformers: `generate`'s models often bring defaults of their own (top_k 50); here nothing is
    warped that is not stated. The probabilities are fp64, and the draw is by the inverse of their running sum.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    samples: int = 1

    def __post_init__(self) -> None:
        checks.number("temperature", self.temperature, low=0)
        if not self.temperature:
            raise ValueError("temperature=0 draws nothing; leave sampling out for greedy decoding.")
        if self.top_k is not None:
            checks.integer("top_k", self.top_k, low=1)
        checks.number("top_p", self.top_p, low=0, high=1)
        checks.number("min_p", self.min_p, low=0, high=1)
        checks.integer("samples", self.samples, low=1)

    def describe(self) -> dict[str, Any]:
        """Return what can change an answer, JSON-able."""
        named = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        return {"kind": "sampling", **named}

    def warpers(self) -> LogitsProcessorList:
        """Return transformers' processors for what is stated."""
        from transformers import generation

        found = generation.LogitsProcessorList()
        if self.temperature != 1.0:
            found.append(generation.TemperatureLogitsWarper(float(self.temperature)))
        if self.top_k is not None:
            found.append(generation.TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            found.append(generation.TopPLogitsWarper(self.top_p))
        if self.min_p > 0:
            found.append(generation.MinPLogitsWarper(self.min_p))
        return found
