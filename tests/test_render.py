"""Rendering against the tokenizer's own template, offsets and decoder."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from inertia.benchmarks.example import Example
from inertia.benchmarks.render import Prompt, Renderer, sanitise

PLAIN = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}[/]{% endfor %}"
CHAT = PLAIN + "{% if add_generation_prompt %}[assistant]{% endif %}"
WITH_BOS = "{{ bos_token }}" + CHAT
TRIMMING = CHAT.replace("m['content']", "m['content'] | trim")
NO_SYSTEM_STRICT = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}" + CHAT
)
DATED = "{{ date_string }}{{ flag }}" + CHAT
REWRITING = CHAT.replace("m['content']", "m['content'] | upper")
TEMPLATES = {"chat": CHAT, "plain": PLAIN, "bos": WITH_BOS, "trim": TRIMMING, "strict": NO_SYSTEM_STRICT}


def tokenizer(template: str | None = None, adds_bos: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level BPE of a few hundred merges."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(["the key of the door is under the mat, says the note on the door"] * 5, trainer)
    if adds_bos:
        core.post_processor = processors.TemplateProcessing(
            "<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")
    fast.chat_template = template
    return fast


def example(
    context: str = "the note\n", question: str = "Where is the key?", prefix: str = " It is "
) -> Example:
    return Example("t/0", "t", None, context, question, prefix, ("mat",), 8)


def context_end_by_search(renderer: Renderer, prompt: Prompt, chars: int) -> int:
    """The longest run of leading tokens whose offsets end inside the context, one token at a time."""
    offsets = renderer.tokenizer(prompt.text, add_special_tokens=False, return_offsets_mapping=True)[
        "offset_mapping"
    ]
    extra = len(prompt.ids) - len(offsets)
    end = 0
    while end < len(offsets) and offsets[end][1] <= chars:
        end += 1
    return extra + end


def test_chat_rendering_is_the_templates_own_with_the_prefix_behind_it_to_the_letter() -> None:
    fast = tokenizer(CHAT)
    prompt = Renderer(fast, True).render(example())
    assert prompt.text == "[user]the note\nWhere is the key?[/][assistant] It is "
    assert list(prompt.ids) == fast(prompt.text, add_special_tokens=False)["input_ids"]
    assert not prompt.truncated and not prompt.sanitised


def test_a_base_model_reads_the_plain_concatenation() -> None:
    assert Renderer(tokenizer(), False).render(example()).text == "the note\nWhere is the key? It is "


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_kind_of_template_renders(name: str) -> None:
    renderer = Renderer(tokenizer(TEMPLATES[name]), True)
    prompt = renderer.render(example())
    assert "the note\nWhere is the key?" in prompt.text
    assert prompt.text.endswith(" It is ")
    assert renderer.count(example()) == len(prompt.ids)


@pytest.mark.parametrize(
    ("template", "adds_bos", "expected"),
    [
        (None, False, 0),
        (None, True, 1),
        (CHAT, False, 0),
        (CHAT, True, 1),
        (WITH_BOS, False, 1),
        (WITH_BOS, True, 1),
    ],
)
def test_bos_stands_once_and_no_eos_follows(template: str | None, adds_bos: bool, expected: int) -> None:
    renderer = Renderer(tokenizer(template, adds_bos), template is not None)
    prompt = renderer.render(example())
    assert prompt.ids.count(renderer.tokenizer.bos_token_id) == expected
    assert renderer.tokenizer.eos_token_id not in prompt.ids
    assert expected == 0 or prompt.ids[0] == renderer.tokenizer.bos_token_id
    assert renderer.count(example()) == len(prompt.ids)


@given(
    context=st.text(alphabet="the keydor\n é😀", max_size=40),
    question=st.text(alphabet="the keydor\n é😀", max_size=20),
    name=st.sampled_from(["chat", "bos", "strict"]),
    adds_bos=st.booleans(),
)
def test_context_end_is_the_first_token_not_wholly_in_the_context(
    context: str, question: str, name: str, adds_bos: bool
) -> None:
    renderer = Renderer(_CACHED[name, adds_bos], True)
    prompt = renderer.render(example(context, question))
    chars = prompt.text.index("[user]") + len("[user]") + len(context)
    assert prompt.text[:chars].endswith(context)
    assert prompt.context_end == context_end_by_search(renderer, prompt, chars)


_CACHED = {
    (name, bos): tokenizer(TEMPLATES[name], bos)
    for name in ("chat", "bos", "strict")
    for bos in (False, True)
}


def test_a_token_across_the_boundary_belongs_to_the_question() -> None:
    fast = tokenizer()
    (merged,) = fast(" the", add_special_tokens=False)["input_ids"]
    prompt = Renderer(fast, False).render(example("key t", "he door", ""))
    assert prompt.ids[prompt.context_end] == merged
    assert fast.decode(prompt.ids[: prompt.context_end]) == "key"


def test_context_end_survives_a_template_that_trims_the_turn() -> None:
    renderer = Renderer(tokenizer(TRIMMING), True)
    prompt = renderer.render(example("\n\n the note\n", "Where?  ", ""))
    assert prompt.text == "[user]the note\nWhere?[/][assistant]"
    assert renderer.tokenizer.decode(prompt.ids[: prompt.context_end]) == "[user]the note\n"


def test_context_end_of_the_extremes() -> None:
    renderer = Renderer(tokenizer(), False)
    assert renderer.render(example(context="")).context_end == 0
    whole = renderer.render(example(question="", prefix=""))
    assert whole.context_end == len(whole.ids)


def test_truncation_is_longbenchs() -> None:
    fast = tokenizer(WITH_BOS, adds_bos=True)
    long = example("the key of the door is under the mat. " * 40, "Where is the key?", "")
    prompt = Renderer(fast, True, max_prompt_tokens=61).render(long)
    ids = fast(long.context + long.question)["input_ids"]
    middle_out = fast.decode(ids[:30], skip_special_tokens=True) + fast.decode(
        ids[-30:], skip_special_tokens=True
    )
    expected = fast.apply_chat_template([{"role": "user", "content": middle_out}], tokenize=False)
    assert prompt.text == expected + "[assistant]"
    assert prompt.truncated
    assert fast.decode(prompt.ids[prompt.context_end :]) == "Where is the key?[/][assistant]"


def test_truncation_starts_one_token_above_the_limit() -> None:
    fast = tokenizer()
    size = len(fast(example().context + example().question)["input_ids"])
    assert not Renderer(fast, False, size).render(example()).truncated
    assert Renderer(fast, False, size - 1).render(example()).truncated


def test_a_question_longer_than_its_half_leaves_the_head_as_context() -> None:
    fast = tokenizer()
    head = "the key of the door"
    keep = len(fast(head)["input_ids"])
    long = example("the key of the door is under the mat", " and the note is on the door" * 20, "")
    prompt = Renderer(fast, False, 2 * keep).render(long)
    assert fast.decode(prompt.ids[: prompt.context_end]) == head


def test_count_ignores_truncation() -> None:
    long = example("the key " * 100)
    assert Renderer(tokenizer(), False, 10).count(long) == Renderer(tokenizer(), False).count(long)


def test_lone_surrogates_are_replaced_and_flagged() -> None:
    renderer = Renderer(tokenizer(CHAT), True)
    prompt = renderer.render(example(context="the \ud800note"))
    assert prompt.sanitised
    assert "the \ufffdnote" in prompt.text
    assert renderer.count(example(context="the \ud800note")) == len(prompt.ids)


@pytest.mark.parametrize("text", ["", "plain", "é 😀", "a\x00b\u2028c"])
def test_valid_text_is_left_alone(text: str) -> None:
    assert sanitise(text) == text


def test_the_date_of_a_template_is_fixed_and_arguments_reach_it() -> None:
    fast = tokenizer(DATED)
    assert Renderer(fast, True).render(example()).text.startswith("26 Jul 2024[user]")
    asked = Renderer(fast, True, template_arguments={"flag": "!"})
    assert asked.render(example()).text.startswith("26 Jul 2024![user]")


def test_the_hash_follows_the_ids() -> None:
    renderer = Renderer(tokenizer(), False)
    assert renderer.render(example()).sha256 == renderer.render(example()).sha256
    assert renderer.render(example()).sha256 != renderer.render(example(prefix=" It was ")).sha256


def test_examples_and_prompts_do_not_change() -> None:
    for value in (example(), Renderer(tokenizer(), False).render(example())):
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.text = "x"


def test_what_cannot_be_right_is_refused() -> None:
    with pytest.raises(ValueError, match="no chat template"):
        Renderer(tokenizer(), True)
    with pytest.raises(ValueError, match="max_prompt_tokens is 0"):
        Renderer(tokenizer(), False, 0)
    with pytest.raises(ValueError, match="rewrites the user turn"):
        Renderer(tokenizer(REWRITING), True).render(example())
