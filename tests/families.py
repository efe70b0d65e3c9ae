"""Random small models in the published form of each backbone: config, sharded safetensors, tokenizer, chat template."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

LLAMA3_TEMPLATE = (
    "{{- bos_token + '<|start_header_id|>system<|end_header_id|>\n\nToday: ' }}"
    "{{- date_string if date_string is defined else strftime_now('%d %b %Y') }}{{- '<|eot_id|>' }}"
    "{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{- message['content'] | trim + '<|eot_id|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
CHATML_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
SYSTEM = "You answer in tests."
CHATML_WITH_DEFAULT = (
    "{%- if messages[0]['role'] != 'system' %}{{- '<|im_start|>system\n" + SYSTEM + "<|im_end|>\n' }}{%- endif %}"
) + CHATML_TEMPLATE
MISTRAL_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['role'] != ('user' if loop.index0 is even else 'assistant') %}"
    "{{- raise_exception('user and assistant must alternate') }}{%- endif %}"
    "{%- if message['role'] == 'user' %}{{- '[INST] ' + message['content'] + '[/INST]' }}"
    "{%- else %}{{- ' ' + message['content'] | trim + eos_token }}{%- endif %}"
    "{%- endfor %}"
)
GEMMA_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'system' %}{{- raise_exception('no system role') }}{%- endif %}"
    "{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}"
)


@dataclass(frozen=True)
class Spelling:
    """A tokenizer's form.

    Attributes:
        special: special tokens, in order of their ids.
        settings: of tokenizer_config.json.
        adds: the BOS that the tokenizer itself puts in front, or None.
        sentencepiece: blanks become U+2581 and unknown characters bytes; otherwise byte-level.
        digits: the regex that splits numbers, of a byte-level tokenizer.
    """

    special: tuple[str, ...]
    settings: dict[str, Any]
    adds: str | None = None
    sentencepiece: bool = False
    digits: str = r"\p{N}{1,3}"


@dataclass(frozen=True)
class Family:
    """A backbone made small.

    Attributes:
        base: its file in configs/backbone.
        config: the published config.json with small sizes; token ids are written by name.
        generation: the published generation_config.json, likewise.
        spelling: its tokenizer.
        template: its chat template, or None for a base model.
        eligible: layers with full attention.
        bos: the token that opens a text, and how often it must stand in a prompt.
        ends: every token that ends an answer.
        opening: how a rendered prompt must start.
    """

    base: str
    config: dict[str, Any]
    generation: dict[str, Any]
    spelling: Spelling
    template: str | None
    eligible: tuple[int, ...]
    bos: tuple[str, int]
    ends: tuple[str, ...]
    opening: str
    overrides: tuple[str, ...] = field(default=())


LLAMA3 = Spelling(
    ("<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|eot_id|>",
        "clean_up_tokenization_spaces": True,
    },
    adds="<|begin_of_text|>",
)
QWEN = Spelling(
    ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_bos_token": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
    },
    digits=r"\p{N}",
)
SMOLLM2 = Spelling(
    QWEN.special,
    {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
    },
    digits=r"\p{N}",
)
MISTRAL = Spelling(
    ("<unk>", "<s>", "</s>", "[INST]", "[/INST]"),
    {
        "tokenizer_class": "LlamaTokenizer",
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": None,
        "legacy": False,
    },
    adds="<s>",
    sentencepiece=True,
)
GEMMA = Spelling(
    ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"),
    {
        "tokenizer_class": "GemmaTokenizer",
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    },
    adds="<bos>",
    sentencepiece=True,
)


def llama3(layers: int, query_heads: int, kv_heads: int) -> dict[str, Any]:
    """Llama 3.1 and 3.3: RoPE stretched at the low frequencies, three ends."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_size": query_heads * 8,
        "intermediate_size": query_heads * 28,
        "num_hidden_layers": layers,
        "num_attention_heads": query_heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": "<|begin_of_text|>",
        "eos_token_id": ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"],
    }


