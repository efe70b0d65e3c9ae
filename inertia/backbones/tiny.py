"""Small models with random weights, the same on every machine, of the architectures we support."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from inertia.backbones.config import BackboneConfig

ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "gemma3")
WITH_WINDOW = ("mistral", "gemma3")

# Raise it whenever the same arguments would give other weights, or the tokenizer other ids, than before.
RECIPE = 1
VOCABULARY = 1024
GEMMA_WINDOW = 32  # tokens; small, so that short tests cross it


def tiny_model(
    architecture: str = "llama",
    *,
    layers: int = 3,
    query_heads: int = 9,
    kv_heads: int = 3,
    head_dim: int = 8,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    sliding_window: int | None = None,
    context_window: int = 8192,
    attention: str = "sdpa",
) -> PreTrainedModel:
    """Return a random model on the CPU, in evaluation mode, its weights a function of the arguments alone.

    Hidden size is query_heads x head_dim; biases and norm weights are random too, so that leaving one out
    shows.

    Args:
        architecture: one of `ARCHITECTURES`.
        layers: decoder layers.
        query_heads: Hq.
        kv_heads: Hkv.
        head_dim: D, even.
        seed: of the weights.
        dtype: weights are drawn in fp32 and rounded to it.
        sliding_window: tokens. gemma3: of layers 0, 2, 4... (default 32), the others being full attention,
            and so is a single layer. mistral: of every layer (default none, as in v0.3). Others have none.
        context_window: positions.
        attention: attention implementation.

    Raises:
        ValueError: unknown architecture, or a window where there can be none.
    """
    from transformers import AutoModelForCausalLM

    config = tiny_config(architecture, layers, query_heads, kv_heads, head_dim, sliding_window, context_window)
    # transformers draws its initial weights from the global generator, which is the caller's.
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    fill(model, seed)
    return model.to(dtype).eval().requires_grad_(False)


def tiny_config(
    architecture: str,
    layers: int,
    query_heads: int,
    kv_heads: int,
    head_dim: int,
    sliding_window: int | None = None,
    context_window: int = 8192,
) -> PretrainedConfig:
    """Return the configuration of a tiny model; arguments and errors are those of `tiny_model`."""
    if architecture not in ARCHITECTURES:
        raise ValueError(f"no tiny architecture {architecture!r}; allowed: {', '.join(ARCHITECTURES)}")
    if sliding_window is not None and architecture not in WITH_WINDOW:
        raise ValueError(
            f"sliding_window is {sliding_window}, but {architecture!r} has no window; "
            f"leave it out, or take one of: {', '.join(WITH_WINDOW)}"
        )
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": query_heads * head_dim,
        "intermediate_size": 2 * query_heads * head_dim,
        "num_hidden_layers": layers,
        "num_attention_heads": query_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": context_window,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 3,
    }
    return _config(architecture, shape, sliding_window)


def config_of(config: BackboneConfig) -> PretrainedConfig:
    """Return the configuration of the tiny model that a backbone config describes."""
    fields = ("architecture", "layers", "query_heads", "kv_heads", "head_dim", "sliding_window", "context_window")
    return tiny_config(*(getattr(config, name) for name in fields))


def build(config: BackboneConfig) -> PreTrainedModel:
    """Return the tiny model that a backbone config describes."""
    fields = ("architecture", "layers", "query_heads", "kv_heads", "head_dim", "seed", "sliding_window")
    return tiny_model(
        **{name: getattr(config, name) for name in fields},
        dtype=getattr(torch, config.dtype),
        context_window=config.context_window,
        attention=config.prefill_attention,
    )


def _config(architecture: str, shape: dict[str, Any], window: int | None) -> PretrainedConfig:
    from transformers import AutoConfig

    count, width = shape["num_hidden_layers"], shape["hidden_size"]
    special: dict[str, dict[str, Any]] = {
        "mistral": {"sliding_window": window},
        "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": width},
        "gemma3": {
            "layer_types": ["full_attention" if i % 2 or count == 1 else "sliding_attention" for i in range(count)],
            "sliding_window": GEMMA_WINDOW if window is None else window,
            "query_pre_attn_scalar": shape["head_dim"],
        },
    }
    model_type = "gemma3_text" if architecture == "gemma3" else architecture
    return AutoConfig.for_model(model_type, **shape, **special.get(architecture, {}))


def fill(model: PreTrainedModel, seed: int) -> None:
    """Draw all weights of a model anew, in place, each a function of its name and the seed alone."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # One generator per name: a further layer leaves the others as they were.
            drawn = hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8]
            generator = torch.Generator().manual_seed(int.from_bytes(drawn, "big") >> 1)
            # rand and not randn: its bits come from integers, those of randn from the CPU's logarithms and
            # cosines.
            centred = torch.rand(parameter.shape, generator=generator) * 2 - 1
            if parameter.dim() > 1:
                # Unit variance in, unit variance out: attention is neither flat nor one-hot.
                parameter.copy_(centred * (3 / parameter.shape[-1]) ** 0.5)
            else:
                # Biases start at 0, norm weights at 1 or (Gemma) at 0: stay near what each kind means.
                parameter.add_(centred / 4)
