"""Tiny models: the same everywhere, sensitive to every part they have, usable end to end."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inertia.backbones import from_mapping, load, read
from inertia.backbones.tiny import ARCHITECTURES, VOCABULARY, tiny_model
from inertia.backbones.tiny_tokenizer import tiny_tokenizer
from inertia.eviction.layers import layers_of
from inertia.paths import config_dir

# A change here is a new RECIPE: records made before it are of other models.
WEIGHTS = {
    "llama": "b9cf25bb9af7",
    "qwen2": "6296de595238",
    "qwen3": "39bf2ca65aef",
    "qwen3_moe": "95d3f28fe2a8",
    "mistral": "b9cf25bb9af7",
    "gemma3": "4d340f83deec",
}
VOCABULARY_SHA256 = "c85c582fa785e6b919d914c177b0a02abbe937ebcf5f4943b91a9a0de130f4dc"


def _fingerprint(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def _ids(count: int) -> torch.Tensor:
    return torch.arange(count)[None] * 37 % VOCABULARY


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_are_those_of_the_recipe(architecture: str) -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    assert _fingerprint(tiny_model(architecture)) == WEIGHTS[architecture]
    assert torch.equal(torch.random.get_rng_state(), before)


def test_seed_changes_the_weights_and_a_further_layer_leaves_the_others() -> None:
    short, long = tiny_model(layers=2).state_dict(), tiny_model(layers=3).state_dict()
    assert all(torch.equal(value, long[name]) for name, value in short.items())
    other = tiny_model(layers=2, seed=1).state_dict()
    assert not any(torch.equal(value, other[name]) for name, value in short.items())


def test_parts_that_code_forgets_are_not_neutral() -> None:
    bias = tiny_model("qwen2").model.layers[0].self_attn.k_proj.bias
    norm = tiny_model("qwen3").model.layers[0].self_attn.k_norm.weight
    assert bias.abs().min() > 0
    assert (norm - 1).abs().mean() > 0.05


@pytest.mark.parametrize("query_heads,kv_heads", [(9, 3), (8, 2), (4, 4)])
def test_shape_is_the_asked_one(query_heads: int, kv_heads: int) -> None:
    model = tiny_model(
        layers=2, query_heads=query_heads, kv_heads=kv_heads, head_dim=16, dtype=torch.bfloat16
    )
    attention = model.model.layers[1].self_attn
    assert attention.q_proj.weight.shape == (query_heads * 16, query_heads * 16)
    assert attention.k_proj.weight.shape == (kv_heads * 16, query_heads * 16)
    assert model.dtype == torch.bfloat16
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_attention_is_neither_flat_nor_one_hot() -> None:
    weights = tiny_model(attention="eager")(_ids(64), output_attentions=True).attentions
    for layer in weights:
        last = layer[0, :, -1]  # [Hq, T]
        entropy = -(last * last.log()).sum(-1) / torch.tensor(64.0).log()
        assert 0.5 < entropy.mean() < 0.99


@pytest.mark.parametrize("architecture", ["gemma3", "mistral"])
def test_window_is_felt_exactly_beyond_it(architecture: str) -> None:
    narrow, wide = (tiny_model(architecture, sliding_window=window) for window in (8, 64))
    difference = (narrow(_ids(12)).logits - wide(_ids(12)).logits).abs().amax(-1)[0]  # [T]
    assert difference[:8].max() < 1e-5
    assert difference[8:].min() > 1e-4


@pytest.mark.parametrize("layers,eligible", [(1, (0,)), (2, (1,)), (4, (1, 3))])
def test_hybrid_has_full_attention_at_every_depth(layers: int, eligible: tuple[int, ...]) -> None:
    assert layers_of(tiny_model("gemma3", layers=layers).config).eligible == eligible


def test_bad_arguments_name_the_allowed_ones() -> None:
    with pytest.raises(ValueError, match="'gpt' *; allowed: llama, qwen2"):
        tiny_model("gpt")
    with pytest.raises(ValueError, match="sliding_window is 4, but 'llama' has no window"):
        tiny_model("llama", sliding_window=4)


@functools.cache
def _shared_tokenizer():
    return tiny_tokenizer()


@pytest.fixture
def tokenizer():
    return _shared_tokenizer()


def test_tokenizer_is_that_of_the_recipe(tokenizer) -> None:
    assert len(tokenizer) == VOCABULARY
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    assert hashlib.sha256(vocabulary.encode()).hexdigest() == VOCABULARY_SHA256
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 2, 3)


@settings(max_examples=200)
@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=80))
def test_tokenizer_loses_nothing(text: str) -> None:
    loaded = _shared_tokenizer()
    assert loaded.decode(loaded(text, add_special_tokens=False).input_ids) == text


def test_plain_text_and_template_each_begin_with_one_bos(tokenizer) -> None:
    assert tokenizer("hi").input_ids.count(0) == 1
    chat = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|bos|><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert ids[0] == 0 and ids.count(0) == 1 and ids.count(1) == 2 and ids.count(2) == 1


def test_common_english_takes_few_tokens(tokenizer) -> None:
    text = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. " * 10
    assert len(tokenizer(text).input_ids) < 1.5 * len(text.split())


def test_saved_tokenizer_comes_back_as_it_was(tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from inertia.backbones.convert import check_round_trip

    tokenizer.save_pretrained(tmp_path)
    check_round_trip(tokenizer, AutoTokenizer.from_pretrained(tmp_path))


def test_shipped_config_loads_and_answers() -> None:
    backbone = load(read(config_dir() / "backbone" / "tiny-random.yaml"))
    assert backbone.label == "random llama, 3 layers, 9/3 heads, fp32"
    assert backbone.eos_token_ids == (2,)
    assert backbone.eligible_layers == (0, 1, 2)
    ids = backbone.tokenizer("The sky is", return_tensors="pt").input_ids
    answer = backbone.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4)
    step = backbone.model(ids).logits[0, -1].argmax()
    assert answer[0, ids.shape[1]] == step


def test_windowed_tiny_config_that_no_policy_can_cut_is_refused() -> None:
    tiny = {"name": "t", "source": "tiny", "architecture": "mistral", "seed": 0, "chat_template": True}
    shape = {"context_window": 64, "layers": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 8}
    with pytest.raises(ValueError, match="sliding window"):
        load(from_mapping({**tiny, **shape, "sliding_window": 8}))