def qwen2(query_heads: int, kv_heads: int) -> dict[str, Any]:
    """Qwen2.5: biases on queries, keys and values; a window that is declared and switched off."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": query_heads * 8,
        "intermediate_size": query_heads * 20,
        "num_hidden_layers": 3,
        "num_attention_heads": query_heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 32768,
        "max_window_layers": 2,
        "sliding_window": 131072,
        "use_sliding_window": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": "<|endoftext|>",
        "eos_token_id": "<|im_end|>",
    }


QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    # The heads together are twice as wide as the hidden state.
    "head_dim": 8,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "max_position_embeddings": 262144,
    "max_window_layers": 3,
    "sliding_window": None,
    "use_sliding_window": False,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": "<|endoftext|>",
    "eos_token_id": "<|im_end|>",
}
MISTRAL_CONFIG = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_size": 64,
    "intermediate_size": 224,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": "<s>",
    "eos_token_id": "</s>",
}
SMOLLM2_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 72,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": "<|im_start|>",
    "eos_token_id": "<|im_end|>",
    "pad_token_id": "<|im_end|>",
}
GEMMA3_CONFIG = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    # Every sixth layer of the real one has full attention; the heads together are wider than the hidden state.
    "layer_types": 2 * ["sliding_attention", "sliding_attention", "full_attention"],
    "sliding_window": 24,
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "hidden_size": 20,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "torch_dtype": "bfloat16",
    "bos_token_id": "<bos>",
    "eos_token_id": "<eos>",
    "pad_token_id": "<pad>",
}

LLAMA_GENERATION = {
    "bos_token_id": "<|begin_of_text|>",
    "eos_token_id": ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"],
    "do_sample": True,
    "temperature": 0.6,
    "top_p": 0.9,
}
QWEN_GENERATION = {
    "bos_token_id": "<|endoftext|>",
    "pad_token_id": "<|endoftext|>",
    "eos_token_id": ["<|im_end|>", "<|endoftext|>"],
    "do_sample": True,
    "repetition_penalty": 1.05,
    "temperature": 0.7,
    "top_p": 0.8,
    "top_k": 20,
}
LLAMA_ENDS = ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")
QWEN_ENDS = ("<|endoftext|>", "<|im_end|>")
LLAMA_OPENING = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday: 26 Jul 2024<|eot_id|>"
CHATML_OPENING = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
# The embedded two load from a folder only as models of the Hub.
AS_HUB_MODEL = ("backbone.source=hub", "+backbone.repo=org/model", "+backbone.revision=main")

FAMILIES = {
    "llama-3.1-8b": Family(
        "llama-3.1-8b-instruct", llama3(3, 8, 2), LLAMA_GENERATION, LLAMA3, LLAMA3_TEMPLATE, (0, 1, 2),
        ("<|begin_of_text|>", 1), LLAMA_ENDS, LLAMA_OPENING,
    ),
    "llama-3.3-70b": Family(
        "llama-3.3-70b-instruct", llama3(4, 16, 2), LLAMA_GENERATION, LLAMA3, LLAMA3_TEMPLATE, (0, 1, 2, 3),
        ("<|begin_of_text|>", 1), LLAMA_ENDS, LLAMA_OPENING,
    ),
    "qwen2.5-7b": Family(
        "qwen2.5-7b-instruct", qwen2(14, 2), QWEN_GENERATION, QWEN, CHATML_WITH_DEFAULT, (0, 1, 2),
        ("<|endoftext|>", 0), QWEN_ENDS, CHATML_OPENING,
    ),
    "qwen2.5-14b": Family(
        "qwen2.5-14b-instruct", qwen2(10, 2), QWEN_GENERATION, QWEN, CHATML_WITH_DEFAULT, (0, 1, 2),
        ("<|endoftext|>", 0), QWEN_ENDS, CHATML_OPENING,
    ),
    "qwen3-30b-a3b": Family(
        "qwen3-30b-a3b-instruct", QWEN3_MOE, QWEN_GENERATION, QWEN, CHATML_TEMPLATE, (0, 1, 2),
        ("<|endoftext|>", 0), QWEN_ENDS, "<|im_start|>user\n",
    ),
    "mistral-7b-v0.3": Family(
        "mistral-7b-instruct-v0.3", MISTRAL_CONFIG, {"bos_token_id": "<s>", "eos_token_id": "</s>"}, MISTRAL,
        MISTRAL_TEMPLATE, (0, 1, 2), ("<s>", 1), ("</s>",), "<s>[INST] ",
    ),
    "smollm2-135m": Family(
        "smollm2-135m", SMOLLM2_CONFIG, {"eos_token_id": "<|im_end|>"}, SMOLLM2, CHATML_WITH_DEFAULT, (0, 1, 2),
        ("<|im_start|>", 3), ("<|im_end|>",), CHATML_OPENING, AS_HUB_MODEL,
    ),
    "gemma3-270m": Family(
        "gemma3-270m", GEMMA3_CONFIG, {"do_sample": True, "eos_token_id": "<eos>", "top_k": 64}, GEMMA, None, (2, 5),
        ("<bos>", 1), ("<eos>",), "", AS_HUB_MODEL,
    ),
    # No backbone of ours, but the template that the base model's instruct sister has.
    "gemma3-270m-it": Family(
        "gemma3-270m", GEMMA3_CONFIG, {"eos_token_id": ["<eos>", "<end_of_turn>"]}, GEMMA, GEMMA_TEMPLATE, (2, 5),
        ("<bos>", 1), ("<eos>", "<end_of_turn>"), "<bos><start_of_turn>user\n",
        (*AS_HUB_MODEL, "backbone.chat_template=true"),
    ),
}  # fmt: skip


@cache
def trained(sentencepiece: bool, digits: str) -> str:
    """Return the BPE model of a small tokenizer, as JSON."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

    from inertia.backbones.tiny_tokenizer import SYLLABLES, WORDS

    tokenizer = Tokenizer(models.BPE())
    if sentencepiece:
        tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
        tokenizer.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
        alphabet = [chr(code) for code in range(33, 127)] + ["\u2581", "\n"]
    else:
        word = rf"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+|\s+"
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(word), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        )
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, min_frequency=1, initial_alphabet=alphabet, show_progress=False)
    lines = [" ".join(["", word, word.capitalize(), word]) for word in WORDS] + [" " + part for part in SYLLABLES]
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer.to_str()


