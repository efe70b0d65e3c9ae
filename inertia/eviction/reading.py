"""Sessions that read many tokens at once: the prompt itself, and text after a prompt that is cached already."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from inertia.eviction.cache import PromptCache, Ring, Slots
from inertia.eviction.layers import Layers
from inertia.eviction.prompt import Prompt

# Queries that attend at one time where their weights are held: all of a long text would take gigabytes.
ROWS = 128


class Observed(NamedTuple):
    """What one layer's attention was given while reading, one sequence.

    Attributes:
        query: [Hq, N, D], rotated, of the tokens being read.
        keys: [Hkv, T, D], rotated: what was cached before, then the tokens being read.
        values: like `keys`.
        scaling: factor on q.k.
        softcap: tanh cap of the logits, or None.
        number: index among all layers.
        index: index among the eligible layers.
    """

    query: Tensor
    keys: Tensor
    values: Tensor
    scaling: float
    softcap: float | None
    number: int
    index: int


Observer = Callable[[Observed], None]


class PromptReading:
    """The prefill, with an observer on the eligible layers; attention is that of the plain prefill."""

    def __init__(self, layers: Layers, cache: PromptCache, observer: Observer) -> None:
        """Read into `cache`, showing each eligible layer to `observer`."""
        self.windows = layers.windows
        self.eligible = {layer: index for index, layer in enumerate(layers.eligible)}
        self.cache = cache
        self.observer = observer
        self.seen = 0

    def write(self, layer_idx: int, keys: Tensor, values: Tensor) -> None:
        """Store the prompt's keys and values of one layer."""
        self.cache.update(keys, values, layer_idx)

    def attend(
        self, layer_idx: int, query: Tensor, keys: Tensor, values: Tensor, scaling: float, softcap: float | None
    ) -> Tensor:
        """Attend causally and return the output [1, N, Hq, D].

        Raises:
            ValueError: the model caps its logits, which the fused kernel cannot.
        """
        if softcap is not None:
            raise ValueError("this model caps its attention logits; prompts cannot be compressed on it.")
        mask = None
        if (window := self.windows[layer_idx]) is not None:
            index = torch.arange(query.shape[2], device=query.device)
            apart = index[:, None] - index[None, :]
            mask = (apart >= 0) & (apart < window)
        output = torch.nn.functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=mask is None and query.shape[2] > 1, scale=scaling,
            enable_gqa=query.shape[1] != keys.shape[1],
        )  # fmt: skip
        if layer_idx in self.eligible:
            index = self.eligible[layer_idx]
            self.observer(Observed(query[0], keys[0], values[0], scaling, softcap, layer_idx, index))
        return output.transpose(1, 2)


