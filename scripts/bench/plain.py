"""Plain decoding, without any policy: what every step of ours is compared with."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bench.prompt import CachedPrompt
from bench.timing import LEAD, Mark, Run
from inertia.eviction.attention import attending

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GROWING, STATIC, SLOTS_SDPA, SLOTS_MATMUL = "growing", "static", "slots_sdpa", "slots_matmul"
# The candidates for the fastest correct plain step over a fixed number of slots.
FLOORS = (STATIC, SLOTS_SDPA, SLOTS_MATMUL)


class SlotCache:
    """Keys and values in a fixed block of slots; the newcomer overwrites the oldest token in place.

    Attention does not care about the order of slots, since keys are already rotated.
    """

    is_compileable = False

    def __init__(self, prompt: CachedPrompt, rows: int) -> None:
        """Copy a prompt that fills all slots, once per row."""
        self.keys = [keys.repeat(rows, 1, 1, 1) for keys in prompt.keys]
        self.values = [values.repeat(rows, 1, 1, 1) for values in prompt.values]
        self.slots, self.slot = prompt.length, 0

    def update(self, keys: Tensor, values: Tensor, layer: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the newcomers, [R, Hkv, 1, D], and return all slots, [R, Hkv, B, D]."""
        self.keys[layer][:, :, self.slot : self.slot + 1] = keys
        self.values[layer][:, :, self.slot : self.slot + 1] = values
        if layer == len(self.keys) - 1:
            self.slot = (self.slot + 1) % self.slots
        return self.keys[layer], self.values[layer]

    # Asked by the model and unused: position ids are always explicit, and no mask is built.
    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return a length."""
        return self.slots

    get_query_offset = get_seq_length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return (keys, offset)."""
        return self.slots, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Return -1: no maximum."""
        return -1


def sdpa(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: None,
    scaling: float,
    seen: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend with torch's own kernel; [R, Hq, n, D] in, [R, n, Hq, D] out.

    To all slots, or to those of the mask that came as a keyword of the model's forward, bool [K, Hkv, n, C].
    """
    groups = query.shape[1] // key.shape[1]
    of_layer = None if seen is None else seen[module.layer_idx].repeat_interleave(groups, dim=0)[None]
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=of_layer, scale=scaling, enable_gqa=groups > 1
    )
    return output.transpose(1, 2), None


def matmul(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None, scaling: float, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attend to all slots with two products, the heads of a group as rows of one matrix; shapes as `sdpa`, n = 1."""
    rows, heads, _, head_dim = query.shape
    grouped = query.view(rows, key.shape[1], -1, head_dim) * scaling
    weights = torch.softmax(torch.matmul(grouped, key.transpose(-1, -2)), dim=-1, dtype=torch.float32)
    return torch.matmul(weights.to(value.dtype), value).reshape(rows, 1, heads, head_dim), None


def start(kind: str, kept: int, steps: int) -> int:
    """Return how many tokens are cached before the first step, so that a timed step attends to `kept` of them.

    A growing cache does so on average, a static one is full at the end, slots always.
    """
    return {GROWING: kept - (steps + LEAD) // 2, STATIC: kept - steps - LEAD}.get(kind, kept)


def run(
    kind: str, model: PreTrainedModel, prompt: CachedPrompt, kept: int, steps: int, mark: Mark, rows: int = 1
) -> Run:
    """Decode plainly and greedily.

    Args:
        kind: "growing", "static", "slots_sdpa" or "slots_matmul".
        model: the model.
        prompt: at least `kept` tokens.
        kept: cached tokens.
        steps: timed steps; LEAD more come before.
        mark: called after every step.
        rows: of the batch, all with the same prompt.
    """
    from transformers import DynamicCache, StaticCache

    prompt = prompt.first(start(kind, kept, steps))
    within: Any = nullcontext()
    if kind == GROWING:
        cache = prompt.fill(DynamicCache(config=model.config), rows)
    elif kind == STATIC:
        cache = prompt.fill(StaticCache(config=model.config, max_cache_len=kept), rows)
    else:
        cache = SlotCache(prompt, rows)
        within = attending(model, f"bench_{kind}", {SLOTS_SDPA: sdpa, SLOTS_MATMUL: matmul}[kind])
    fed = prompt.ids[:, -1:].expand(rows, 1)
    chosen: list[list[int]] = []
    with within:
        for step in range(steps + LEAD):
            at = torch.full((rows, 1), prompt.length + step, device=model.device)
            best = model(input_ids=fed, position_ids=at, cache=cache, use_cache=True).logits[:, -1].argmax(dim=-1)
            chosen.append(best.tolist())
            mark()
            fed = best[:, None]
    return Run(tuple(zip(*chosen, strict=True)), held(cache), (kept,) * rows)


def held(cache: Any) -> int:
    """Return the bytes of a cache's keys and values."""
    if isinstance(cache, SlotCache):
        return sum(tensor.nbytes for tensor in (*cache.keys, *cache.values))
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def expected(model: PreTrainedModel, prompt: CachedPrompt, tokens: int) -> list[int]:
    """Return what transformers' own `generate` answers to a prompt, greedily."""
    from transformers import DynamicCache

    output = model.generate(
        prompt.ids,
        cache=prompt.fill(DynamicCache(config=model.config)),
        attention_mask=torch.ones_like(prompt.ids),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return output[0, prompt.ids.shape[1] :].tolist()


def seen(kind: str, kept: int, steps: int) -> list[range]:
    """Return the positions that the token of each step sees: all of them, or with slots the last `kept`."""
    cached = start(kind, kept, steps)
    return [
        range(0 if kind in (GROWING, STATIC) else step + 1, cached + step + 1) for step in range(steps + LEAD)
    ]
