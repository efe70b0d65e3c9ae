"""The part of a policy that acts between prompt and decoding: a compressor, its budget, and what it may see."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from inertia.eviction import checks
from inertia.eviction.budget import Budget, Ratio


@dataclass(frozen=True)
class Prefill:
    """Compression of the prompt before anything is decoded.

    Attributes:
        compressor: what chooses (`inertia.prefill`), or None for nothing.
        budget: tokens per KV head, on average, that may stay of the compressed part.
        question_visible: True: the whole prompt is compressed after the question was read. False: only the context is,
            before the question is read; the question and the answer come on top of the budget.
    """

    kind: ClassVar[str] = "prefill"
    compressor: Any = None
    budget: Budget = field(default_factory=Ratio)
    question_visible: bool = False

    def __post_init__(self) -> None:
        checks.boolean("prefill.question_visible", self.question_visible)
        checks.has("prefill.budget", self.budget, ("tokens",), "Ratio(0.9)")
        if self.compressor is not None:
            checks.has("prefill.compressor", self.compressor, ("score", "keep", "check"), "SnapKV()")

    def part(self, prompt_tokens: int, context_end: int | None) -> int:
        """Return how many prompt tokens are compressed.

        Raises:
            ValueError: the context alone is to be compressed, but its end is unknown or leaves no question.
        """
        if self.question_visible:
            return prompt_tokens
        if context_end is None or not 0 < context_end < prompt_tokens:
            raise ValueError(
                f"prefill.question_visible=False needs 0 < context_end < {prompt_tokens} (the prompt's tokens), got "
                f"{context_end}; say where the context ends, or set question_visible=True."
            )
        return context_end
