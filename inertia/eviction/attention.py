"""One-token attention over cached slots, whose weights serve both the output and the scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from inertia.eviction.execution import FUSED, KERNEL, RECOMPUTE, SCORINGS
from inertia.eviction.support import attends_by_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "inertia"
# Keywords of a layer's attention that change nothing about one row's decoding, or that the session knows by itself.
NEUTRAL = frozenset(
    {
        "dropout", "sliding_window", "position_ids", "is_causal", "output_attentions", "output_hidden_states", "cache",
        "use_cache", "return_dict", "logits_to_keep", "layer_idx", "output_router_logits",
    }
)  # fmt: skip


class Logits(NamedTuple):
    """What a layer makes of q.k before and in the softmax.

    Attributes:
        scaling: factor.
        softcap: tanh cap, where the model has one.
        sinks: learned logits [Hq] that take part in the softmax and stand for no token, where the model has them.
        bias: added, where the model has one (ALiBi): of every position, [R or 1, Hq, L], as layers give it; of the
            slots, [R, Hkv, G, T], where it is attended with (`slot_bias`).
    """

    scaling: float
    softcap: float | None = None
    sinks: Tensor | None = None
    bias: Tensor | None = None

    def beyond(self) -> str | None:
        """Return what there is beside scaling and cap, in words, or None."""
        if self.bias is not None:
            return "a bias on its logits (ALiBi)"
        return None if self.sinks is None else "learned sinks"


# One token's attention: (query, keys, values, logits, mask, scored) -> (output, weights or None).
Attention = Callable[..., tuple[Tensor, Tensor | None]]


def slot_attention(
    query: Tensor, keys: Tensor, values: Tensor, logits: Logits, mask: Tensor | None = None, scored: bool = True
) -> tuple[Tensor, Tensor]:
    """Attend from one token per row to the slots of each KV head, without repeating keys for grouped heads.

    The weights that make the output are the ones that scorers get: scores cost no second pass over the keys.

    Args:
        query: [R, Hq, 1, D].
        keys: [R, Hkv, T, D].
        values: [R, Hkv, T, Dv].
        logits: of the layer, its bias that of the slots.
        mask: bool [R, Hkv or 1, T], True where a slot is filled; None when all are.
        scored: whether anyone wants the weights; here they come for free.

    Returns:
        Output [R, 1, Hq, Dv] in the values' dtype, and weights [R, Hkv, G, T] in fp32.
    """
    weights = slot_weights(query, keys, logits, mask)
    output = torch.matmul(weights.to(values.dtype), values)
    return output.reshape(query.shape[0], 1, query.shape[1], -1), weights


def slot_weights(query: Tensor, keys: Tensor, logits: Logits, mask: Tensor | None = None) -> Tensor:
    """Return the softmax weights of `slot_attention`, [R, Hkv, G, T] in fp32."""
    grouped = query.view(query.shape[0], keys.shape[1], -1, query.shape[-1])
    if logits.sinks is not None:
        logits = logits._replace(sinks=logits.sinks.view(keys.shape[1], -1))
    return softmax_weights(grouped, keys, logits, None if mask is None else mask.unsqueeze(2))


def softmax_weights(query: Tensor, keys: Tensor, logits: Logits, mask: Tensor | None) -> Tensor:
    """Return the attention weights of queries that read the same head's keys, [R, Hkv, M, T] in fp32.

    Args:
        query: [R, Hkv, M, D].
        keys: [R, Hkv, T, D].
        logits: of the layer; sinks [Hkv, M] and bias [R, Hkv, M, T] by query.
        mask: bool, broadcastable to the weights, True where a query may look; None for everywhere.
    """
    found = torch.matmul(query, keys.transpose(-1, -2)).float().mul_(logits.scaling)
    if logits.bias is not None:
        found += logits.bias
    if logits.softcap is not None:
        found = torch.tanh(found / logits.softcap) * logits.softcap
    if mask is not None:
        found.masked_fill_(~mask, float("-inf"))
    if logits.sinks is None:
        return torch.softmax(found, dim=-1)
    sink = logits.sinks.float()[..., None].expand(found.shape[0], -1, -1, -1)
    return torch.softmax(torch.cat([found, sink], dim=-1), dim=-1)[..., :-1]


def recomputing_attention(
    query: Tensor, keys: Tensor, values: Tensor, logits: Logits, mask: Tensor | None = None, scored: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Attend with the library's fused kernel, which keeps its weights, and compute them a second time for scores.

    This is how the paper's hook gets them; it is here so that its cost can be measured. See `slot_attention` for
    shapes.

    Raises:
        ValueError: the model has learned sinks or a bias on its logits.
    """
    refuse_beyond(logits, RECOMPUTE)
    wide = None
    if mask is not None:
        group = query.shape[1] // keys.shape[1]
        wide = mask.unsqueeze(2).expand(-1, keys.shape[1], group, -1).flatten(1, 2).unsqueeze(2)
    output = torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=wide, scale=logits.scaling, enable_gqa=query.shape[1] != keys.shape[1]
    )
    return output.transpose(1, 2), slot_weights(query, keys, logits, mask) if scored else None


