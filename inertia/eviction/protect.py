"""Which tokens are never candidates for eviction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from inertia.eviction import checks

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Protect:
    """Protected positions; they count against the budget and leave the candidates before ranking.

    Attributes:
        sinks: the first tokens of the prompt.
        recent: the most recent tokens, the newcomer included.
        newest: the newcomer in its birth step only (kvpress parity for TOVA).
    """

    kind: ClassVar[str] = "protect"
    sinks: int = 0
    recent: int = 0
    newest: bool = False

    def __post_init__(self) -> None:
        checks.integer("protect.sinks", self.sinks, low=0)
        checks.integer("protect.recent", self.recent, low=0)
        checks.choice("protect.newest", self.newest, (True, False))

    def any(self) -> bool:
        """Tell whether anything is ever protected."""
        return bool(self.sinks or self.recent or self.newest)

    def most(self) -> int:
        """Return the largest number of slots that can be protected at one time."""
        return self.sinks + max(self.recent, int(self.newest))

    def mask(self, positions: Tensor, newest: int) -> Tensor:
        """Return which positions are protected.

        Args:
            positions: true positions, any shape, -1 for empty slots.
            newest: the position of the newest token.

        Returns:
            Bool tensor of the same shape; empty slots are False.
        """
        protected = (positions < self.sinks) | (positions > newest - self.recent)
        if self.newest:
            protected |= positions == newest
        return protected & (positions >= 0)
