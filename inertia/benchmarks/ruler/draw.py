"""What a task gives the sizing: an example of any size, and what it needs to be drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple, Protocol

from inertia.benchmarks.ruler.essays import Essays
from inertia.benchmarks.ruler.questions import Questions
from inertia.benchmarks.ruler.wording import Wording
from inertia.benchmarks.words import WordLists


class Parts(NamedTuple):
    """The example's texts; `context + question` is the official user turn."""

    context: str
    question: str
    answer_prefix: str
    references: tuple[str, ...]
    metadata: Mapping[str, Any]


class Draw(NamedTuple):
    """One example of undecided size.

    Attributes:
        build: Units of haystack -> the example; the same answer for the same number every time.
        smallest: Least number of units that makes a valid example.
        largest: Greatest number of units the material allows.
        chosen: Number of units to take whatever its size; None, as in all official tasks, takes the most that fit.
    """

    build: Callable[[int], Parts]
    smallest: int
    largest: int
    chosen: int | None = None


class Setting(NamedTuple):
    """All that the examples of one data set share.

    Attributes:
        wording: Prompt texts.
        words: English words.
        length: Nominal size in tokens, new tokens included.
        room: Tokens left for the user turn and the answer prefix.
        count: Tokens of a bare text.
        rng: Key -> generator that is the same for every example of the data set.
        texts: Outside text, for the tasks that need one.
    """

    wording: Wording
    words: WordLists
    length: int
    room: int
    count: Callable[[str], int]
    rng: Callable[..., Random]
    texts: Essays | Questions | None = None


Stream = Callable[..., Random]
"""Key -> generator of one example."""


class Task(Protocol):
    """A RULER task: parameters, and how its examples are drawn."""

    @property
    def max_new_tokens(self) -> int:
        """Decoding limit."""

    def prepare(self, setting: Setting) -> Callable[..., Draw]:
        """Return the function that draws one example from the example's own generators.

        Where the setting has questions, its keyword `number` says which one is asked.
        """
