"""Families of decoders, each as a tiny random model: decoded exactly, or refused by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel

    from inertia.eviction.layers import Layers

TOLERANCE = 1e-4
VOCABULARY = 97
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
HEAD = {"head_dim": 8}
UNGROUPED = {"num_key_value_heads": None}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED = {
    **EXPERTS, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6,
    "num_key_value_heads": 4,
}  # fmt: skip
DELTA = {
    **HEAD, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"] * 2,
}  # fmt: skip
MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1}
WINDOWS = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"] * 2}
CONV = {"layer_types": ["conv", "full_attention"] * 2}
LONGROPE = {
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16,
        "short_factor": [1.0] * 4, "long_factor": [4.0, 6.0, 8.0, 10.0],
    },
    "original_max_position_embeddings": 16,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """One family, made small.

    Attributes:
        model_type: transformers' name of it.
        settings: of its config, beside and over `COMMON`.
        prompt: tokens of the prompt that it is tried on.
        new_tokens: tokens of the answer.
        tolerance: of fp32 logits, where transformers' own cached decoding is as far from reading the whole prefix.
    """

    model_type: str
    settings: dict[str, Any] = field(default_factory=dict)
    prompt: int = 12
    new_tokens: int = 10
    tolerance: float = TOLERANCE


def _named(*families: Family, **variants: Family) -> dict[str, Family]:
    """Return families by model type, and variants by a name of their own."""
    return {
        **{family.model_type: family for family in families},
        **{k.replace("__", " "): v for k, v in variants.items()},
    }


FAMILIES = _named(
    # Full attention in every layer, or sliding windows between.
    Family("llama"),
    Family("mistral", {"sliding_window": None}),
    Family("ministral", {**HEAD, **WINDOWS}),
    Family("mixtral", {**LOCAL, "sliding_window": None}),
    Family("qwen2"),
    Family("qwen2_moe", EXPERTS),
    Family("qwen3", HEAD),
    Family("qwen3_moe", {**HEAD, **EXPERTS}),
    Family("gemma", HEAD),
    Family("gemma2", {**HEAD, **WINDOWS, "query_pre_attn_scalar": 8}),
    Family("gemma3_text", {**HEAD, **WINDOWS, "query_pre_attn_scalar": 8}),
    Family("phi"),
    Family("phi3"),
    Family("glm", HEAD),
    Family("glm4", HEAD),
    Family("glm4_moe", {**HEAD, **ROUTED}),
    Family("cohere"),
    Family("cohere2", {**WINDOWS}),
    Family("olmo2"),
    Family("olmo3", WINDOWS),
    Family("olmoe", EXPERTS),
    Family("granite"),
    Family("granitemoe", LOCAL),
    Family("smollm3"),
    Family("exaone4", WINDOWS),
    Family("ernie4_5", HEAD),
    Family("hunyuan_v1_dense", HEAD),
    Family("seed_oss", HEAD),
    Family("starcoder2", {"sliding_window": None}),
    Family("helium", HEAD),
    Family("apertus"),
    Family("gpt_neox", UNGROUPED),
    Family("gpt2", UNGROUPED),
    Family("opt", {**UNGROUPED, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    # Learned sinks, and one latent for all heads.
    Family("gpt_oss", {**HEAD, **LOCAL, **WINDOWS}),
    Family("deepseek_v2", {**LATENT, **ROUTED}),
    Family("deepseek_v3", {**LATENT, **ROUTED}),
    # ALiBi, by true positions; Falcon with rotary positions has an attention of its own too.
    Family("bloom", {**UNGROUPED, "n_head": 4, "n_layer": 4}),
    Family("mpt", {**UNGROUPED, "d_model": 32, "n_heads": 4, "n_layers": 4, "max_seq_len": 128}),
    Family("falcon", {"num_key_value_heads": 1, "alibi": False}),
    # Full attention beside layers that keep a state.
    Family("qwen3_next", {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 16}),
    Family("qwen3_5_text", DELTA),
    Family("olmo_hybrid", DELTA),
    Family(
        "granitemoehybrid",
        {**MAMBA2, **LOCAL, "layer_types": ["mamba", "attention"] * 2, "shared_intermediate_size": 16},
    ),
    Family("bamba", {**MAMBA2, "attn_layer_indices": [1, 3]}),
    Family("falcon_h1", {**HEAD, **MAMBA2, "mamba_d_ssm": 64}),
    Family(
        "jamba",
        {"attn_layer_offset": 1, "attn_layer_period": 2, "num_experts": 4, "mamba_d_state": 8, "mamba_dt_rank": 8},
    ),
    Family(
        "nemotron_h",
        {**HEAD, "hybrid_override_pattern": "M*M-*", "num_hidden_layers": 5, "mamba_num_heads": 4,
         "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1},
        tolerance=1e-2,
    ),
    Family("lfm2", CONV),
    Family("lfm2_moe", {**CONV, **EXPERTS, "num_dense_layers": 1}),
    # Rotary frequencies that change with length: exact on one side of the change.
    llama__yarn=Family("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}}),
    llama__dynamic=Family("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}),
    phi3__longrope__below=Family("phi3", LONGROPE, prompt=8, new_tokens=9),
    phi3__longrope__beyond=Family("phi3", LONGROPE, prompt=17),
    falcon__alibi=Family("falcon", {**UNGROUPED, "alibi": True, "multi_query": False}),
    # Refused.
    phi3__longrope__across=Family("phi3", LONGROPE, prompt=12),
    mistral__windowed=Family("mistral", {"sliding_window": 6}),
    **{
        family.model_type: family
        for family in (
            Family("llama4_text", HEAD),
            Family("mamba", {"hidden_size": 32}),
            Family("recurrent_gemma", {"hidden_size": 32}),
            Family("minimax", {**HEAD, **LOCAL, "layer_types": ["linear_attention", "full_attention"] * 2}),
            Family("nemotron"),
            Family("stablelm"),
            Family("doge"),
            Family("xglm", {"d_model": 32, "attention_heads": 4, "num_layers": 4, "ffn_dim": 48}),
            Family("t5"),
        )
    },
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What became of a family.

    Attributes:
        layers: the model's layers, None where it is refused.
        refused: why it is refused, None where it is exact.
    """

    layers: Layers | None
    refused: str | None = None

    def __str__(self) -> str:
        if self.layers is None:
            return f"refused: {self.refused}"
        cut, total = len(self.layers.eligible), len(self.layers.windows)
        rest = (
            ""
            if cut == total
            else f", the other {total - cut} keep {'a state' if self.layers.stateful else 'a window'}"
        )
        return f"exact: policies act in {cut} of {total} layers{rest}"


