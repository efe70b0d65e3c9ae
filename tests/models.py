"""Tiny random models of the architectures that the core must handle."""

from __future__ import annotations

import torch


def tiny(architecture="llama", layers=3, query_heads=9, kv_heads=3, head_dim=8, seed=0, **extra):
    """A random model in fp32 whose attention is peaked enough for scores to differ between tokens."""
    import transformers as tf

    common = dict(
        vocab_size=97,
        hidden_size=query_heads * head_dim,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=query_heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    classes = {
        "llama": (tf.LlamaConfig, tf.LlamaForCausalLM, {}),
        "qwen2": (tf.Qwen2Config, tf.Qwen2ForCausalLM, {}),
        "qwen3": (tf.Qwen3Config, tf.Qwen3ForCausalLM, {}),
        "mistral": (tf.MistralConfig, tf.MistralForCausalLM, {"sliding_window": None}),
        "gemma3": (
            tf.Gemma3TextConfig,
            tf.Gemma3ForCausalLM,
            {
                "sliding_window": 8,
                "layer_types": ["sliding_attention", "full_attention"] * layers,
                "num_hidden_layers": 2 * layers,
                "query_pre_attn_scalar": 16,
            },
        ),
        "qwen3_moe": (
            tf.Qwen3MoeConfig,
            tf.Qwen3MoeForCausalLM,
            {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True},
        ),
    }
    config_class, model_class, special = classes[architecture]
    config = config_class(**{**common, **special, **extra})
    config._attn_implementation = "sdpa"
    torch.manual_seed(seed)
    model = model_class(config).eval()
    model.generation_config = tf.GenerationConfig(pad_token_id=0)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "q_norm" in name or "k_norm" in name:
            # With the weights that they are made with, all keys would have one norm, and ranking by it would be noise.
            parameter.data += torch.randn(parameter.shape, generator=generator) * 0.3
        if "norm" in name:
            continue
        scale = 0.35 if "q_proj" in name or "k_proj" in name else 0.15
        parameter.data = torch.randn(parameter.shape, generator=generator) * scale
    return model


def prompt(length, seed=0, vocab=97):
    """Random ids [1, length]."""
    generator = torch.Generator().manual_seed(seed + 1000)
    return torch.randint(3, vocab, (1, length), generator=generator)
