"""The lists to be recited, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inertia.benchmarks.tasks import at_least, finder

VALUES = ("words", "numbers")


@dataclass(frozen=True)
class Recite:
    """A numbered list that the answer must repeat in order.

    Attributes:
        values: what the items are made of, "words" (nouns) or "numbers" (of five digits).
        parts: how many of them an item has.
        answer_tokens: the list is as short as it can be with at least so many tokens.
        max_new_tokens: decoding limit; what exceeds the list is room for a clumsy answer.

    Raises:
        ValueError: the values are unknown, there are no parts, or the limit leaves less room than the list needs.
    """

    values: str
    parts: int
    answer_tokens: int = 208
    max_new_tokens: int = 288

    def __post_init__(self) -> None:
        if self.values not in VALUES:
            raise ValueError(f"recite values is {self.values!r}; allowed: {', '.join(VALUES)}")
        at_least(1, **{"recite parts": self.parts})
        if not 1 <= self.answer_tokens < self.max_new_tokens:
            raise ValueError(
                f"recite answer_tokens is {self.answer_tokens}; allowed: from 1 to below max_new_tokens, which is "
                f"{self.max_new_tokens}"
            )


TASKS: Mapping[str, Recite] = {
    # Within reach of a 135M model: few items of many digits keep it on its track.
    "numbers": Recite("numbers", parts=3),
    "numbers_long": Recite("numbers", parts=3, answer_tokens=512, max_new_tokens=640),
    # Harder: every item is a chance to slip into another one.
    "words": Recite("words", parts=1),
}

find = finder("recite", TASKS)
