"""One-token attention over cached slots, whose weights serve both the output and the scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from inertia.eviction.execution import FUSED, KERNEL, RECOMPUTE, SCORINGS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "inertia"

# One token's attention: (query, keys, values, scaling, mask, softcap, scored) -> (output, weights or None).
Attention = Callable[..., tuple[Tensor, Tensor | None]]


def slot_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float,
    mask: Tensor | None = None,
    softcap: float | None = None,
    scored: bool = True,
) -> tuple[Tensor, Tensor]:
    """Attend from one token per row to the slots of each KV head, without repeating keys for grouped heads.

    The weights that make the output are the ones that scorers get: scores cost no second pass over the keys.

    Args:
        query: [R, Hq, 1, D].
        keys: [R, Hkv, T, D].
        values: [R, Hkv, T, D].
        scaling: factor on q.k.
        mask: bool [R, Hkv or 1, T], True where a slot is filled; None when all are.
        softcap: tanh cap of the logits, where the model has one.
        scored: whether anyone wants the weights; here they come for free.

    Returns:
        Output [R, 1, Hq, D] in the values' dtype, and weights [R, Hkv, G, T] in fp32.
    """
    weights = slot_weights(query, keys, scaling, mask, softcap)
    output = torch.matmul(weights.to(values.dtype), values)
    return output.reshape(query.shape[0], 1, query.shape[1], query.shape[3]), weights


def slot_weights(
    query: Tensor, keys: Tensor, scaling: float, mask: Tensor | None = None, softcap: float | None = None
) -> Tensor:
    """Return the softmax weights of `slot_attention`, [R, Hkv, G, T] in fp32."""
    rows, _, _, head_dim = query.shape
    grouped = query.view(rows, keys.shape[1], -1, head_dim)
    logits = torch.matmul(grouped, keys.transpose(-1, -2)).float().mul_(scaling)
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    if mask is not None:
        logits.masked_fill_(~mask.unsqueeze(2), float("-inf"))
    return torch.softmax(logits, dim=-1)


def recomputing_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float,
    mask: Tensor | None = None,
    softcap: float | None = None,
    scored: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Attend with the library's fused kernel, which keeps its weights, and compute them a second time for scores.

    This is how the paper's hook gets them; it is here so that its cost can be measured. See `slot_attention` for
    shapes.
    """
    wide = None
    if mask is not None:
        group = query.shape[1] // keys.shape[1]
        wide = mask.unsqueeze(2).expand(-1, keys.shape[1], group, -1).flatten(1, 2).unsqueeze(2)
    output = torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=wide, scale=scaling, enable_gqa=query.shape[1] != keys.shape[1]
    )
    weights = slot_weights(query, keys, scaling, mask, softcap) if scored else None
    return output.transpose(1, 2), weights


def kernel_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float,
    mask: Tensor | None = None,
    softcap: float | None = None,
    scored: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Attend with our GPU kernel: output and weights in one pass over keys and values; see `slot_attention`."""
    from inertia.eviction.kernels.slot_decode import slot_decode

    if mask is not None:
        mask = mask.expand(-1, keys.shape[1], -1)
    output, weights = slot_decode(
        query[:, :, 0], keys, values, scaling, mask=mask, softcap=softcap, weights="all" if scored else "none"
    )
    if weights is not None:
        weights = weights.view(query.shape[0], keys.shape[1], -1, keys.shape[2])
    return output.unsqueeze(1), weights


def attention_of(scoring: str) -> Attention:
    """Return the one-token attention behind a `scoring` setting: "fused", "recompute" or "kernel".

    Raises:
        ValueError: there is none of that name.
    """
    found = {FUSED: slot_attention, RECOMPUTE: recomputing_attention, KERNEL: kernel_attention}
    if scoring not in found:
        raise ValueError(f"scoring={scoring!r} is unknown; give one of {', '.join(SCORINGS)}.")
    return found[scoring]


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
def attending(model: PreTrainedModel, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Let the model's layers use an attention function, and restore what they used before on any exit.

    No mask function is registered with it, so the model builds no mask and the function sees None.

    Args:
        model: whose layers.
        name: to register it by.
        function: as transformers calls it.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(name, function)
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def decoding_attention(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Let the model's layers use `attention_function`, and restore what they used before on any exit."""
    return attending(model, NAME, attention_function)
