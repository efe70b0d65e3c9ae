"""Needles in essays: sentences, places, wording, and the published prompts."""

from __future__ import annotations

import csv
import gzip
import re
import time
from collections import Counter
from pathlib import Path
from random import Random

import outside_data
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ruler_generate import renderer
from test_ruler_text_sources import ESSAY, Words, real, write

from inertia.benchmarks.ruler import NEEDS_TEXT, TASKS, examples
from inertia.benchmarks.ruler.essays import Essays
from inertia.benchmarks.ruler.haystacks import DEPTHS, spread
from inertia.benchmarks.ruler.texts import ESSAYS, read
from inertia.benchmarks.seeding import rng

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
TASKS_WITH_ESSAYS = tuple(task for task, name in NEEDS_TEXT.items() if name == ESSAYS)
NEEDLE = re.compile(r"One of the special magic (\w+) for (.+?) is: (\S+)\.(?= |\n)")


def official(words: tuple[str, ...], count: int) -> list[str]:
    """The slow way: repeat the words, take the first ones, split what that makes."""
    import punkt

    repeated = words * (count // len(words) + 1)
    return punkt.sent_tokenize(" ".join(repeated[:count]))


# Sentences


MADE_UP = Essays(tuple(ESSAY.split()))
READ = MADE_UP.reader(3 * len(MADE_UP.words))


@settings(max_examples=40, deadline=None)
@given(count=st.integers(0, 3 * len(MADE_UP.words)))
def test_one_split_gives_the_sentences_of_every_beginning(count: int) -> None:
    assert READ(count) == official(MADE_UP.words, count)


def test_the_same_holds_for_the_real_essays() -> None:
    essays = read(ESSAYS, real(ESSAYS))
    assert len(essays.words) == 525_448
    sentences = essays.reader(20_000)
    for index in range(40):
        count = rng("cut", index).randint(0, 20_000)
        assert sentences(count) == official(essays.words, count)


@pytest.mark.slow
def test_the_splitter_agrees_with_nltk_but_for_one_ellipsis() -> None:
    import punkt

    nltk = pytest.importorskip("nltk.tokenize.punkt")
    text = " ".join(read(ESSAYS, real(ESSAYS)).words)
    model = punkt.load_model("english")
    parameters = nltk.PunktParameters()
    parameters.abbrev_types = set(model.abbrev_types)
    parameters.collocations = set(model.collocations)
    parameters.sent_starters = set(model.sent_starters)
    parameters.ortho_context.update({word: int(flags) for word, flags in model.ortho_context.items()})
    theirs = nltk.PunktSentenceTokenizer(parameters)
    theirs._params = parameters
    ours = Counter(punkt.sent_tokenize(text))
    expected = Counter(theirs.tokenize(text))
    assert sum(ours.values()) == 31_396
    assert (
        (expected - ours)["..."] == 1 and sum((expected - ours).values()) == 2 and sum((ours - expected).values()) == 1
    )


def test_abbreviations_do_not_end_a_sentence() -> None:
    sentences = Essays(("Dr.", "Smith", "met", "Mr.", "Jones.", "They", "talked.")).reader(7)
    assert sentences(7) == ["Dr. Smith met Mr. Jones.", "They talked."]
    assert sentences(4) == ["Dr. Smith met Mr."] and sentences(1) == ["Dr."] and sentences(0) == []


def test_the_essays_begin_anew_where_they_run_out(tmp_path: Path) -> None:
    essay = " ".join(ESSAY.split()[:300])
    example = next(examples("niah_single_2", 2000, 1, 0, Words(), source=write(tmp_path, essay)))
    text = " ".join(NEEDLE.sub("", example.context.partition("\n")[2]).split())
    assert example.metadata["units"] > 1700
    assert text == " ".join((essay.split() * 10)[: example.metadata["units"]])


# Needles


def parts(example) -> tuple[list[tuple[str, str, str]], list[str]]:
    """The needles in order, and the haystack's text before, between and after them."""
    text = example.context.partition("\n")[2]
    return [match.groups() for match in NEEDLE.finditer(text)], [
        piece.strip() for piece in NEEDLE.split(text)[:: NEEDLE.groups + 1]
    ]


def test_each_task_has_the_official_number_of_needles(tmp_path: Path) -> None:
    source = write(tmp_path)
    official = {
        "niah_single_2": 1,
        "niah_single_3": 1,
        "niah_multikey_1": 4,
        "niah_multivalue": 4,
        "niah_multiquery": 4,
    }
    rows = {task: next(examples(task, 900, 1, 0, Words(), source=source)) for task in TASKS_WITH_ESSAYS}
    assert {task: len(parts(row)[0]) for task, row in rows.items()} == official


@pytest.mark.parametrize("task", TASKS_WITH_ESSAYS)
def test_needles_stand_between_whole_sentences_and_answer_the_question(task: str, tmp_path: Path) -> None:
    kind, source = TASKS[task], write(tmp_path)
    words = read(ESSAYS, source).words
    for example in examples(task, 1500, 10, 0, Words(), source=source):
        found, between = parts(example)
        sentences = official(words, example.metadata["units"])
        ends = {" ".join(sentences[:i]) for i in range(len(sentences) + 1)}
        for i in range(len(found)):
            assert " ".join(filter(None, between[: i + 1])) in ends
        assert " ".join(filter(None, between)) == " ".join(sentences)
        assert len(found) == example.metadata["needles"] == max(kind.keys, kind.queries) * kind.values
        assert len({key for _, key, _ in found}) == max(kind.keys, kind.queries)
        assert all(re.fullmatch(UUID if kind.value == "uuids" else r"\d{7}", value) for _, _, value in found)
        asked = re.search(r"for (.+) mentioned", example.question)[1]
        keys = re.split(r", and |, ", asked)
        assert len(keys) == kind.queries and asked in example.answer_prefix
        assert set(example.references) == {value for _, key, value in found if key in keys}
        assert len(set(example.references)) == kind.queries * kind.values


def test_needles_stand_in_the_order_of_the_official_shuffle(tmp_path: Path) -> None:
    for example in examples("niah_multivalue", 900, 5, 0, Words(), source=write(tmp_path)):
        standing = [value for _, _, value in parts(example)[0]]
        expected = list(example.references)
        Random(42).shuffle(expected)
        assert standing == expected


def test_needles_at_one_place_keep_their_order(tmp_path: Path) -> None:
    source = write(tmp_path, "One endless sentence " * 400)
    for example in examples("niah_multivalue", 300, 5, 0, Words(), source=source):
        expected = list(example.references)
        Random(42).shuffle(expected)
        assert [value for _, _, value in parts(example)[0]] == expected


def test_depths_are_drawn_from_the_forty_percentages_without_replacement(tmp_path: Path) -> None:
    source = write(tmp_path)
    words = read(ESSAYS, source).words
    sentences_in = Essays(words).reader(1500)
    seen: Counter[int] = Counter()
    for example in examples("niah_multikey_1", 1500, 500, 0, Words(), source=source):
        sentences = len(sentences_in(example.metadata["units"]))
        hay = [round(depth * sentences) for depth in example.metadata["depths"]]
        assert set(hay) <= {int(sentences * (depth / 100)) for depth in DEPTHS}
        seen.update(round(100 * depth) for depth in example.metadata["depths"])
    # Forty depths of 12.5 expected hits each: chi-square, 39 degrees of freedom, p = 1e-4 at 80.1.
    assert len(seen) == 40
    assert sum((hits - 12.5) ** 2 / 12.5 for hits in seen.values()) < 80.1


@given(sentences=st.integers(1, 500), needles=st.integers(1, 40), key=st.integers(0, 10**6))
def test_places_are_those_of_distinct_depths_in_rising_order(sentences: int, needles: int, key: int) -> None:
    places = spread(rng("places", key), sentences, needles)
    allowed = Counter(int(sentences * (depth / 100)) for depth in DEPTHS)
    assert places == sorted(places) and not Counter(places) - allowed and len(places) == needles


# Published data


def test_questions_and_prefixes_read_as_in_the_published_predictions() -> None:
    path = outside_data.real("ruler_preds", "kvpress_centrality_llama3.1-8b_4096_0.50", "predictions.csv.gz")
    source = real(ESSAYS)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["task"] in TASKS_WITH_ESSAYS]
    assert Counter(row["task"] for row in rows) == dict.fromkeys(TASKS_WITH_ESSAYS, 500)
    shape = {task: next(examples(task, 4096, 1, 42, Words(), source=source)) for task in TASKS_WITH_ESSAYS}
    for row in rows:
        ours = shape[row["task"]]
        assert _blank(row["question"].strip()) == _blank(ours.question)
        assert _blank(row["answer_prefix"]) == _blank(ours.answer_prefix.strip())
        assert int(row["max_new_tokens"]) == ours.max_new_tokens
        assert len(re.findall(r"'[^']+'", row["answer"])) == len(ours.references)


def _blank(text: str) -> str:
    """The text without its keys."""
    head, keys, tail = re.fullmatch(r"(.* for )(.+)( mentioned.*)", text).groups()
    return f"{head}{keys.count(',')}{tail}"


def test_a_16k_example_takes_less_than_two_seconds_and_few_tokenizer_calls() -> None:
    calls = []

    class Counting(Words):
        def count(self, example) -> int:
            calls.append(len(example.context))
            return renderer().count(example)

        def count_text(self, text: str) -> int:
            return renderer().count_text(text)

    source = real(ESSAYS)
    renderer()
    start = time.process_time()
    (example,) = examples("niah_multikey_1", 16_384, 1, 0, Counting(), source=source)
    assert time.process_time() - start < 2
    assert sum(size > len(example.context) / 2 for size in calls) <= 10
