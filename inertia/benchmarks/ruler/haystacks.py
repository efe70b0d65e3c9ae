"""Haystacks: sentences for a number of units, and where needles go between them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from inertia.benchmarks.ruler.wording import Wording

# The official essay depths: 40 evenly spaced percentages from 0 to 100, rounded half to even.
DEPTHS = tuple(round(100 * i / 39) for i in range(40))


class Haystack(NamedTuple):
    """How to fill a context around the needles.

    Attributes:
        sentences: (units, distractor) -> sentences; `distractor(i)` is the i-th needle-like sentence.
        places: (generator, number of sentences, number of needles) -> insertion index of each needle.
        separator: Between sentences.
    """

    sentences: Callable[[int, Callable[[int], str]], list[str]]
    places: Callable[[Random, int, int], list[int]]
    separator: str


def anywhere(rng: Random, sentences: int, needles: int) -> list[int]:
    """Return distinct insertion indexes drawn from all sentences but the end, the first needle's the last."""
    return sorted(rng.sample(range(sentences), needles), reverse=True)


def spread(rng: Random, sentences: int, needles: int) -> list[int]:
    """Return insertion indexes at depths drawn without replacement from `DEPTHS`, in the needles' order."""
    return sorted(int(sentences * (depth / 100)) for depth in rng.sample(DEPTHS, needles))


def repeated(sentence: str) -> Haystack:
    """Return the noise haystack: one unit is one copy of `sentence`."""
    return Haystack(lambda units, _: [sentence] * units, anywhere, "\n")


def prose(sentences: Callable[[int], list[str]]) -> Haystack:
    """Return a haystack of running text: `sentences(units)` is the text's first units, cut into sentences."""
    return Haystack(lambda units, _: sentences(units), spread, " ")


def haystacks(wording: Wording) -> dict[str, Haystack]:
    """Return the haystacks that need no outside text, by name; a unit of `needle` is a sentence nobody asks about."""
    needle_like = Haystack(lambda units, distractor: [distractor(i) for i in range(units)], anywhere, "\n")
    return {"noise": repeated(wording.noise), "needle": needle_like}
