"""Models by shape: what is measured does not depend on the weights, so most of them are random."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Shape(NamedTuple):
    """One model to measure.

    Attributes:
        name: what `--shape` takes.
        kept: kept tokens that are measured unless others are asked for.
        steps: timed decode steps of one repeat, likewise; a multiple of 4, so that whole periods of Lazy-4 fit.
        config: of a Llama with random weights; None for the embedded model of this name.
    """

    name: str
    kept: tuple[int, ...]
    steps: int
    config: Mapping[str, int] | None


def _llama(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocabulary: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": 131072,
    }


_ALL = (
    Shape("smollm2-135m", (256, 1024, 4096), 8, None),
    # A small vocabulary, so that four layers outweigh the head as 32 do on the real model.
    Shape("llama-8b-4-layers", (1024, 4096, 16384), 4, _llama(4096, 14336, 4, 32, 8, 32000)),
    # Where the cache outweighs the weights, so that what eviction costs is seen whole.
    Shape("4-layers", (4096, 16384), 16, _llama(512, 2048, 4, 8, 2, 8192)),
    Shape("llama-8b", (256, 1024, 4096, 16384), 32, _llama(4096, 14336, 32, 32, 8, 128256)),
    Shape("tiny", (64, 256), 8, _llama(128, 256, 2, 4, 2, 1024)),
)
SHAPES: Mapping[str, Shape] = {shape.name: shape for shape in _ALL}


def weight_bytes(shape: Shape, dtype: torch.dtype) -> int:
    """Return what the weights of a shape take, in bytes, without making them; 0 for the embedded model."""
    if shape.config is None:
        return 0
    with torch.device("meta"):
        return sum(parameter.nbytes for parameter in _random(shape, dtype).parameters())


def build(shape: Shape, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """Return the model of a shape, ready to decode; random weights are the same for the same shape and device."""
    if shape.config is not None:
        with torch.random.fork_rng(), torch.device(device):
            torch.manual_seed(0)
            return _random(shape, dtype).eval().requires_grad_(False)
    from inertia.backbones import load, read
    from inertia.paths import config_dir

    config = read(config_dir() / "backbone" / f"{shape.name}.yaml")
    model = load(replace(config, device=device, dtype=str(dtype).removeprefix("torch."))).model
    # The bench feeds random tokens on and on; none of them ends an answer.
    model.generation_config.eos_token_id = None
    return model


def window(model: PreTrainedModel) -> int:
    """Return how many tokens a model can see."""
    return model.config.max_position_embeddings


def _random(shape: Shape, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(**shape.config, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
