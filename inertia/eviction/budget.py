"""How many tokens a unit may keep: ratios at the edge, integers inside.

Ratios are decimal, not binary: 0.9 removed of 100 leaves 10, where floor((1 - 0.9) * 100) in floats gives 9.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import ClassVar, Protocol

from inertia.eviction import checks


class Budget(Protocol):
    """Number of tokens that may stay after a step."""

    def tokens(self, prompt_tokens: int, seen_tokens: int) -> int | None:
        """Return the budget after `seen_tokens` tokens (prompt and decoded), or None for no limit.

        Args:
            prompt_tokens: L0, every prompt token, template and prefix included.
            seen_tokens: tokens whose keys have been computed so far.
        """


def floor_share(share: Decimal, tokens: int) -> int:
    """Return floor(share * tokens), at least 1."""
    return max(1, int((share * tokens).to_integral_value(rounding=ROUND_FLOOR)))


@dataclass(frozen=True)
class Ratio:
    """Keep floor((1 - compression_ratio) * L0) tokens; the ratio is the fraction REMOVED, in [0, 1).

    Source: InertiaKV (arXiv 2609.03515), decode-side budget.
    Deviations: decimal instead of binary floor (one token more at multiples of 10).
    """

    kind: ClassVar[str] = "ratio"
    compression_ratio: float = 0.9

    def __post_init__(self) -> None:
        checks.number("compression_ratio", self.compression_ratio, low=0, high=1, high_open=True)

    def tokens(self, prompt_tokens: int, seen_tokens: int) -> int:
        """Return the fixed budget of this prompt."""
        return floor_share(1 - Decimal(str(self.compression_ratio)), prompt_tokens)


@dataclass(frozen=True)
class KeepRatio:
    """Keep floor(ratio * L0) tokens; the ratio is the fraction KEPT, in (0, 1]."""

    kind: ClassVar[str] = "keep_ratio"
    ratio: float = 0.1

    def __post_init__(self) -> None:
        checks.number("budget.ratio", self.ratio, low=0, high=1)
        if self.ratio == 0:
            raise ValueError("budget.ratio=0 keeps nothing; give a number in (0, 1].")

    def tokens(self, prompt_tokens: int, seen_tokens: int) -> int:
        """Return the fixed budget of this prompt."""
        return floor_share(Decimal(str(self.ratio)), prompt_tokens)


@dataclass(frozen=True)
class Tokens:
    """Keep a fixed number of tokens; it may exceed the prompt, and then nothing goes until the cache exceeds it."""

    count: int
    kind: ClassVar[str] = "tokens"

    def __post_init__(self) -> None:
        checks.integer("budget.count", self.count, low=1)

    def tokens(self, prompt_tokens: int, seen_tokens: int) -> int:
        """Return the count."""
        return self.count


@dataclass(frozen=True)
class SeenRatio:
    """Keep floor((1 - compression_ratio) * tokens seen so far): the budget grows while decoding."""

    kind: ClassVar[str] = "seen_ratio"
    compression_ratio: float = 0.9

    def __post_init__(self) -> None:
        checks.number("compression_ratio", self.compression_ratio, low=0, high=1, high_open=True)

    def tokens(self, prompt_tokens: int, seen_tokens: int) -> int:
        """Return the budget at this step."""
        return floor_share(1 - Decimal(str(self.compression_ratio)), seen_tokens)


@dataclass(frozen=True)
class Unlimited:
    """Keep everything: the full cache."""

    kind: ClassVar[str] = "unlimited"

    def tokens(self, prompt_tokens: int, seen_tokens: int) -> None:
        """Return None."""
        return None
