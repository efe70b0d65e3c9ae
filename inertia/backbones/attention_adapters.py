"""Families whose attention is not looked up by name (Bloom, MPT, Falcon), wrapped so that a session can attend.

Their blocks hand every attention the library's own ALiBi tensor over all positions so far. A slot's bias is that
tensor at the slot's true position, so nothing of it is computed here. Falcon with rotary positions has none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from inertia.eviction.attention import Logits

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Parts(NamedTuple):
    """What a wrapped attention makes of its input.

    Attributes:
        query: [R, Hq, N, D].
        keys: [R, Hkv, N, D].
        values: [R, Hkv, N, D].
        logits: scaling, and the bias of all positions where there is one.
    """

    query: Tensor
    keys: Tensor
    values: Tensor
    logits: Logits


class SessionAttention(nn.Module):
    """An attention that a session carries out in decode steps, and the wrapped module itself in plain calls."""

    attends_by_session = True

    def __init__(self, wrapped: nn.Module, parts: Callable[..., Parts], finish: Callable[..., Tensor]) -> None:
        """Wrap a module.

        Args:
            wrapped: the family's attention.
            parts: (module, hidden states, keywords) -> what to attend with.
            finish: (module, attended [R, N, hidden], other arguments) -> the module's output.
        """
        super().__init__()
        self.wrapped, self.parts, self.finish = wrapped, parts, finish

    def forward(self, hidden_states: Tensor, *others: Any, **keywords: Any) -> tuple[Tensor, Any]:
        """Return the attention's output and, of plain calls only, what the wrapped module returns beside it."""
        session = getattr(keywords.get("layer_past") or keywords.get("cache"), "session", None)
        if not hasattr(session, "attend"):
            return self.wrapped(hidden_states, *others, **keywords)
        layer, made = self.wrapped.layer_idx, self.parts(self.wrapped, hidden_states, keywords)
        keys, values = session.write(layer, made.keys, made.values)
        output = session.attend(layer, made.query, keys, values, made.logits)
        return self.finish(self.wrapped, output.flatten(2), *others), None


def adapts(model_class: type[PreTrainedModel]) -> bool:
    """Tell whether a family's attention is one that is wrapped here."""
    return any(hasattr(sys.modules[model_class.__module__], name) for name in _ADAPTERS)


def adapt(model: PreTrainedModel) -> PreTrainedModel:
    """Wrap, in place, the attentions of a model that need it, and return the model."""
    for name, module in list(model.named_modules()):
        if type(module).__name__ in _ADAPTERS and not name.endswith(".wrapped"):
            model.set_submodule(name, SessionAttention(module, *_ADAPTERS[type(module).__name__]))
    return model


def _bloom(module: nn.Module, hidden_states: Tensor, keywords: dict[str, Any]) -> Parts:
    query, keys, values = module._reshape(module.query_key_value(hidden_states))
    bias = keywords["alibi"].view(query.shape[0], module.num_heads, -1) * module.beta
    return Parts(query, keys, values, Logits(module.inv_norm_factor, bias=bias))


def _mpt(module: nn.Module, hidden_states: Tensor, keywords: dict[str, Any]) -> Parts:
    mixed = module.Wqkv(hidden_states)
    if module.clip_qkv:
        mixed = mixed.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    parts = (part.unflatten(2, (module.n_heads, -1)).transpose(1, 2) for part in mixed.chunk(3, dim=2))
    # The tensor is as long as the window, and ends with the newest position.
    bias = keywords["position_bias"][..., -(keywords["cache"].get_seq_length() + mixed.shape[1]) :]
    return Parts(*parts, Logits(module.softmax_scale, bias=bias.transpose(0, 1)))


def _falcon(module: nn.Module, hidden_states: Tensor, keywords: dict[str, Any]) -> Parts:
    query, keys, values = (part.transpose(1, 2) for part in module._split_heads(module.query_key_value(hidden_states)))
    bias = keywords["alibi"]
    if bias is None:
        rotate = sys.modules[type(module).__module__].apply_rotary_pos_emb
        query, keys = rotate(query, keys, *keywords["position_embeddings"])
    else:
        bias = bias.view(query.shape[0], module.num_heads, -1) * module.inv_norm_factor
    return Parts(query, keys, values, Logits(module.head_dim**-0.5, bias=bias))


_ADAPTERS: dict[str, tuple[Callable[..., Parts], Callable[..., Tensor]]] = {
    "BloomAttention": (_bloom, lambda module, output, residual: module.dense(output) + residual),
    "MptAttention": (_mpt, lambda module, output: module.out_proj(output)),
    "FalconAttention": (_falcon, lambda module, output: module.dense(output)),
}
