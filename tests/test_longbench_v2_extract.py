"""Which option an answer chooses: official oddities kept in the score, put right in the second column."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inertia.benchmarks import longbench_v2 as v2

# answer, official letter, tolerant letter
CASES = [
    ("The correct answer is (B)", "B", "B"),
    ("The correct answer is B", "B", "B"),
    ("The correct answer is B.", "B", "B"),
    ("**The correct answer is (C)**", "C", "C"),
    ("The correct answer is **(C)**.", "C", "C"),
    ("The *correct* answer is *D", "D", "D"),
    ("Well. The correct answer is (A). The correct answer is (B).", "A", "A"),
    ("The correct answer is C, no: The correct answer is (B)", "B", "C"),  # brackets go first, officially
    ("The correct answer is Because of it", "B", None),  # no word boundary, officially
    ("The correct answer is A's", "A", None),
    ("the correct answer is (D)", None, "D"),
    ("The correct answer is: (D)", None, "D"),
    ("The correct answer is (d)", None, "D"),
    ("Answer: B", None, "B"),
    ("answer B", None, "B"),
    ("The answer would be option C", None, "C"),
    ("The correct answer is a matter of taste", None, None),
    ("(A)", None, "A"),
    (" A.\n", None, "A"),
    ("b", None, None),
    ("A cat", None, None),
    ("The correct answer is (E)", None, None),
    ("I would say (A)", None, None),  # no anchor
    ("The correct answer is (insert answer here)", None, None),
    ("Answers: B", None, None),
    ("", None, None),
]


@pytest.mark.parametrize(("answer", "official", "tolerant"), CASES)
def test_extraction(answer, official, tolerant):
    found = [choice and choice.letter for choice in (v2.strict(answer), v2.lenient(answer))]
    assert found == [official, tolerant]


@given(st.text("AD(*. answer:is"), st.sampled_from("ABCD"), st.text("xyz*.()ABCD ", max_size=8))
def test_offsets_point_at_the_letter_in_the_answer_as_given(before, letter, after):
    answer = f"{before} The correct answer is ({letter}) {after}"
    for extract in (v2.strict, v2.lenient):
        choice = extract(answer)
        assert choice is not None
        assert answer[choice.offset] == choice.letter


@given(st.text("xyz \n", max_size=20), st.sampled_from("ABCD"), st.text("xyz \n.", max_size=20))
def test_the_two_agree_on_the_official_sentence(before, letter, after):
    answer = f"{before}The correct answer is ({letter}){after}"
    assert v2.strict(answer) == v2.lenient(answer) == v2.Choice(letter, len(before) + 23)


def test_asterisks_do_not_shift_the_offset():
    answer = "**The correct answer is** **B**"
    assert v2.strict(answer) == v2.Choice("B", answer.index("B"))
