"""When a decode step is scored. Between refreshes the utilities stay frozen and eviction goes on with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from inertia.eviction import checks


class Refresh(Protocol):
    """Which decode steps compute scores; step 1 always must, since the first cut needs them."""

    def due(self, step: int) -> bool:
        """Tell whether decode step `step` (1, 2, ..) is scored."""


@dataclass(frozen=True)
class Every:
    """Score steps 1, 1 + r, 1 + 2r, ..; r = 1 is the full refresh, r = 4 the paper's Lazy-4."""

    kind: ClassVar[str] = "every"
    interval: int = 1

    def __post_init__(self) -> None:
        checks.integer("refresh.interval", self.interval, low=1)

    def due(self, step: int) -> bool:
        """Tell whether (step - 1) is a multiple of the interval."""
        return (step - 1) % self.interval == 0


@dataclass(frozen=True)
class Once:
    """Score step 1 only: the paper's Score-Free."""

    kind: ClassVar[str] = "once"

    def due(self, step: int) -> bool:
        """Tell whether this is step 1."""
        return step == 1
