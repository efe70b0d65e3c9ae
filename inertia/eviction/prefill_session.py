"""Sessions that read many tokens at once: the prompt itself, and text after a prompt that is cached already."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from inertia.eviction.attention import Logits, softmax_weights
from inertia.eviction.cache import PromptCache, SlidingWindow, Slots
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


class PrefillSession:
    """The prefill, with an observer on the eligible layers; attention is that of the plain prefill."""

    def __init__(self, layers: Layers, cache: PromptCache, observer: Observer) -> None:
        """Read into `cache`, showing each eligible layer to `observer`."""
        self.windows = layers.windows
        self.eligible = {layer: index for index, layer in enumerate(layers.eligible)}
        self.cache = cache
        self.observer = observer
        self.seen = 0
        self.states = cache.states
        self.write = cache.write

    def attend(self, layer_idx: int, query: Tensor, keys: Tensor, values: Tensor, logits: Logits) -> Tensor:
        """Attend causally and return the output [1, N, Hq, Dv].

        Raises:
            ValueError: the model caps its logits or has learned sinks, which the fused kernel cannot; or one cached
                head serves several heads of keys and values, so that observers would rank what is not cached.
        """
        if logits.softcap is not None:
            raise ValueError("this model caps its attention logits; prompts cannot be compressed on it.")
        check_observed_layer(logits, keys, self.cache.layers[layer_idx])
        mask = None
        if (window := self.windows[layer_idx]) is not None:
            index = torch.arange(query.shape[2], device=query.device)
            apart = index[:, None] - index[None, :]
            mask = (apart >= 0) & (apart < window)
        output = torch.nn.functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=mask is None and query.shape[2] > 1, scale=logits.scaling,
            enable_gqa=query.shape[1] != keys.shape[1],
        )  # fmt: skip
        if layer_idx in self.eligible:
            index = self.eligible[layer_idx]
            self.observer(Observed(query[0], keys[0], values[0], logits.scaling, logits.softcap, layer_idx, index))
        return output.transpose(1, 2)


class ContinuationSession:
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
        self.states = prompt.states
        self.eligible = {layer: index for index, layer in enumerate(layers.eligible)}
        self.windows = layers.windows
        self.counts = prompt.counts()
        self.before = prompt.unit_positions("per_head").expand(prompt.depth, prompt.heads, -1)

    def write(self, layer_idx: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is cached with the text behind it, [1, Hkv, cached + N, ..]; store the text if it is to stay."""
        layer = self.prompt.layers[layer_idx]
        cached = self._positions(layer_idx, keys.device).shape[1]
        both = torch.cat([layer.keys[:, :, :cached], keys], 2), torch.cat([layer.values[:, :, :cached], values], 2)
        if self.store and layer_idx not in self.eligible:
            layer.fill(keys, values, self.seen)
        elif self.store:
            heads = torch.arange(self.prompt.heads, device=keys.device)[:, None]
            counts = self.counts[self.eligible[layer_idx]][:, None].to(keys.device)
            slots = counts + torch.arange(self.tokens, device=keys.device)
            layer.keys[0, heads, slots] = keys[0]
            layer.values[0, heads, slots] = values[0]
        return both

    def attend(self, layer_idx: int, query: Tensor, keys: Tensor, values: Tensor, logits: Logits) -> Tensor:
        """Attend to what `write` returned and return the output [1, N, Hq, Dv].

        Raises:
            ValueError: the model has a bias on its logits.
        """
        if logits.bias is not None:
            raise ValueError(
                "this model's attention has a bias on its logits (ALiBi), so that its prompts are read at once; set "
                "execution.prefill_chunk=null and compress no context."
            )
        old, window = self._positions(layer_idx, query.device), self.windows[layer_idx]
        new = torch.arange(self.seen, self.seen + self.tokens, device=query.device)
        positions = torch.cat([old, new.expand(old.shape[0], -1)], dim=1)
        if self.observer is not None and layer_idx in self.eligible:
            check_observed_layer(logits, keys, self.prompt.layers[layer_idx])
            number = self.eligible[layer_idx]
            self.observer(Observed(query[0], keys[0], values[0], logits.scaling, logits.softcap, layer_idx, number))
        outputs = []
        for at, rows in zip(new.split(ROWS), query.split(ROWS, dim=2), strict=True):
            apart = at[:, None] - positions[:, None, :]
            visible = (positions[:, None, :] >= 0) & (apart >= 0)
            if window is not None:
                visible &= apart < window
            read = plain_read if logits.softcap is None and logits.beyond() is None else weighted_read
            outputs.append(read(rows, keys, values, visible, logits))
        return torch.cat(outputs, dim=2).transpose(1, 2)

    def finish(self) -> None:
        """Count the text as part of the prompt, after the forward (with `store` only)."""
        if self.prompt.positions is not None:
            steps = torch.arange(self.tokens, device=self.counts.device)
            slots = self.counts[..., None] + steps
            self.prompt.positions.scatter_(-1, slots, (self.seen + steps).expand_as(slots))
        self.prompt.length += self.tokens

    def _positions(self, layer_idx: int, device: torch.device) -> Tensor:
        """Return the true positions of what a layer has cached before the text, [Hkv or 1, n]; -1 where empty."""
        if layer_idx in self.eligible:
            return self.before[self.eligible[layer_idx], :, : self.prompt.layers[layer_idx].keys.shape[2]].to(device)
        window = self.windows[layer_idx]
        slots = torch.arange(window, device=device)
        # The latest position before the text that lies in each slot; negative where there is none.
        return ((self.seen - 1) - ((self.seen - 1 - slots) % window))[None]


def check_observed_layer(logits: Logits, keys: Tensor, cached: Slots | SlidingWindow) -> None:
    """Refuse to show a layer to those who compress prompts where they would rank otherwise than it attends.

    Raises:
        ValueError: the layer has learned sinks or a bias, or one cached head serves several heads of keys (MLA).
    """
    has = logits.beyond()
    if has is None and keys.shape[1] != cached.keys.shape[1]:
        has = "one cached latent for several heads (MLA)"
    if has is not None:
        raise ValueError(f"this model's attention has {has}; prompts cannot be compressed on it.")


def plain_read(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, logits: Logits) -> Tensor:
    """Return the attention of some queries through the library's kernel, which holds no weights.

    Args:
        query: [1, Hq, N, D].
        keys: [1, H, T, D].
        values: [1, H, T, Dv].
        visible: [Hkv or 1, N, T], Hkv dividing H.
        logits: of the layer.

    Returns:
        [1, Hq, N, Dv].
    """
    heads = visible.shape[0]
    mask = visible if heads == 1 else visible.repeat_interleave(query.shape[1] // heads, dim=0)
    return torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask[None], scale=logits.scaling, enable_gqa=query.shape[1] != keys.shape[1]
    )


def weighted_read(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, logits: Logits) -> Tensor:
    """Return the attention of some queries with capped logits or sinks, which the kernel cannot; see `plain_read`."""
    heads, tokens = keys.shape[1], query.shape[2]
    group = query.shape[1] // heads
    grouped = query.reshape(1, heads, group * tokens, -1)
    if logits.sinks is not None:
        logits = logits._replace(sinks=logits.sinks.view(heads, group).repeat_interleave(tokens, dim=1))
    weights = softmax_weights(grouped, keys, logits, visible.repeat(1, group, 1)[None])
    return torch.matmul(weights.to(values.dtype), values).reshape(1, query.shape[1], tokens, -1)
