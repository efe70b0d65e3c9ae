"""Examples of a RULER task, as long as they may be and not a token longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from itertools import count as numbers
from itertools import repeat
from typing import Any

from inertia.benchmarks.example import Example, example_id
from inertia.benchmarks.render import Renderer
from inertia.benchmarks.ruler.cwe import numbered
from inertia.benchmarks.ruler.draw import Draw, Parts, Setting, Stream
from inertia.benchmarks.ruler.essays import Essays
from inertia.benchmarks.ruler.questions import Questions
from inertia.benchmarks.ruler.tasks import find, need
from inertia.benchmarks.ruler.texts import describe, missing, read
from inertia.benchmarks.ruler.wording import sha256_of, wording
from inertia.benchmarks.seeding import rng
from inertia.benchmarks.sizing import largest_example, tokens
from inertia.benchmarks.sources import Loads
from inertia.benchmarks.tasks import at_least
from inertia.benchmarks.words import word_lists

GENERATOR_VERSION = 1
"""Raise it whenever the same arguments would give another example."""

Texts = Essays | Questions | None

_PROBES = 8
_ATTEMPTS = 100


def examples(
    task: str, length: int, count: int, seed: int, renderer: Renderer, *, source: Loads | None = None
) -> Iterator[Example]:
    """Yield examples 0 to `count - 1`; each depends on (seed, task, length, index), renderer and texts alone.

    The rendered prompt (chat template, BOS and answer prefix included) plus the task's new tokens is at most
    `length` tokens, and with one more unit of haystack it would be more (except where the task runs out of
    material). Tasks outside `NEEDS_TEXT` never look at the source; question answering has no more examples than
    questions.

    Raises:
        ValueError: If `length` is below `shortest(task, renderer)`; and, at the example concerned, if too few
            questions fit.

    Deviations: the official code seeds the process's generators once per task (42), finds one size per task
    on the first sample and shrinks where that is too long; here each example has generators of its own and
    its own size. An example whose smallest form is too long is drawn again, as the official code does, but at
    most 100 times; a question whose own documents are too long gives way to the next that fits (official: it is
    tried for ever).
    """
    texts = _texts(task, source)
    least = _shortest(task, renderer, texts)
    if length < least:
        raise ValueError(
            f"RULER task {task!r} does not fit {length} tokens: its shortest feasible length with this "
            f"tokenizer and template is {least}"
        )
    at_least(0, count=count)
    return _generate(task, length, _available(texts, count), seed, renderer, texts)


def ids(task: str, length: int, count: int, seed: int, *, source: Loads | None = None) -> list[str]:
    """Return the ids of the first `count` examples, without making them."""
    return [example_id(task, length, index) for index in range(_available(_texts(task, source), count))]


def shortest(task: str, renderer: Renderer, *, source: Loads | None = None) -> int:
    """Return the least length, new tokens included, at which `task` can be generated.

    It is the smallest form of the largest of 8 fixed draws; a draw that comes out longer still is drawn again.
    Of questions it is the median of the first 8: some half of all questions then fit, the others are left out.
    """
    return _shortest(task, renderer, _texts(task, source))


def _shortest(task: str, renderer: Renderer, texts: Texts) -> int:
    # The need grows with the length (vocabulary, worked example): stepping up from below ends at the least.
    length = 0
    while (least := _need(task, length, renderer, texts)) > length:
        length = least
    return length


def data_version() -> dict[str, Any]:
    """Return what the texts are made of: the generator, the hash of the wording, the word lists."""
    return {
        "generator_version": GENERATOR_VERSION,
        "wording_sha256": sha256_of(asdict(wording())),
        "wonderwords": version("wonderwords"),
    }


def identity(task: str, length: int, seed: int, *, source: Loads | None = None) -> dict[str, Any]:
    """Return everything that can change an example; a source plays no part where the task needs no outside text."""
    texts = _texts(task, source)
    return {
        "name": "ruler",
        "task": task,
        "length": length,
        "seed": seed,
        "parameters": asdict(find(task)),
        **data_version(),
        **({} if texts is None else describe(texts)),
    }


def reference_answer(example: Example) -> str:
    """Return all references in their order, written as the task's worked example writes them; in QA the first.

    RULER wants every reference. Word lists are numbered, variables stand apart by blanks; needles and coded words have
    no worked example, and commas.
    """
    if example.task.startswith("qa_"):
        return example.references[0]
    if example.task.startswith("cwe"):
        return numbered(example.references)
    return (" " if example.task.startswith("vt") else ", ").join(example.references)


def _texts(task: str, source: Loads | None) -> Texts:
    find(task)
    name = need(task)
    if name is None:
        return None
    if source is None:
        raise ValueError(missing(task, name))
    return read(name, source)


def _available(texts: Texts, count: int) -> int:
    return min(count, len(texts.questions)) if isinstance(texts, Questions) else count


def _generate(task: str, length: int, count: int, seed: int, renderer: Renderer, texts: Texts) -> Iterator[Example]:
    draw = find(task).prepare(_setting(task, length, seed, renderer, texts))
    for index, draws in zip(range(count), _draws(draw, partial(rng, seed, task, length), texts), strict=False):
        fitting = (_largest(task, length, index, drawn, renderer) for drawn in draws)
        example = next((example for example in fitting if example is not None), None)
        if example is None:
            if isinstance(texts, Questions):
                raise ValueError(
                    f"RULER task {task!r}: only {index} of {len(texts.questions)} questions fit {length} tokens with "
                    f"this tokenizer and template, {count} are wanted; ask for fewer or choose a greater length"
                )
            raise ValueError(
                f"RULER task {task!r} does not fit {length} tokens: at this length its smallest form takes "
                f"up to {_need(task, length, renderer, texts)} with this tokenizer and template; choose a longer one"
            )
        yield example


def _draws(draw: Callable[..., Draw], stream: Stream, texts: Texts) -> Iterator[Iterator[Draw]]:
    """For each example in turn, the draws to try until one fits."""
    if isinstance(texts, Questions):
        # One iterator for all examples: a question is asked once, or left out for good.
        return repeat(draw(partial(stream, number), number=number) for number in range(len(texts.questions)))
    return ((draw(partial(stream, index, attempt)) for attempt in range(_ATTEMPTS)) for index in numbers())


def _largest(task: str, length: int, index: int, drawn: Draw, renderer: Renderer) -> Example | None:
    """The largest form of `drawn` that fits, or None."""

    def form(units: int) -> Example:
        return _example(task, length, index, drawn.build(units))

    if drawn.chosen is not None:
        return form(drawn.chosen)
    limit = length - find(task).max_new_tokens
    return largest_example(form, renderer, limit, drawn.smallest, drawn.largest)


def _need(task: str, length: int, renderer: Renderer, texts: Texts) -> int:
    """Tokens, new ones included, that the smallest forms of the probes take at this length.

    The most of them; of questions, which can be left out, the median.
    """
    draw = find(task).prepare(_setting(task, length, 0, renderer, texts))
    asked = isinstance(texts, Questions)
    probes = (
        draw(partial(rng, "probe", task, index), **({"number": index} if asked else {}))
        for index in range(_available(texts, _PROBES))
    )
    sizes = sorted(tokens(_example(task, length, 0, probe.build(probe.smallest)), renderer) for probe in probes)
    return sizes[(len(sizes) - 1) // 2] if asked else sizes[-1]


def _setting(task: str, length: int, seed: int, renderer: Renderer, texts: Texts = None) -> Setting:
    frame = renderer.count(_example(task, length, 0, Parts("", "", "", (), {})))
    return Setting(
        wording=wording(),
        words=word_lists(),
        length=length,
        room=max(length - find(task).max_new_tokens - frame, 0),
        count=renderer.count_text,
        rng=partial(rng, seed, task, length, "shared"),
        texts=texts,
    )


def _example(task: str, length: int, index: int, parts: Parts) -> Example:
    return Example(
        id=example_id(task, length, index),
        task=task,
        length=length,
        max_new_tokens=find(task).max_new_tokens,
        **parts._asdict(),
    )
