"""The reference: a full cache, in the order of time, in which what was evicted is masked out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from inertia.bench.prompt import CachedPrompt
from inertia.eviction.attention import attending

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Positions that one step's token sees: for all layers, per layer, or per layer and KV head.
Seen = Iterable[int] | Sequence[Sequence[int]] | Sequence[Sequence[Sequence[int]]]


class _Remembering:
    """A cache that puts the prompt's keys before those of the tokens at hand and stores nothing."""

    is_compileable = False

    def __init__(self, prompt: CachedPrompt) -> None:
        self.prompt = prompt

    def update(self, keys: Tensor, values: Tensor, layer: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return torch.cat([self.prompt.keys[layer], keys], 2), torch.cat([self.prompt.values[layer], values], 2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.prompt.length

    get_query_offset = get_seq_length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.prompt.length + query_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1


def masked_sdpa(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: None,
    scaling: float,
    seen: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend under the mask that came as a keyword of the model's forward, [K or 1, Hkv or 1, n, L + n]."""
    of_layer = seen[module.layer_idx if seen.shape[0] > 1 else 0]
    if of_layer.shape[0] > 1:
        of_layer = of_layer.repeat_interleave(query.shape[1] // key.shape[1], dim=0)
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=of_layer[None], scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return output.transpose(1, 2), None


def table(steps: Sequence[Seen], tokens: int) -> Tensor:
    """Return what each step's token sees as a mask, bool [K or 1, Hkv or 1, steps, tokens].

    Args:
        steps: per step, the positions; steps of a smaller scope hold for all layers and heads.
        tokens: of prompt and answer.
    """
    nested = [_nested(seen) for seen in steps]
    most_layers = max(len(layers) for layers in nested)
    most_heads = max(len(layers[0]) for layers in nested)
    mask = torch.zeros(most_layers, most_heads, len(nested), tokens, dtype=torch.bool)
    for step, layers in enumerate(nested):
        for layer, heads in enumerate(layers):
            for head, positions in enumerate(heads):
                of_layer = mask[layer : layer + 1] if len(layers) > 1 else mask
                of_head = of_layer[:, head : head + 1] if len(heads) > 1 else of_layer
                of_head[:, :, step, torch.tensor(list(positions), dtype=torch.long)] = True
    return mask


def _nested(seen: Seen) -> list[list[Iterable[int]]]:
    """Return positions by layer and head, whatever their scope."""
    if isinstance(seen, range) or not isinstance(seen[0], Sequence):
        return [[seen]]
    if not isinstance(seen[0][0], Sequence):
        return [[layer] for layer in seen]
    return [list(layer) for layer in seen]


def with_newcomer(kept: Seen, position: int) -> Seen:
    """Return positions, however nested, with one more in each set."""
    if isinstance(kept, range) or not kept or not isinstance(kept[0], Sequence):
        return [*kept, position]
    return [with_newcomer(part, position) for part in kept]


def reference(model: PreTrainedModel, prompt: CachedPrompt, fed: Sequence[int], steps: Sequence[Seen]) -> Tensor:
    """Return the logits after each fed token, fp32 [n, vocabulary], in one forward over the whole sequence.

    Args:
        model: the model.
        prompt: what is cached.
        fed: tokens, the first at position `prompt.length`.
        steps: per fed token, the positions that it sees, itself included.
    """
    length, device = prompt.length, model.device
    seen = table(steps, length + len(fed)).to(device)
    with attending(model, "bench_masked", masked_sdpa):
        output = model(
            input_ids=torch.tensor([list(fed)], device=device),
            position_ids=torch.arange(length, length + len(fed), device=device)[None],
            cache=_Remembering(prompt),
            use_cache=True,
            seen=seen,
        )
    return output.logits[0].float()


def gap(logits: Tensor, chosen: Sequence[int]) -> float:
    """Return how far below the best logit the chosen token's was, at worst; 0 where every choice is the best one."""
    index = torch.tensor(list(chosen), device=logits.device)[:, None]
    return float((logits.amax(-1) - logits.gather(-1, index)[:, 0]).max())