class Reading:
    """Text read after a cached prompt: each token sees what is cached and the text up to itself.

    With `store`, the text is appended to the prompt, which needs room for it; without, the prompt stays as it is.
    """

    def __init__(
        self, layers: Layers, prompt: Prompt, tokens: int, *, store: bool, observer: Observer | None = None
    ) -> None:
        """Prepare to read `tokens` tokens at the positions that follow the prompt."""
        self.prompt = prompt
        self.tokens = tokens
        self.store = store
        self.observer = observer
        self.seen = prompt.length
        self.eligible = {layer: index for index, layer in enumerate(layers.eligible)}
        self.counts = prompt.counts()
        self.before = prompt.unit_positions("per_head").expand(prompt.depth, prompt.heads, -1)

    def write(self, layer_idx: int, keys: Tensor, values: Tensor) -> None:
        """Nothing yet: a ring must still show what the text will overwrite."""

    def attend(
        self, layer_idx: int, query: Tensor, keys: Tensor, values: Tensor, scaling: float, softcap: float | None
    ) -> Tensor:
        """Attend, then store; returns the output [1, N, Hq, D]."""
        layer = self.prompt.layers[layer_idx]
        new = torch.arange(self.seen, self.seen + self.tokens, device=query.device)
        if isinstance(layer, Ring):
            slots = torch.arange(layer.window, device=query.device)
            # The latest position before the text that lies in each slot; negative where there is none.
            old = (self.seen - 1) - ((self.seen - 1 - slots) % layer.window)
            output = self._read(layer, query, keys, values, old[None], new, scaling, softcap, layer.window)
            if self.store:
                layer.fill(keys, values, self.seen)
            return output
        index = self.eligible[layer_idx]
        old = self.before[index, :, : layer.keys.shape[2]].to(query.device)
        output = self._read(layer, query, keys, values, old, new, scaling, softcap, None)
        if self.observer is not None:
            cached = old.shape[1]
            seen_keys = torch.cat([layer.keys[0, :, :cached], keys[0]], dim=1)
            seen_values = torch.cat([layer.values[0, :, :cached], values[0]], dim=1)
            self.observer(Observed(query[0], seen_keys, seen_values, scaling, softcap, layer_idx, index))
        if self.store:
            heads = torch.arange(self.prompt.heads, device=query.device)[:, None]
            slots = self.counts[index][:, None].to(query.device) + torch.arange(self.tokens, device=query.device)
            layer.keys[0, heads, slots] = keys[0]
            layer.values[0, heads, slots] = values[0]
        return output

    def finish(self) -> None:
        """Count the text as part of the prompt, after the forward (with `store` only)."""
        if self.prompt.positions is not None:
            steps = torch.arange(self.tokens, device=self.counts.device)
            slots = self.counts[..., None] + steps
            self.prompt.positions.scatter_(-1, slots, (self.seen + steps).expand_as(slots))
        self.prompt.length += self.tokens

    def _read(
        self, layer: Slots | Ring, query: Tensor, keys: Tensor, values: Tensor, old: Tensor, new: Tensor,
        scaling: float, softcap: float | None, window: int | None,
    ) -> Tensor:  # fmt: skip
        """Return the output of all queries over the cached slots at positions `old` [Hkv or 1, n] and the text."""
        cached = old.shape[1]
        all_keys = torch.cat([layer.keys[:, :, :cached], keys], dim=2)
        all_values = torch.cat([layer.values[:, :, :cached], values], dim=2)
        positions = torch.cat([old, new.expand(old.shape[0], -1)], dim=1)
        _, query_heads, tokens, head_dim = query.shape
        grouped = query.view(keys.shape[1], -1, tokens, head_dim)
        outputs = []
        for first in range(0, tokens, ROWS):
            rows = grouped[:, :, first : first + ROWS]
            at = new[first : first + ROWS]
            apart = at[:, None] - positions[:, None, :]
            visible = (positions[:, None, :] >= 0) & (apart >= 0)
            if window is not None:
                visible &= apart < window
            if softcap is None:
                read = plain_read(rows, all_keys, all_values, visible, scaling)
            else:
                read = capped_read(rows, all_keys, all_values, visible, scaling, softcap)
            outputs.append(read)
        return torch.cat(outputs, dim=2).reshape(1, query_heads, tokens, head_dim).transpose(1, 2)


def plain_read(rows: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scaling: float) -> Tensor:
    """Return the attention of some queries through the library's kernel, which holds no weights.

    Args:
        rows: [Hkv, G, N, D].
        keys: [1, Hkv, T, D].
        values: like `keys`.
        visible: [Hkv or 1, N, T].
        scaling: factor on q.k.

    Returns:
        Like `rows`.
    """
    heads, group = rows.shape[:2]
    mask = visible if visible.shape[0] == 1 else visible.repeat_interleave(group, dim=0)
    output = torch.nn.functional.scaled_dot_product_attention(
        rows.flatten(0, 1)[None], keys, values, attn_mask=mask[None], scale=scaling, enable_gqa=group > 1
    )
    return output[0].view(heads, group, *rows.shape[2:])


def capped_read(rows: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scaling: float, softcap: float) -> Tensor:
    """Return the attention of some queries with capped logits, which the library's kernel cannot; see `plain_read`."""
    logits = torch.matmul(rows.flatten(1, 2), keys[0].transpose(-1, -2)).float() * scaling
    logits = torch.tanh(logits / softcap) * softcap
    logits = logits.view(*rows.shape[:3], -1).masked_fill(~visible[:, None], float("-inf"))
    weights = torch.softmax(logits, dim=-1).to(values.dtype)
    return torch.matmul(weights.flatten(1, 2), values[0]).view(*rows.shape)
