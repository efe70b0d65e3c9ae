"""One-token attention over cached slots, whose weights serve both the output and the scores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "inertia"


def slot_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float,
    mask: Tensor | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend from one token per row to the slots of each KV head, without repeating keys for grouped heads.

    Args:
        query: [R, Hq, 1, D].
        keys: [R, Hkv, T, D].
        values: [R, Hkv, T, D].
        scaling: factor on q.k.
        mask: bool [R, Hkv or 1, T], True where a slot is filled; None when all are.
        softcap: tanh cap of the logits, where the model has one.

    Returns:
        Output [R, 1, Hq, D] in the values' dtype, and weights [R, Hkv, G, T] in fp32.
    """
    rows, query_heads, _, head_dim = query.shape
    grouped = query.view(rows, keys.shape[1], -1, head_dim)
    logits = torch.matmul(grouped, keys.transpose(-1, -2)).float() * scaling
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    if mask is not None:
        logits.masked_fill_(~mask.unsqueeze(2), float("-inf"))
    weights = torch.softmax(logits, dim=-1)
    output = torch.matmul(weights.to(values.dtype), values)
    return output.reshape(rows, 1, query_heads, head_dim), weights


def attention_function(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    session: Any = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Hand a layer's attention to the session that came as a keyword of the model's forward.

    No mask function is registered for this name, so `attention_mask` is None and masking is the session's business.

    Raises:
        RuntimeError: called without a session, or for a model whose attention has learned sinks.
    """
    if session is None:
        raise RuntimeError(f"attention {NAME!r} works only inside inertia.generate; the model was called from outside.")
    if s_aux is not None:
        raise RuntimeError("attention with learned sink logits is not supported; use another backbone.")
    return session.attend(module.layer_idx, query, key, value, scaling, softcap), None


@contextmanager
def decoding_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let the model's layers use `attention_function`, and restore what they used before on any exit."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention_function)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
