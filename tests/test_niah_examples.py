"""The needle grid: sizes to the sentence, depths where they should be, one needle per grid pass."""

from __future__ import annotations

import json
import os
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from inertia.benchmarks import niah
from inertia.benchmarks.niah.generate import place
from inertia.benchmarks.niah.texts import INTRODUCTION, NOISE, QUESTION, needle, noise, sentences
from inertia.benchmarks.render import Renderer
from inertia.benchmarks.seeding import rng
from inertia.benchmarks.sources import DataError, Source
from inertia.benchmarks.words import word_lists

CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@cache
def renderer() -> Renderer:
    """A byte-level BPE trained on the needle test's own words, in a chat template."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    core.train_from_iterator([INTRODUCTION, QUESTION, *NOISE, " ".join(word_lists().all[::9])] * 5, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=core)
    fast.chat_template = CHAT
    return Renderer(fast, True)


def make(task: str = "needle_noise_5", length: int = 600, count: int = 5, seed: int = 1, **settings):
    return list(niah.examples(task, length, count, seed, renderer(), **settings))


def essays(tmp_path: Path, text: str = "First thing. Second thing! Third, at last? Fourth one.") -> Source:
    file = tmp_path / "PaulGrahamEssays.json"
    file.write_text(json.dumps({"text": text}))
    return Source(kind="path", path=str(file))


def test_the_papers_map_has_nine_even_depths():
    assert niah.TASKS["needle_essay"].depths == tuple(i / 8 for i in range(9))


@pytest.mark.parametrize("length", [300, 601, 1500])
def test_prompts_fill_their_length_and_one_more_sentence_would_not_fit(length):
    for example in make(length=length):
        room = length - example.max_new_tokens
        size = renderer().count(example)
        assert size == len(renderer().render(example).ids)
        # The longest noise sentence is well under 40 tokens.
        assert room - 40 < size <= room


def test_every_depth_once_per_pass_with_one_needle_and_one_haystack():
    found = make(count=10)
    assert [example.metadata["depth"] for example in found] == [0, 0.25, 0.5, 0.75, 1] * 2
    assert len({example.references for example in found[:5]}) == 1
    assert len({example.references for example in found}) == 2
    bare = [e.context.replace(e.references[0], "").split() for e in found[:5]]
    shortest = min(map(len, bare)) - 40
    assert len({tuple(words[:shortest]) for words in bare}) == 1


def test_the_needle_stands_where_it_should():
    for example in make(length=3000):
        text = example.context.removeprefix(INTRODUCTION)
        sentence = example.references[0]
        assert text.count(sentence) == 1
        reached = text.index(sentence) / (len(text) - len(sentence))
        assert reached == pytest.approx(example.metadata["depth_reached"], abs=0.002)
        assert reached == pytest.approx(example.metadata["depth"], abs=0.02)
        assert text.startswith(sentence) is (example.metadata["depth"] == 0)
        assert text.endswith(sentence) is (example.metadata["depth"] == 1)


@given(st.lists(st.text("ab ", min_size=1, max_size=9), min_size=1, max_size=12), st.floats(0, 1))
def test_place_is_the_nearest_boundary(hay, depth):
    def cost(at: int) -> float:
        return abs(sum(len(line) + 1 for line in hay[:at]) - depth * sum(len(line) + 1 for line in hay))

    costs = [cost(at) for at in range(len(hay) + 1)]
    assert place(hay, depth) == costs.index(min(costs))


def test_question_and_answer_belong_to_the_needle():
    for example in make(count=10):
        name = example.question.split("lighthouse at ")[1].split(" hide")[0]
        assert f"lighthouse at {name} hides" in example.references[0]
        assert example.metadata["answer"] in example.references[0]
        assert example.context.count(example.metadata["answer"]) == 1
        json.dumps(example.metadata)


def test_noise_never_says_the_answer():
    words = word_lists()
    drawn = needle(rng("x"), words)
    lines = noise(rng("hay"), words, 50, drawn.answer)
    first = next(line for line in lines if line.startswith("There was"))
    answer = " ".join(first.split()[3:5])
    again = noise(rng("hay"), words, 50, answer)
    assert answer in " ".join(lines)
    assert answer not in " ".join(again)


def test_examples_depend_on_their_key_alone():
    base = make(count=7)
    assert make(count=7) == base
    assert make(count=3) == base[:3]
    assert make(seed=2)[0].references != base[0].references
    assert make(length=601)[0].references != base[0].references
    assert [example.id for example in base[:2]] == ["needle_noise_5/600/0000", "needle_noise_5/600/0001"]
    assert niah.ids("needle_noise_5", 600, 7, 1) == [example.id for example in base]


def test_essays_start_anywhere_and_repeat_when_they_run_out(tmp_path):
    found = make("needle_essay_5", 400, source=essays(tmp_path))
    for example in found:
        text = example.context.removeprefix(INTRODUCTION).replace(example.references[0], "")
        parts = sentences(text)
        order = ["First thing.", "Second thing!", "Third, at last?", "Fourth one."]
        assert len(parts) > 8
        for one, two in pairwise(parts):
            assert (order.index(one) + 1) % 4 == order.index(two)


def test_identity(tmp_path):
    noise_id = niah.identity("needle_noise", 600, 1)
    assert noise_id["essays_sha256"] is None
    essay = niah.identity("needle_essay", 600, 1, source=essays(tmp_path))
    assert essay["essays_sha256"] == essays(tmp_path).load_text("PaulGrahamEssays").sha256
    changed = niah.identity("needle_essay", 600, 1, source=essays(tmp_path, "Other. Words."))
    assert {key for key in essay if essay[key] != changed[key]} == {"essays_sha256"}
    json.dumps(essay)


def test_what_cannot_be_made_says_why(tmp_path):
    with pytest.raises(ValueError, match="unknown needle task 'niah'; available: needle_essay"):
        niah.examples("niah", 600, 1, 0, renderer())
    with pytest.raises(ValueError, match="count is -1"):
        niah.examples("needle_noise", 600, -1, 0, renderer())
    with pytest.raises(ValueError, match="needs essays: give a source"):
        niah.examples("needle_essay", 600, 1, 0, renderer())
    with pytest.raises(ValueError, match="takes no source"):
        niah.examples("needle_noise", 600, 1, 0, renderer(), source=essays(tmp_path))
    with pytest.raises(DataError, match="no sentence"):
        niah.examples("needle_essay", 600, 1, 0, renderer(), source=essays(tmp_path, " \n"))
    with pytest.raises(ValueError, match="does not fit 100 tokens: .* needs at least"):
        make(length=100)
    for settings in (
        {"haystack": "hay"},
        {"haystack": "noise", "depths": (1.5,)},
        {"haystack": "noise", "depths": ()},
    ):
        with pytest.raises(ValueError, match="allowed"):
            niah.Needle(**settings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ('He said "no." Then left.', ['He said "no."', "Then left."]),
        ("J. Smith came. Late", ["J. Smith came.", "Late"]),
        ("A title\n\nA text\nover lines.", ["A title", "A text over lines."]),
        ("3.14 is pi.", ["3.14 is pi."]),
        (" \n ", []),
    ],
)
def test_sentences(text, expected):
    assert sentences(text) == expected


def test_scores():
    (example,) = make(count=1)
    (reference,) = example.references
    answer = example.metadata["answer"]
    assert niah.score(example.task, reference, example.references) == 1.0
    assert niah.score(example.task, "", example.references) == 0.0
    # Two of the reference's words, all of the answer's.
    words = len(reference.replace("-", " ").split())
    said = len(answer.replace("-", " ").split())
    assert niah.score(example.task, answer, example.references) == pytest.approx(2 * said / (said + words))
    assert 0 < niah.score(example.task, reference + " and so on" * 50, example.references) < 0.3
    numbers = niah.diagnostics(
        example.task, f"It hides {answer.upper()}!", example.references, example.metadata
    )
    assert (numbers["hit"], numbers["exact_match"]) == (1.0, 0.0)
    numbers = niah.diagnostics(example.task, reference.upper(), example.references, example.metadata)
    assert (numbers["hit"], numbers["exact_match"]) == (1.0, 1.0)
    with pytest.raises(ValueError, match="no references"):
        niah.score(example.task, "x", [])


@pytest.mark.slow
def test_the_papers_shortest_column_from_the_real_essays():
    if "INERTIA_TEST_DATA" not in os.environ:
        pytest.skip("INERTIA_TEST_DATA is not set")
    file = Path(os.environ["INERTIA_TEST_DATA"]) / "ruler_inputs" / "PaulGrahamEssays.json.gz"
    found = make("needle_essay", 10_000, 9, source=Source(kind="path", path=str(file)))
    assert len({example.metadata["depth"] for example in found}) == 9
    for example in found:
        assert 9_500 < renderer().count(example) + example.max_new_tokens <= 10_000
        assert example.metadata["depth_reached"] == pytest.approx(example.metadata["depth"], abs=0.02)
