"""Attention of the last tokens of a sequence, as weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def last_attention(query: Tensor, keys: Tensor, scaling: float, softcap: float | None = None) -> Tensor:
    """Return what each of the last W tokens attends to, causally.

    Args:
        query: [Hq, W, D], of the last W tokens.
        keys: [Hkv, T, D], T >= W.
        scaling: factor on q.k.
        softcap: tanh cap of the logits, where the model has one.

    Returns:
        Weights [Hkv, G, W, T] in fp32.
    """
    import torch

    heads, tokens, head_dim = keys.shape
    window = query.shape[1]
    grouped = query.view(heads, -1, window, head_dim)
    logits = torch.matmul(grouped, keys.transpose(-1, -2).unsqueeze(1)).float() * scaling
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    ahead = torch.ones(window, tokens, dtype=torch.bool, device=keys.device).triu(tokens - window + 1)
    return logits.masked_fill_(ahead, float("-inf")).softmax(dim=-1)
