"""LongBench's metrics on hand-made cases, against slow oracles, and the traps of ROUGE."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inertia.benchmarks import longbench
from inertia.benchmarks.longbench.metrics import classification, code_similarity, count, qa_f1, retrieval
from inertia.benchmarks.longbench.rouge import RougeL, rouge_l
from inertia.benchmarks.longbench.score import scored_text
from inertia.benchmarks.text_metrics import distinct_n, rouge_l_f, shape


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("3.14", "314", 1.0),  # punctuation goes first: official, if odd
        ("The Louvre!", "louvre", 1.0),
        ("the", "a", 0.0),  # nothing left on either side
        ("", "", 0.0),
        ("in Paris, France", "Paris", 0.5),
        ("yes yes", "yes", 2 / 3),
    ],
)
def test_qa_f1(prediction, reference, expected):
    assert qa_f1(prediction, reference) == pytest.approx(expected)


@given(st.text("ab ."), st.text("ab ."))
def test_qa_f1_is_symmetric_and_bounded(one, two):
    assert qa_f1(one, two) == pytest.approx(qa_f1(two, one))
    assert 0 <= qa_f1(one, two) <= 1


def test_numbers_are_a_share_of_all_that_were_said():
    assert retrieval("Paragraph 12, not 3", "Paragraph 12") == 0.5
    assert retrieval("Paragraph 12", "Paragraph 1") == 0.0
    assert retrieval("no idea", "Paragraph 1") == 0.0
    assert count("7 or 7 or 8", "7") == 2 / 3
    assert count("007", "7") == 0.0
    with pytest.raises(ValueError, match="names no paragraph"):
        retrieval("1", "1")


def official_classification(prediction: str, reference: str, classes: list[str]) -> float:
    """The official code's loop over the list it shortens."""
    named = [name for name in classes if name in prediction]
    for name in named:
        if name in reference and name != reference:
            named.remove(name)
    return 1.0 / len(named) if reference in named else 0.0


names = st.text("ab", min_size=1, max_size=4)


@given(st.lists(names, min_size=1, max_size=8, unique=True), st.text("ab ", max_size=12), st.data())
def test_classification_keeps_the_official_skipping(classes, prediction, data):
    reference = data.draw(st.sampled_from(classes))
    assert classification(prediction, reference, classes) == official_classification(
        prediction, reference, classes
    )


def test_classification_skips_the_class_after_a_removed_one():
    # "a" leaves the list, so "ab" is never looked at and stays: half a point for a right answer.
    assert classification("abc", "abc", ["a", "ab", "abc"]) == 0.5


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("```python\n# comment\nreturn x\n```", "return x", 1.0),
        ("\n\nreturn y", "return x", 0.88),  # 14/16 is 87.5, rounded half to even
        ("\n \nreturn x", "return x", 0.22),  # a blank line looks like code
        ("# nothing else", "return x", 0.0),
        ("# nothing else", "", 1.0),
    ],
)
def test_code_similarity(prediction, reference, expected):
    assert code_similarity(prediction, reference) == expected


def test_only_the_first_line_counts_in_few_shot_tasks():
    assert scored_text("triviaqa", "\n\nParis\nQuestion: next") == "Paris"
    assert scored_text("hotpotqa", "\nParis\nLyon") == "\nParis\nLyon"
    assert longbench.score("triviaqa", "Paris\nLyon", ["Paris"]) == 1.0
    assert longbench.score("hotpotqa", "Paris\nLyon", ["Paris"]) == pytest.approx(2 / 3)


def test_the_best_reference_counts():
    assert longbench.score("qasper", "yes", ["no", "yes", "maybe"]) == 1.0


SUMMARY = "the committee reviewed seven proposals and asked for two further studies of the bridge"


def test_official_rouge_forgives_loops_and_the_second_column_does_not():
    loop = SUMMARY + " again and" * 150
    assert rouge_l(loop, SUMMARY).f > 0.9
    assert rouge_l_f(loop, SUMMARY) < 0.2
    assert rouge_l_f(SUMMARY, SUMMARY) == 1.0
    numbers = longbench.diagnostics("gov_report", loop, [SUMMARY])
    assert numbers["rouge_score_l"] == rouge_l_f(loop, SUMMARY)
    assert numbers["distinct_3"] < 0.1 < longbench.diagnostics("gov_report", SUMMARY, [SUMMARY])["distinct_3"]


@pytest.mark.parametrize("prediction", ["", ".", "..."])
def test_an_answer_without_sentences_is_a_counted_zero(prediction):
    assert rouge_l(prediction, SUMMARY) == RougeL(0.0, "empty")
    numbers = longbench.diagnostics("qmsum", prediction, [SUMMARY])
    assert (numbers["rouge_empty"], numbers["rouge_recursion"]) == (1.0, 0.0)
    assert longbench.score("qmsum", prediction, [SUMMARY]) == 0.0


def words(prefix: str, number: int) -> str:
    return " ".join(f"{prefix}{i}" for i in range(number))


# The package walks back through 500 words of the reference, then through 700 of the answer.
LONG = (words("a", 700) + " w", "k w " + words("b", 500))


def test_two_long_sentences_are_a_counted_zero():
    prediction, reference = LONG
    assert rouge_l(prediction, reference) == RougeL(0.0, "recursion")
    numbers = longbench.diagnostics("qmsum", prediction, [reference])
    assert (numbers["rouge_empty"], numbers["rouge_recursion"]) == (0.0, 1.0)
    # Not where another reference could be scored.
    assert longbench.diagnostics("qmsum", prediction, [reference, "a1"])["rouge_recursion"] == 0.0


def deep(depth: int, prediction: str, reference: str) -> RougeL:
    """The score, asked for from `depth` calls down."""
    if depth:
        return deep(depth - 1, prediction, reference)
    return rouge_l(prediction, reference)


def test_rouge_depends_on_the_texts_and_not_on_who_asks():
    prediction, reference = words("a", 480), words("b", 460) + " a7"
    rouge_l.cache_clear()
    expected = rouge_l(prediction, reference)
    assert expected.failure is None
    rouge_l.cache_clear()
    assert deep(600, prediction, reference) == expected
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(limit + 5000)
        rouge_l.cache_clear()
        assert rouge_l(*LONG).failure == "recursion"
        assert sys.getrecursionlimit() == limit + 5000
    finally:
        sys.setrecursionlimit(limit)


def test_distinct_n_and_shape():
    assert distinct_n("a b a b a b", 1) == pytest.approx(2 / 6)
    assert distinct_n("a b a b a b", 2) == pytest.approx(2 / 5)
    assert distinct_n("one", 3) == 1.0
    with pytest.raises(ValueError, match="n is 0"):
        distinct_n("a", 0)
    assert shape(" \n")["empty"] == 1.0
    assert shape("two words") == {
        "answer_characters": 9.0,
        "answer_words": 2.0,
        "empty": 0.0,
        "distinct_1": 1.0,
        "distinct_3": 1.0,
    }


def test_what_cannot_be_scored_says_why():
    with pytest.raises(ValueError, match="unknown LongBench task 'x'; available: narrativeqa"):
        longbench.score("x", "", ["a"])
    with pytest.raises(ValueError, match="no references"):
        longbench.score("qasper", "", [])
    with pytest.raises(ValueError, match="'all_classes', which is missing"):
        longbench.score("trec", "a", ["a"], {"all_classes": None})
    assert longbench.score("trec", "b or a", ["a"], {"all_classes": ["a", "b"]}) == 0.5
