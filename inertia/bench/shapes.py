"""Models by shape: what is measured does not depend on the weights, so most of them are random."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Standard deviation of random weights, as Llama starts its training.
SPREAD = 0.02
_LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}


@dataclass(frozen=True)
class Shape:
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
    config: Mapping[str, Any] | None = field(default=None, hash=False)


# A small vocabulary, so that four layers outweigh the head as 32 do on the real model.
SHAPES: Mapping[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape("smollm2-135m", (256, 1024, 4096), 8),
        Shape(
            "llama-8b-4-layers",
            (1024, 4096, 16384),
            4,
            {**_LLAMA_8B, "num_hidden_layers": 4, "vocab_size": 32000},
        ),
        # Where the cache outweighs the weights, so that what eviction costs is seen whole.
        Shape(
            "4-layers",
            (4096, 16384),
            16,
            {
                "hidden_size": 512,
                "intermediate_size": 2048,
                "num_hidden_layers": 4,
                "num_attention_heads": 8,
                "num_key_value_heads": 2,
                "vocab_size": 8192,
                "max_position_embeddings": 131072,
            },
        ),
        Shape("llama-8b", (256, 1024, 4096, 16384), 32, {**_LLAMA_8B, "num_hidden_layers": 32, "vocab_size": 128256}),
        Shape(
            "tiny",
            (64, 256),
            8,
            {
                "hidden_size": 128,
                "intermediate_size": 256,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "vocab_size": 1024,
                "max_position_embeddings": 32768,
            },
        ),
    )
}


def shape_named(name: str) -> Shape:
    """Return a shape.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in SHAPES:
        raise ValueError(f"--shape {name} is unknown; give one of {', '.join(SHAPES)}.")
    return SHAPES[name]


def weight_bytes(shape: Shape, dtype: torch.dtype) -> int:
    """Return what the weights of a shape take, in bytes, without making them; 0 for the embedded model."""
    if shape.config is None:
        return 0
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in _llama(shape).parameters()) * dtype.itemsize


def build(shape: Shape, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """Return the model of a shape, ready to decode.

    Args:
        shape: which.
        device: where it goes.
        dtype: of weights and computation.
    """
    if shape.config is None:
        from inertia.backbones import load, read
        from inertia.paths import config_dir

        config = read(config_dir() / "backbone" / f"{shape.name}.yaml")
        model = load(replace(config, device=device, dtype=str(dtype).removeprefix("torch."))).model
        # The bench feeds random tokens on and on; none of them ends an answer.
        model.generation_config.eos_token_id = None
        return model
    with torch.device("meta"):
        model = _llama(shape)
    model = model.to(dtype).to_empty(device=device)
    # Its frequencies are no weights, so they were lost with the meta device.
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config).to(device)
    generator = torch.Generator(device).manual_seed(0)
    half_width = SPREAD * math.sqrt(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
            else:
                parameter.uniform_(-half_width, half_width, generator=generator)
    return model.eval().requires_grad_(False)


def window(model: PreTrainedModel) -> int:
    """Return how many tokens a model can see."""
    return model.config.max_position_embeddings


def _llama(shape: Shape) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(**shape.config, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
