"""What is refused before weights are read, and which layers a policy may cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
import transformers

from inertia.backbones import from_mapping
from inertia.backbones.checks import check_shape, check_supported, check_template, check_vocabulary
from inertia.eviction.layers import layers_of

LLAMA = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2}
CONFIG = from_mapping(
    {
        "name": "m",
        "source": "hub",
        "repo": "a/b",
        "revision": "main",
        "chat_template": True,
        "context_window": 2048,
        "layers": 4,
        "query_heads": 8,
        "kv_heads": 2,
    }
)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (transformers.T5Config(), "encoder-decoder"),
        (transformers.MambaConfig(), "none of its layers has full attention"),
        (transformers.MistralConfig(sliding_window=4096), "all its layers have a sliding window"),
        (transformers.XGLMConfig(), "does not go through transformers' attention interface"),
        (
            transformers.Gemma3nTextConfig(num_kv_shared_layers=15),
            "15 of its layers read the cache of another",
        ),
        (transformers.Llama4TextConfig(num_hidden_layers=4), "layers of type chunked_attention"),
    ],
    ids=lambda value: value.model_type if hasattr(value, "model_type") else "",
)
def test_unsafe_models_are_refused_by_name(config: transformers.PretrainedConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        check_supported(config)
    assert repr(config.model_type) in str(caught.value)


@pytest.mark.parametrize(
    ("config", "eligible"),
    [
        (transformers.LlamaConfig(**LLAMA), (0, 1, 2, 3)),
        (transformers.LlamaConfig(**LLAMA, rope_scaling={"rope_type": "yarn", "factor": 4.0}), (0, 1, 2, 3)),
        (transformers.MistralConfig(**LLAMA, sliding_window=None), (0, 1, 2, 3)),
        (transformers.Qwen2Config(**LLAMA), (0, 1, 2, 3)),
        (transformers.Qwen2Config(**LLAMA, use_sliding_window=True, max_window_layers=1), (0,)),
        (transformers.Qwen3MoeConfig(**LLAMA), (0, 1, 2, 3)),
        (transformers.Gemma3TextConfig(num_hidden_layers=18), (5, 11, 17)),
        (transformers.GptOssConfig(num_hidden_layers=4), (1, 3)),
        (transformers.Qwen3NextConfig(num_hidden_layers=8), (3, 7)),
    ],
    ids=["llama", "llama-yarn", "mistral", "qwen2", "qwen2-window", "qwen3-moe", "gemma3", "gpt-oss", "qwen3-next"],
)
def test_eligible_are_the_full_attention_layers(
    config: transformers.PretrainedConfig, eligible: tuple[int, ...]
) -> None:
    check_supported(config)
    assert layers_of(config).eligible == eligible


def test_every_differing_count_is_named() -> None:
    check_shape(CONFIG, transformers.LlamaConfig(**LLAMA))
    found = transformers.LlamaConfig(**{**LLAMA, "num_hidden_layers": 5, "num_key_value_heads": 4})
    with pytest.raises(
        ValueError, match="layers: declared 4, found 5; kv_heads: declared 2, found 4"
    ) as caught:
        check_shape(CONFIG, found)
    assert "query_heads" not in str(caught.value)


def test_window_beyond_the_models_positions_is_refused() -> None:
    with pytest.raises(ValueError, match="context_window is 2049, but 'm' has 2048 positions"):
        check_shape(replace(CONFIG, context_window=2049), transformers.LlamaConfig(**LLAMA))


class _Tokenizer:
    def __init__(self, chat_template: str | None) -> None:
        self.chat_template = chat_template


def test_base_and_chat_are_not_mistaken_for_each_other() -> None:
    base, chat = _Tokenizer(None), _Tokenizer("{{ messages }}")
    check_template(CONFIG, chat)
    check_template(replace(CONFIG, chat_template=False), base)
    with pytest.raises(ValueError, match="looks like a base model"):
        check_template(CONFIG, base)
    with pytest.raises(ValueError, match="looks like an instruct model"):
        check_template(replace(CONFIG, chat_template=False), chat)
    check_template(replace(CONFIG, chat_template=False, allow_unused_template=True), chat)


def test_ids_beyond_the_embedding_are_named() -> None:
    class Damaged:
        def get_vocab(self) -> dict[str, int]:
            return {"a": 0, "b": 31999, "<added>": 32000}

    check_vocabulary(transformers.LlamaConfig(vocab_size=32001), Damaged())
    with pytest.raises(ValueError, match="gives '<added>' the id 32000, but the model embeds ids 0 to 31999 only"):
        check_vocabulary(transformers.LlamaConfig(vocab_size=32000), Damaged())
