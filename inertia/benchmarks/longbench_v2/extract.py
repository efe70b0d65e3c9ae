"""Which option an answer chooses: the official rule, and a tolerant one."""

from __future__ import annotations

import re
from typing import NamedTuple

_STRICT = (re.compile(r"The correct answer is \(([A-D])\)"), re.compile(r"The correct answer is ([A-D])"))

# "answer", at most "is" or "would be", at most a colon; then a letter, bare or bracketed, not inside a word.
# In lower case only with brackets: "the answer is a ..." has an article.
_LETTER = r"(?:\((?P<bracketed>[A-Da-d])\)|(?P<bare>[A-D])(?!\w|['\u2019]))"
_ANCHORED = re.compile(rf"\b(?i:answer)(?:\s+(?i:is|would\s+be))?\s*:?\s*(?:(?i:option|choice)\s+)?{_LETTER}")
_ALONE = re.compile(rf"\s*{_LETTER}[\s.):]*")


class Choice(NamedTuple):
    """A letter and where it stands.

    Attributes:
        letter: A to D.
        offset: Index of the letter in the answer as given.
    """

    letter: str
    offset: int


def strict(answer: str) -> Choice | None:
    """Return the official choice: asterisks dropped, then the phrase with brackets, then without.

    Source: LongBench-v2 `pred.py`.

    Deviations: none; "The correct answer is Because" gives B there, and here.
    """
    text, offsets = _without_asterisks(answer)
    match = next((match for match in (pattern.search(text) for pattern in _STRICT) if match), None)
    return None if match is None else Choice(match.group(1), offsets[match.start(1)])


def lenient(answer: str) -> Choice | None:
    """Return the first choice said in any common form, or None.

    It is anchored: the letter follows "answer" (any case, with or without "is", colon, brackets, asterisks)
    or is all there is; only A to D count, and never as the start of a word.
    """
    text, offsets = _without_asterisks(answer)
    match = _ALONE.fullmatch(text) or _ANCHORED.search(text)
    if match is None:
        return None
    group = "bracketed" if match.group("bracketed") else "bare"
    return Choice(match.group(group).upper(), offsets[match.start(group)])


def _without_asterisks(answer: str) -> tuple[str, list[int]]:
    """The text without asterisks, and where each of its characters stood."""
    offsets = [index for index, char in enumerate(answer) if char != "*"]
    return "".join(answer[index] for index in offsets), offsets
