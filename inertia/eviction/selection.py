"""Which tokens stay, given utilities: a part of its own beside the score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Selection(Protocol):
    """Chooses survivors within each unit; ties and protection are decided here and nowhere else."""

    def keep(self, utility: Tensor, positions: Tensor, protected: Tensor | None, count: int) -> Tensor:
        """Return the slots that stay, [.., count], in ascending order of position.

        Args:
            utility: [.., T] fp32.
            positions: true positions, like `utility`, ascending along T, none empty.
            protected: bool like `utility`, or None; at most `count` True per unit.
            count: how many stay.
        """

    def victim(self, utility: Tensor, positions: Tensor, protected: Tensor | None) -> Tensor:
        """Return the slot that goes, [..]; slots may stand in any order, and empty ones have position -1."""


@dataclass(frozen=True)
class TopK:
    """Keep the highest utilities; of equal ones the smaller true position stays.

    Source: InertiaKV (arXiv 2609.03515), eviction; the paper leaves ties open.
    """

    kind: ClassVar[str] = "top_k"

    def keep(self, utility: Tensor, positions: Tensor, protected: Tensor | None, count: int) -> Tensor:
        """Return the slots of the `count` best, protected ones first of all."""
        ranked = utility if protected is None else utility.masked_fill(protected, float("inf"))
        # A stable sort keeps equal utilities in slot order, which is position order at the first cut.
        order = ranked.sort(dim=-1, descending=True, stable=True).indices[..., :count]
        return order.sort(dim=-1).values

    def victim(self, utility: Tensor, positions: Tensor, protected: Tensor | None) -> Tensor:
        """Return the slot of the lowest utility, among equals that of the largest position; no sorting."""
        out = positions < 0 if protected is None else (positions < 0) | protected
        ranked = utility.masked_fill(out, float("inf"))
        lowest = ranked.amin(dim=-1, keepdim=True)
        return positions.masked_fill(ranked != lowest, -1).argmax(dim=-1)
