"""Start values: what the prompt's own attention gave each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

# Queries attended at one time: whole prompts would take gigabytes.
ROWS = 128


@dataclass(frozen=True)
class PrefillSums:
    """Attention that each prompt token received from all prompt queries, summed; mean over a KV head's query heads.

    Source: H2O (arXiv 2306.14048), accumulated attention scores of the prompt.
    Deviations: H2O keeps scores per query head; with grouped heads the mean of the group decides.
    """

    kind: ClassVar[str] = "prefill_sums"

    def score(self, layer: Any) -> Tensor:
        """Return the sums, [Hkv, T] fp32.

        Args:
            layer: one layer of the prompt, as prefill compressors see it: `query` [Hq, T, D], `keys` [Hkv, T, D],
                `scaling`.
        """
        import torch

        heads, tokens, head_dim = layer.keys.shape
        grouped = layer.query.view(heads, -1, tokens, head_dim)
        sums = torch.zeros(heads, tokens, device=layer.keys.device)
        at = torch.arange(tokens, device=layer.keys.device)
        for first in range(0, tokens, ROWS):
            rows = grouped[:, :, first : first + ROWS]
            logits = torch.matmul(rows.flatten(1, 2), layer.keys.transpose(-1, -2)).float() * layer.scaling
            hidden = at[None, :] > at[first : first + ROWS][:, None]
            logits = logits.view(*rows.shape[:3], tokens).masked_fill(hidden, float("-inf"))
            sums += torch.softmax(logits, dim=-1).mean(dim=1).sum(dim=1)
        return sums
