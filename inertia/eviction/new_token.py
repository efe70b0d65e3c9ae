"""The utility a token starts with, before its birth step is scored (or instead of it, when the step is not)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inertia.eviction import checks

MEAN, ZERO, PROTECT, BY_SCORER = "mean", "zero", "protect", "by_scorer"


@dataclass(frozen=True)
class NewToken:
    """Prior of a newcomer; "the mean" is over the valid slots of its unit, newcomer excluded.

    Attributes:
        on_refresh: prior at a scored step: "zero", "mean", or "by_scorer": zero, but mean for scorers with negative
            values, for which zero would be the highest value of all.
        when_frozen: value at a step that is not scored: "mean" (it may be evicted at once), or "protect" (mean, and
            never the victim of its own birth step).

    Source: InertiaKV (arXiv 2609.03515) gives "mean" for frozen steps and is silent on scored ones.
    """

    kind: ClassVar[str] = "new_token"
    on_refresh: str = BY_SCORER
    when_frozen: str = MEAN

    def __post_init__(self) -> None:
        checks.choice("new_token.on_refresh", self.on_refresh, (BY_SCORER, ZERO, MEAN))
        checks.choice("new_token.when_frozen", self.when_frozen, (MEAN, PROTECT))

    def resolved(self, signed_scores: bool) -> NewToken:
        """Return the same setting with "by_scorer" replaced by what it means for this scorer."""
        if self.on_refresh != BY_SCORER:
            return self
        return NewToken(MEAN if signed_scores else ZERO, self.when_frozen)
