"""Benchmarks by name, all behind one interface: examples in, scores out.

A benchmark is a package `inertia.benchmarks.<name>` with

    TASKS                                                          its tasks by name
    ids(task, length, count, seed, [source=])                      ids of the first `count` examples
    examples(task, length, count, seed, renderer, [source=])       the examples
    score(task, prediction, references, metadata)                  the official metric, in [0, 1]
    diagnostics(task, prediction, references, metadata)            further numbers by name
    identity(task, length, seed, [source=])                        everything that can change an example

where `task` is a name in `TASKS`, `count` takes examples from the first on, as far as there are any, `source` gives
outside data (`sources`), `prediction` is the answer as decoded, not stripped, `references` are the accepted answers,
and `metadata` is the example's, which most scores do not look at.

The `ids` are those of `examples` for the same arguments. An `identity` is JSON-able and holds all that can change an
example or its score, the renderer's fields aside; where data lie is no part of it, nor is a seed that nothing is drawn
from. Each raises a ValueError for an unknown task, for a length or count that makes no sense, and for a source that is
missing or not wanted; and what the source raises.

A package may also have `task_renderer(task, renderer)`, `limit(task, context_window, overhead)` (official limit on
prompt tokens), `protocol(task)` (see `inertia.measure.answers`), `reference_answer(example)` and `HUB`, its pinned
data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from inertia.benchmarks.example import Example

if TYPE_CHECKING:
    from inertia.benchmarks.render import Renderer
    from inertia.benchmarks.rows import Rows, Schema
    from inertia.benchmarks.sources import Loads, Source, Text

NAMES = ("ruler", "longbench", "longbench_v2", "niah", "recite")
GENERATE = "generate"


def package(name: str) -> Any:
    """Return the package of the benchmark `name`."""
    return import_module(f"inertia.benchmarks.{name}")


def task_names(name: str) -> tuple[str, ...]:
    """Return the tasks of the benchmark `name`, those for comparison only included."""
    found = package(name)
    return tuple(dict.fromkeys((*found.TASKS, *getattr(found, "COMPARISON", ()))))


def default_source(name: str) -> Source | None:
    """Return the data that the benchmark `name` reads where no source is given; None where it reads none."""
    return (package(name).ids.__kwdefaults__ or {}).get("source")


@dataclass(frozen=True)
class Kept:
    """A source that reads each of its files once."""

    source: Loads
    read: dict[str, Rows] = field(default_factory=dict, hash=False, compare=False)
    texts: dict[str, Text] = field(default_factory=dict, hash=False, compare=False)

    def load(self, name: str, schema: Schema) -> Rows:
        """Return the rows called `name`; a benchmark asks for each of its names under one schema."""
        if name not in self.read:
            self.read[name] = self.source.load(name, schema)
        return self.read[name]

    def load_text(self, name: str) -> Text:
        """Return the text called `name`."""
        if name not in self.texts:
            self.texts[name] = self.source.load_text(name)
        return self.texts[name]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark bound to its data and seed.

    Attributes:
        name: one of `NAMES`.
        seed: seed of the data.
        source: where outside data come from; None takes what the benchmark pins, or nothing where it needs none.
    """

    name: str
    seed: int
    source: Loads | None = None

    @cached_property
    def module(self) -> Any:
        """The benchmark's package."""
        return package(self.name)

    def ids(self, task: str, length: int | None, count: int) -> list[str]:
        """Return the ids of the first `count` examples."""
        return self.module.ids(task, length, count, self.seed, **self._source)

    def examples(self, task: str, length: int | None, count: int, renderer: Renderer) -> Iterator[Example]:
        """Yield the first `count` examples."""
        return self.module.examples(task, length, count, self.seed, renderer, **self._source)

    def identity(self, task: str, length: int | None) -> dict[str, Any]:
        """Return everything that can change an example."""
        return self.module.identity(task, length, self.seed, **self._source)

    def check(self, task: str, length: int | None, renderer: Renderer, context_window: int) -> None:
        """Accept a task and length that can be asked of a model, known by its tokenizer and window alone.

        The data are read, the official cut is computed and the first example is made: a second or two, no weights.

        Raises:
            ValueError: the length or the window is too short, or the data are none (`DataError`).
            FileNotFoundError: the data are not there.
        """
        fitted = self.renderer(task, renderer, context_window)
        next(iter(self.examples(task, length, 1, fitted)), None)

    def score(self, example: Example, prediction: str) -> float:
        """Return the official score, in [0, 1]."""
        return self.module.score(example.task, prediction, example.references, example.metadata)

    def diagnostics(self, example: Example, prediction: str) -> Mapping[str, float]:
        """Return further numbers by name."""
        return self.module.diagnostics(example.task, prediction, example.references, example.metadata)

    def reference_answer(self, example: Example) -> str:
        """Return the reference answer as a text that a model could have written, "" where an example has none.

        Where the benchmark has no rule of its own it is the first: any would do, and data sets list theirs first.
        """
        written = getattr(self.module, "reference_answer", lambda example: example.references[0])
        return written(example) if example.references else ""

    def renderer(self, task: str, renderer: Renderer, context_window: int) -> Renderer:
        """Return the renderer of a task's prompts: its template rule, and the official cut for this window."""
        adapt = getattr(self.module, "task_renderer", None)
        fitted = renderer if adapt is None else adapt(task, renderer)
        limit = getattr(self.module, "limit", None)
        if limit is None:
            return fitted
        return replace(fitted, max_prompt_tokens=limit(task, context_window, overhead(fitted)))

    def protocol(self, task: str) -> str:
        """Return how a task's examples are answered."""
        return getattr(self.module, "protocol", lambda task: GENERATE)(task)

    @property
    def _source(self) -> dict[str, Any]:
        return {} if self.source is None else {"source": self.source}


def overhead(renderer: Renderer) -> int:
    """Return the tokens that the chat template puts around a turn."""
    return renderer.count(Example("", "", None, "", "x", "", (), 1)) - renderer.count_text("x")
