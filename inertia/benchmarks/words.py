"""English words, and packages whose files are read as data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class WordLists:
    """The English words of the `wonderwords` package, each list sorted and without duplicates."""

    nouns: tuple[str, ...]
    adjectives: tuple[str, ...]
    verbs: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Every word once, sorted."""
        return tuple(sorted({*self.nouns, *self.adjectives, *self.verbs}))


@cache
def word_lists() -> WordLists:
    """Return the word lists inside the installed `wonderwords`.

    Raises:
        ModuleNotFoundError: If wonderwords is not installed.
    """
    folder = package_folder("wonderwords", "3.0.1") / "assets"

    def words(name: str) -> tuple[str, ...]:
        lines = (folder / name).read_text(encoding="utf-8").splitlines()
        return tuple(sorted({line.rstrip() for line in lines} - {""}))

    return WordLists(words("nounlist.txt"), words("adjectivelist.txt"), words("verblist.txt"))


def package_folder(name: str, version: str) -> Path:
    """Return the folder of an installed package, whose files are data here: nothing of it is imported.

    Raises:
        ModuleNotFoundError: If it is not installed.
    """
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"texts are read from the package {name}, which is not installed; fix: pip install {name}=={version}"
        )
    return Path(spec.submodule_search_locations[0])


def lm_eval_tasks(benchmark: str) -> Path:
    """Return the folder of lm-eval's files for a benchmark; their texts are read at run time, never copied.

    Raises:
        ModuleNotFoundError: If lm_eval is not installed.
    """
    return package_folder("lm_eval", "0.4.13") / "tasks" / benchmark


def moved(what: str, benchmark: str) -> LookupError:
    """Return the error for a text that the installed lm_eval does not keep where 0.4.13 has it."""
    return LookupError(f"{what} in lm_eval/tasks/{benchmark}; known is lm_eval 0.4.13: install that version")
