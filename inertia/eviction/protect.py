"""Which tokens are never candidates for eviction."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, ClassVar

from inertia.eviction import checks

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Protect:
    """Protected tokens; they count against the budget and leave the candidates before ranking.

    Attributes:
        sinks: the first tokens of the prompt.
        recent: the most recent tokens, the newcomer included.
        recent_share: a share of the budget, in [0, 1], for the most recent tokens; the larger of it and `recent` holds.
        newest: the newcomer in its birth step only.
        reserve: a share of the budget, in [0, 1], for prompt positions at equal distances, first and last included:
            the paper's static reserve, a coarse coverage of the prompt.
        rescue: a share of the budget, in [0, 1], that the first cut fills with the tokens of the highest score in any
            single layer, whatever their utility; later steps do not know it.
        question: the prompt tokens from the end of the context on; where the budget has no room for all of them, the
            last ones that it has room for.

    Source: sinks, StreamingLLM (arXiv 2309.17453); reserve and rescue, InertiaKV (arXiv 2609.03515), appendix B, which
    gives neither sizes nor formulas.
    Deviations: the form of reserve and rescue is ours.
    """

    kind: ClassVar[str] = "protect"
    sinks: int = 0
    recent: int = 0
    recent_share: float = 0.0
    newest: bool = False
    reserve: float = 0.0
    rescue: float = 0.0
    question: bool = False

    def __post_init__(self) -> None:
        checks.integer("protect.sinks", self.sinks, low=0)
        checks.integer("protect.recent", self.recent, low=0)
        for name in ("recent_share", "reserve", "rescue"):
            checks.number(f"protect.{name}", getattr(self, name), low=0, high=1)
        for name in ("newest", "question"):
            checks.boolean(f"protect.{name}", getattr(self, name))

    def resolve(self, prompt_tokens: int, budget: int, context_end: int | None) -> Resolved:
        """Return what is protected under one budget in one prompt.

        Args:
            prompt_tokens: L0.
            budget: tokens that may stay.
            context_end: first position of the question; needed for `question`.

        Raises:
            ValueError: the question is protected but nobody said where it starts, or more slots are protected than
                the budget has.
        """
        fixed = set(range(min(self.sinks, prompt_tokens)))
        reserved = share(self.reserve, budget)
        fixed |= set(spread(reserved, prompt_tokens))
        recent = max(self.recent, share(self.recent_share, budget))
        if self.question:
            if context_end is None or not 0 <= context_end <= prompt_tokens:
                raise ValueError(
                    f"protect.question=True needs context_end in [0, {prompt_tokens}] (the prompt's tokens), got "
                    f"{context_end}; say where the question starts in the prompt."
                )
            room = max(0, budget - len(fixed) - max(recent, int(self.newest)))
            fixed |= set(range(max(context_end, prompt_tokens - room), prompt_tokens))
        most = len(fixed) + max(recent, int(self.newest))
        if most > budget:
            raise ValueError(
                f"protect asks for up to {most} slots ({len(fixed)} fixed, {recent} recent, newest={self.newest}) "
                f"but the budget is {budget} tokens; protect fewer or raise the budget."
            )
        return Resolved(tuple(sorted(fixed)), recent, self.newest, min(share(self.rescue, budget), budget - most))


@dataclass(frozen=True)
class Resolved:
    """Protection under one budget in one prompt.

    Attributes:
        fixed: prompt positions that always stay.
        recent: how many of the most recent tokens stay.
        newest: whether the newcomer stays in its birth step.
        rescue: tokens that the first cut keeps for their best single-layer score.
    """

    fixed: tuple[int, ...]
    recent: int
    newest: bool
    rescue: int

    def any(self) -> bool:
        """Tell whether any slot is ever protected after the first cut."""
        return bool(self.fixed or self.recent or self.newest)


def spread(count: int, tokens: int) -> list[int]:
    """Return `count` positions at equal distances in a prompt, ends included."""
    count = min(count, tokens)
    return [0] * count if count <= 1 else [index * (tokens - 1) // (count - 1) for index in range(count)]


def share(of: float, tokens: int) -> int:
    """Return the decimal floor of a share: 0.29 of 100 is 29, where binary floats give 28."""
    return int((Decimal(str(of)) * tokens).to_integral_value(rounding=ROUND_FLOOR))


def protected_mask(positions: Tensor, newest: Tensor, fixed: Tensor, recent: Tensor, spare_newest: bool) -> Tensor:
    """Return which slots are no candidates.

    Args:
        positions: true positions, [R, UK, UH, C]; -1 where a slot is empty.
        newest: position of the newest token, [R, 1, 1, 1].
        fixed: bool [R, N]: which of the positions 0 .. N - 1 always stay.
        recent: how many recent tokens stay, [R, 1, 1, 1].
        spare_newest: whether the newest token stays.

    Returns:
        Bool like `positions`.
    """
    inside = (positions >= 0) & (positions < fixed.shape[1])
    looked_up = fixed.gather(1, positions.clamp(0, fixed.shape[1] - 1).flatten(1)).view_as(positions)
    protected = (looked_up & inside) | (positions > newest - recent)
    if spare_newest:
        protected |= positions == newest
    return protected & (positions >= 0)