def make_tokenizer(spelling: Spelling) -> Any:
    """Return the backend tokenizer of a family: special tokens first, byte fallback where it belongs."""
    from tokenizers import AddedToken, Tokenizer, decoders, processors

    state = json.loads(trained(spelling.sentencepiece, spelling.digits))
    bytes_ = [f"<0x{value:02X}>" for value in range(256)] if spelling.sentencepiece else []
    learned = sorted(state["model"]["vocab"], key=state["model"]["vocab"].get)
    state["model"]["vocab"] = {token: number for number, token in enumerate([*spelling.special, *bytes_, *learned])}
    if spelling.sentencepiece:
        state["model"] |= {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in spelling.special])
    tokenizer.decoder = decoders.ByteLevel()
    if spelling.sentencepiece:
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
    if spelling.adds is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{spelling.adds} $A", special_tokens=[(spelling.adds, tokenizer.token_to_id(spelling.adds))]
        )
    return tokenizer


def write(family: Family, folder: Path) -> None:
    """Write a family's model into `folder` as its publisher lays it out: bf16, sharded, config in the older words."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = make_tokenizer(family.spelling)
    # Published vocabularies are padded: the model has rows that no token names.
    size = -(-tokenizer.get_vocab_size() // 64) * 64
    config = {**with_ids(family.config, tokenizer), "vocab_size": size, "use_cache": True}
    torch.manual_seed(0)
    arguments = {key: value for key, value in config.items() if key not in ("model_type", "torch_dtype")}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **arguments))
    fill(model)
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="60KB")
    (folder / "config.json").write_text(json.dumps({**config, "transformers_version": "4.43.0"}))
    (folder / "generation_config.json").write_text(json.dumps(with_ids(family.generation, tokenizer)))
    tokenizer.save(str(folder / "tokenizer.json"))
    template = {} if family.template is None else {"chat_template": family.template}
    settings = {**family.spelling.settings, **template, "model_max_length": config["max_position_embeddings"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def with_ids(values: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    """Return settings whose `*_token_id` entries are ids instead of names."""

    def number(name: Any) -> Any:
        return [number(each) for each in name] if isinstance(name, list) else tokenizer.token_to_id(name)

    return {key: number(value) if key.endswith("_token_id") else value for key, value in values.items()}


def fill(model: Any) -> None:
    """Draw weights, biases and norm weights, so that leaving any of them out changes the answer."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.rand(parameter.shape, generator=generator) * 2 - 1
            if parameter.dim() > 1:
                parameter.copy_(drawn * (3 / parameter.shape[-1]) ** 0.5)
            else:
                parameter.add_(drawn / 4)