def kernel_attention(
    query: Tensor, keys: Tensor, values: Tensor, logits: Logits, mask: Tensor | None = None, scored: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Attend with our GPU kernel: output and weights in one pass over keys and values; see `slot_attention`.

    Raises:
        ValueError: the model has learned sinks, a bias on its logits, or keys and values of two sizes.
    """
    refuse_beyond(logits, KERNEL)
    if keys.shape != values.shape:
        raise ValueError(
            f"execution.scoring='kernel' needs keys and values of one size, not {keys.shape[-1]} and "
            f"{values.shape[-1]}; set execution.scoring=fused."
        )
    from inertia.eviction.kernels.slot_decode import slot_decode

    if mask is not None:
        mask = mask.expand(-1, keys.shape[1], -1)
    kept = "all" if scored else "none"
    output, weights = slot_decode(
        query[:, :, 0], keys, values, logits.scaling, mask=mask, softcap=logits.softcap, weights=kept
    )
    if weights is not None:
        weights = weights.view(query.shape[0], keys.shape[1], -1, keys.shape[2])
    return output.unsqueeze(1), weights


def refuse_beyond(logits: Logits, scoring: str) -> None:
    """Refuse learned sinks and biases where the attention cannot take them in.

    Raises:
        ValueError: there are some.
    """
    if (has := logits.beyond()) is not None:
        raise ValueError(
            f"execution.scoring={scoring!r} cannot attend as this model, which has {has}; set it to fused."
        )


def slot_bias(bias: Tensor, positions: Tensor, heads: int) -> Tensor:
    """Return the bias of the slots, [R, Hkv, G, T], by their true positions.

    Args:
        bias: of every position, [R or 1, Hq, L].
        positions: [R, Hkv or 1, T]; what is given for an empty slot (-1) is masked later.
        heads: KV heads that attend.
    """
    grouped = bias.unflatten(1, (heads, -1)).expand(positions.shape[0], -1, -1, -1)
    index = positions.clamp(min=0).unsqueeze(2).expand(-1, heads, grouped.shape[2], -1)
    return grouped.gather(-1, index).float()


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
    scaling: float | None = None,
    session: Any = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Hand a layer's attention to the session that came as a keyword of the model's forward.

    No mask function is registered for this name, so `attention_mask` is None and masking is the session's business.

    Raises:
        RuntimeError: called without a session, which is also what a model gives that keeps its keywords to itself.
        ValueError: the layer asks for something that the core does not know, and would leave out.
    """
    if session is None:
        raise RuntimeError(
            f"attention {NAME!r} works only inside inertia.generate: either the model was called from outside, or it "
            "does not hand the keywords of its forward to its layers and cannot be used; choose another backbone."
        )
    if attention_mask is not None or not kwargs.keys() <= NEUTRAL:
        refuse_unknown({"attention_mask": attention_mask, **kwargs})
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return session.attend(module.layer_idx, query, key, value, Logits(scaling, softcap, s_aux)), None


def refuse_unknown(keywords: Mapping[str, Any]) -> None:
    """Refuse an attention whose layer asks for more than keys, values, scaling, a cap and sinks.

    Raises:
        ValueError: names what it asks for.
    """
    unknown = sorted(name for name, value in keywords.items() if value is not None and name not in NEUTRAL)
    if unknown:
        raise ValueError(
            f"this model's layers give their attention {', '.join(unknown)}, which eviction would leave out; "
            "use another backbone."
        )


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

    if not attends_by_name(model):
        # Its attentions are wrapped, and ask the cache for the session.
        yield
        return
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
