"""The needle grid: lengths by depths, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inertia.benchmarks.tasks import at_least, finder

HAYSTACKS = ("noise", "essay")

NINE_DEPTHS = tuple(i / 8 for i in range(9))
FIVE_DEPTHS = tuple(i / 4 for i in range(5))


@dataclass(frozen=True)
class Needle:
    """One sentence to be found in a haystack, at each of several depths.

    Attributes:
        haystack: `noise` (plain sentences of random words, no data needed) or `essay` (a text by source).
        depths: Where the needle stands, 0 (start) to 1 (end).
        max_new_tokens: Decoding limit.

    Raises:
        ValueError: If the haystack is unknown, there is no depth, one lies outside [0, 1], or the limit is
            below 1.
    """

    haystack: str
    depths: tuple[float, ...] = NINE_DEPTHS
    max_new_tokens: int = 64

    def __post_init__(self) -> None:
        if self.haystack not in HAYSTACKS:
            raise ValueError(f"needle haystack is {self.haystack!r}; allowed: {', '.join(HAYSTACKS)}")
        if not self.depths or not all(0 <= depth <= 1 for depth in self.depths):
            raise ValueError(f"needle depths are {self.depths}; allowed: at least one, each from 0 to 1")
        at_least(1, **{"needle max_new_tokens": self.max_new_tokens})


TASKS: Mapping[str, Needle] = {
    "needle_essay": Needle("essay"),
    "needle_noise": Needle("noise"),
    "needle_essay_5": Needle("essay", FIVE_DEPTHS),
    "needle_noise_5": Needle("noise", FIVE_DEPTHS),
}

find = finder("needle", TASKS)
