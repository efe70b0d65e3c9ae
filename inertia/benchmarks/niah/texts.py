"""The words of the needle test, all our own."""

from __future__ import annotations

import re
from random import Random
from typing import NamedTuple

from inertia.benchmarks.seeding import digest
from inertia.benchmarks.words import WordLists

INTRODUCTION = "Somewhere in the text below, one sentence says what the keeper of a lighthouse hides.\n\n"
QUESTION = "\n\nWhat does the keeper of the lighthouse at {place} hide? Repeat that one sentence word for word."
NEEDLE = "The keeper of the lighthouse at {place} hides {article} {answer} under the {spot}."
NOISE = (
    "People talked about the {0} {1} for a while.",
    "There was a {0} {1} beside the road, and nobody minded.",
    "Most visitors preferred the {1} to anything {0}.",
    "By then the {1} had become rather {0}.",
    "A picture of the {1} hung on the wall, {0} as ever.",
)
PLACES = (
    "Ostrava Point",
    "Carrick Sound",
    "Merrow Bay",
    "Tallow Head",
    "Grennan Rock",
    "Sorrel Ness",
    "Pell Island",
)
SPOTS = ("stairs", "third lamp", "kitchen floor", "old boat", "spare sails", "coal heap")

# A sentence ends before white space at ., ! or ? (closing quotes and brackets included), or at an empty line.
_BOUNDARY = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)[\"'\u201d\u2019)\]]*\s+|\n\s*\n")


class NeedleText(NamedTuple):
    """A needle and what is asked about it.

    Attributes:
        sentence: What stands in the haystack, and the reference answer.
        answer: The two words that answer the question; no sentence of noise contains them.
        question: What follows the haystack.
    """

    sentence: str
    answer: str
    question: str


def needle(rng: Random, words: WordLists) -> NeedleText:
    """Return a needle with a random place, spot, adjective and noun."""
    place, spot = rng.choice(PLACES), rng.choice(SPOTS)
    answer = f"{rng.choice(words.adjectives)} {rng.choice(words.nouns)}"
    article = "an" if answer[0] in "aeiou" else "a"
    sentence = NEEDLE.format(place=place, article=article, answer=answer, spot=spot)
    return NeedleText(sentence, answer, QUESTION.format(place=place))


def noise(rng: Random, words: WordLists, count: int, answer: str) -> list[str]:
    """Return `count` plain sentences, none of which contains `answer`."""
    lines: list[str] = []
    while len(lines) < count:
        adjective, noun = rng.choice(words.adjectives), rng.choice(words.nouns)
        line = rng.choice(NOISE).format(adjective, noun)
        if answer not in line:
            lines.append(line)
    return lines


def sentences(text: str) -> list[str]:
    """Return the sentences of a running text, blanks collapsed, by fixed rules that need no model."""
    starts = [0, *(match.end() for match in _BOUNDARY.finditer(text))]
    pieces = (text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True))
    return [clean for piece in pieces if (clean := " ".join(piece.split()))]


def wording_sha256() -> str:
    """Return the hash of all fixed texts."""
    return digest([INTRODUCTION, QUESTION, NEEDLE, NOISE, PLACES, SPOTS, _BOUNDARY.pattern])
