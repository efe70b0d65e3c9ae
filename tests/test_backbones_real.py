"""The embedded models themselves: needs them in the cache (`python -m inertia.backbones fetch NAME`)."""

from __future__ import annotations

import json

import pytest

from inertia.backbones import Backbone, embedded, load, read
from inertia.backbones.convert import TRICKY, check_round_trip
from inertia.paths import config_dir

pytestmark = pytest.mark.slow


def _load(name: str) -> Backbone:
    if not embedded.is_ready(name):
        pytest.skip(f"{name} is not in the cache; run: python -m inertia.backbones fetch {name}")
    return load(read(config_dir() / "backbone" / f"{name}.yaml"))


@pytest.fixture(scope="module")
def smollm2() -> Backbone:
    return _load("smollm2-135m")


@pytest.fixture(scope="module")
def gemma3() -> Backbone:
    return _load("gemma3-270m")


def _continue(backbone: Backbone, ids: list[int], count: int) -> str:
    import torch

    prompt = torch.tensor([ids])
    answer = backbone.model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count)
    return backbone.tokenizer.decode(answer[0, prompt.shape[1] :])


def _chat(backbone: Backbone, question: str) -> list[int]:
    turn = [{"role": "user", "content": question}]
    text = backbone.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    return backbone.tokenizer(text, add_special_tokens=False).input_ids


def test_smollm2_says_what_it_is(smollm2: Backbone) -> None:
    assert smollm2.label == "SmolLM2-135M-Instruct, Q4_1 dequantised, fp32"
    assert smollm2.eos_token_ids == (2,)
    assert smollm2.eligible_layers == tuple(range(30))
    assert smollm2.chat_template


def test_smollm2_template_is_the_official_one(smollm2: Backbone) -> None:
    text = smollm2.tokenizer.decode(_chat(smollm2, "Hi"))
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert text == (
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_smollm2_answers(smollm2: Backbone) -> None:
    answer = _continue(smollm2, _chat(smollm2, "What is the capital of France?"), 16)
    assert answer == "The capital of France is Paris.<|im_end|>"


def test_gemma3_says_what_it_is(gemma3: Backbone) -> None:
    assert gemma3.label == "Gemma-3-270M, Q4_K_M dequantised, fp32"
    assert gemma3.eos_token_ids == (1,)
    assert gemma3.eligible_layers == (5, 11, 17)
    assert not gemma3.chat_template


def test_gemma3_continues_with_bos(gemma3: Backbone) -> None:
    ids = gemma3.tokenizer("The capital of France is").input_ids
    assert ids == [2, 818, 5279, 529, 7001, 563]
    assert _continue(gemma3, ids, 9) == " the capital of the country of France. It"


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_tokenizer_survives_another_save(name: str, request: pytest.FixtureRequest, tmp_path) -> None:
    from transformers import AutoTokenizer

    tokenizer = request.getfixturevalue(name).tokenizer
    tokenizer.save_pretrained(tmp_path)
    check_round_trip(tokenizer, AutoTokenizer.from_pretrained(tmp_path))


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_tokenizer_loses_nothing(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(name).tokenizer
    for text in TRICKY:
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def _plain_bpe(text: str, vocabulary: dict[str, int], ranks: dict[tuple[str, str], int]) -> list[int]:
    """Byte-level BPE spelled out: digits apart, GPT-2's word pattern, the best merge until none is left."""
    import regex

    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in letters)}
    words = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    ids = []
    for piece in regex.findall(r"\p{N}|\P{N}+", text):
        for word in regex.findall(words, piece):
            parts = [letters[byte] for byte in word.encode()]
            while pairs := [p for p in zip(parts, parts[1:], strict=False) if p in ranks]:
                best = min(pairs, key=ranks.__getitem__)
                at = next(i for i in range(len(parts)) if tuple(parts[i : i + 2]) == best)
                parts[at : at + 2] = ["".join(best)]
            ids += [vocabulary[part] for part in parts]
    return ids


def test_smollm2_ids_equal_bpe_spelled_out(smollm2: Backbone) -> None:
    """The digit splitter matters: without it the blank line before "12" is cut in two."""
    model = json.loads(smollm2.tokenizer.backend_tokenizer.to_str())["model"]
    ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
    texts = [text for text in TRICKY if "<|im_" not in text]
    for text in [*texts, "a\n\n12  34", "1. one 2. two\n\n\n3.  three", "x =  007;\n\n\t9"]:
        assert smollm2.tokenizer(text).input_ids == _plain_bpe(text, model["vocab"], ranks), text
    assert smollm2.tokenizer("a\n\n12  34").input_ids == [81, 1116, 33, 34, 256, 35, 36]