def outcome(name: str) -> Outcome:
    """Decode a family with the full cache, and compare with decoding that reads the whole prefix at every step.

    Raises:
        AssertionError: neither exact nor refused.
    """
    from inertia.backbones.checks import check_supported
    from inertia.decoding.generation import generate
    from inertia.decoding.request import Observation
    from inertia.eviction.layers import layers_of
    from inertia.methods import preset

    family = FAMILIES[name]
    config = config_of(family)
    try:
        check_supported(config)
        model, ids = build(config), prompt_of(family)
        (made,) = generate(model, ids, [preset("full_cache")], family.new_tokens, observe=Observation(logits=True))
    except (ValueError, RuntimeError) as error:
        return Outcome(None, str(error))
    tokens, logits = greedy(model, ids, family.new_tokens)
    apart = float((made.logits - logits).abs().max())
    if made.tokens != tokens or not apart <= family.tolerance:
        raise AssertionError(f"{name} is neither exact nor refused: its logits differ by {apart}")
    return Outcome(layers_of(config))


def config_of(family: Family) -> PretrainedConfig:
    """Return the family's config, made small."""
    from transformers import AutoConfig

    return AutoConfig.for_model(family.model_type, **{**COMMON, **family.settings})


def build(config: PretrainedConfig) -> PreTrainedModel:
    """Return a random model of a config, a function of the config alone, with the attention that it prefers."""
    import torch
    from transformers import AutoModelForCausalLM

    from inertia.backbones.attention_adapters import adapt
    from inertia.backbones.tiny import fill

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    fill(model, seed=0)
    return adapt(model).eval().requires_grad_(False)


def prompt_of(family: Family) -> Tensor:
    """Return the prompt that a family is tried on, [1, L0]."""
    import torch

    return torch.randint(3, VOCABULARY, (1, family.prompt), generator=torch.Generator().manual_seed(1))


def greedy(model: PreTrainedModel, ids: Tensor, new_tokens: int) -> tuple[list[int], Tensor]:
    """Decode greedily without a cache, reading the whole prefix at every step.

    Returns:
        Tokens, and the logits that chose each, [tokens, vocabulary].
    """
    import torch

    logits = []
    with torch.inference_mode():
        for _ in range(new_tokens):
            logits.append(model(input_ids=ids, use_cache=False).logits[0, -1])
            ids = torch.cat([ids, logits[-1].argmax().view(1, 1)], dim=1)
    return ids[0, -new_tokens:].tolist(), torch.stack(logits)
