"""A prompt whose keys and values are there already, so that hundreds of measurements need one prefill, or none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bench.bandwidth import head_dim

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class CachedPrompt(NamedTuple):
    """Tokens with their keys and values.

    Attributes:
        ids: [1, L + 1]; the last is the first token to be fed in decoding.
        keys: per layer, [1, Hkv, L, D], rotated.
        values: per layer, [1, Hkv, L, D].
    """

    ids: Tensor
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @property
    def length(self) -> int:
        """Cached tokens."""
        return self.ids.shape[1] - 1

    def first(self, length: int) -> CachedPrompt:
        """Return the first tokens of this prompt, as views: no token's keys depend on later tokens."""
        return CachedPrompt(
            self.ids[:, : length + 1],
            tuple(keys[:, :, :length] for keys in self.keys),
            tuple(values[:, :, :length] for values in self.values),
        )

    def fill(self, cache: Any, rows: int = 1) -> Any:
        """Put the prompt into a cache, once per row, and return the cache."""
        for layer, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            cache.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1), layer)
        return cache


def random_ids(model: PreTrainedModel, tokens: int) -> Tensor:
    """Return random token ids, [1, tokens], the same for the same model and number."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, model.config.vocab_size, (1, tokens), generator=generator).to(model.device)


def read_prompt(model: PreTrainedModel, length: int) -> CachedPrompt:
    """Return a prompt of random tokens that the model has read."""
    from transformers import DynamicCache

    ids = random_ids(model, length + 1)
    cache = DynamicCache(config=model.config)
    model(input_ids=ids[:, :length], cache=cache, use_cache=True, logits_to_keep=1)
    return CachedPrompt(ids, tuple(layer.keys for layer in cache.layers), tuple(layer.values for layer in cache.layers))


def drawn_prompt(model: PreTrainedModel, length: int) -> CachedPrompt:
    """Return a prompt whose keys and values are random: with random weights, reading it would make nothing else."""
    config, options = model.config, {"dtype": model.dtype, "device": model.device}
    generator = torch.Generator(model.device).manual_seed(1)
    size = (1, config.num_key_value_heads, length, head_dim(model))
    keys, values = (
        tuple(torch.randn(size, generator=generator, **options) for _ in range(config.num_hidden_layers))
        for _ in range(2)
    )
    return CachedPrompt(random_ids(model, length + 1), keys, values)


class Replayed:
    """A model in front of a cached prompt: its prefill hands the stored keys and values out, at no cost.

    `generate` then measures decoding alone, through its public interface. The stored tensors are copied by the cache
    that takes them and stay as they are.
    """

    def __init__(self, model: PreTrainedModel, prompt: CachedPrompt) -> None:
        """Put a model in front of a prompt."""
        self.model = model
        self.prompt = prompt

    def __call__(self, *, cache: Any, session: Any = None, **options: Any) -> Any:
        """Run a decode step, or replay the prefill; its logits choose the prompt's first token to be fed."""
        if session is not None:
            return self.model(cache=cache, session=session, **options)
        self.prompt.fill(cache)
        logits = torch.zeros(1, 1, self.model.config.vocab_size, device=self.model.device, dtype=self.model.dtype)
        logits[0, 0, self.prompt.ids[0, -1]] = 1.0
        return SimpleNamespace(logits=logits)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)
