"""Examples of a RULER task, as long as they may be and not a token longer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from typing import Any

from inertia.benchmarks.example import Example
from inertia.benchmarks.render import Renderer
from inertia.benchmarks.ruler.draw import Draw, Parts, Setting
from inertia.benchmarks.ruler.seeding import rng
from inertia.benchmarks.ruler.sizing import largest_fitting
from inertia.benchmarks.ruler.tasks import find
from inertia.benchmarks.ruler.wording import word_lists, wording

GENERATOR_VERSION = 1
"""Raise it whenever the same arguments would give another example."""

_PROBES = 8
_ATTEMPTS = 100


def examples(task: str, length: int, count: int, seed: int, renderer: Renderer) -> Iterator[Example]:
    """Yield examples 0 to `count - 1`; each depends on (seed, task, length, index) and the renderer alone.

    The rendered prompt (chat template, BOS and answer prefix included) plus the task's new tokens is at most
    `length` tokens, and with one more unit of haystack it would be more (except where the task runs out of
    material).

    Args:
        task: A name in `TASKS`.
        length: Nominal size in tokens, new tokens included.
        count: Number of examples.
        seed: Any integer.
        renderer: Sizes the prompts; its truncation plays no part.

    Raises:
        ValueError: If the task is unknown or needs outside text, `count` is negative, or `length` is below
            `shortest(task, renderer)`.

    Deviations: the official code seeds the process's generators once per task (42), finds one size per task
    on the first sample and shrinks where that is too long; here each example has generators of its own and
    its own size. An example whose smallest form is too long is drawn again, as the official code does, but at
    most 100 times.
    """
    least = shortest(task, renderer)
    if length < least:
        raise ValueError(
            f"RULER task {task!r} does not fit {length} tokens: its shortest feasible length with this "
            f"tokenizer and template is {least}"
        )
    if count < 0:
        raise ValueError(f"count is {count}; allowed: at least 0")
    return _generate(task, length, count, seed, renderer)


def ids(task: str, length: int, count: int, seed: int) -> list[str]:
    """Return the ids of examples 0 to `count - 1`, without making them; they do not depend on the seed."""
    return [_id(task, length, index) for index in range(count)]


def _id(task: str, length: int, index: int) -> str:
    return f"{task}/{length}/{index:04d}"


def shortest(task: str, renderer: Renderer) -> int:
    """Return the least length, new tokens included, at which `task` can be generated.

    It is the smallest form of the largest of 8 fixed draws; a draw that comes out longer still is drawn
    again.

    Raises:
        ValueError: If the task is unknown or needs outside text.
    """
    # The need grows with the length (vocabulary, worked example): stepping up from below ends at the least.
    length = 0
    while (need := _need(task, length, renderer)) > length:
        length = need
    return length


def data_version() -> dict[str, Any]:
    """Return what the texts are made of: the generator, the hash of the wording, the word lists."""
    return {
        "generator_version": GENERATOR_VERSION,
        "wording_sha256": wording().sha256,
        "wonderwords": version("wonderwords"),
    }


def identity(task: str, length: int, seed: int) -> dict[str, Any]:
    """Return every field, besides the renderer's, that can change an example of this data set; JSON-able.

    Raises:
        ValueError: If the task is unknown or needs outside text.
    """
    return {
        "name": "ruler",
        "task": task,
        "length": length,
        "seed": seed,
        "parameters": asdict(find(task)),
        **data_version(),
    }


def _generate(task: str, length: int, count: int, seed: int, renderer: Renderer) -> Iterator[Example]:
    draw = find(task).prepare(_setting(task, length, seed, renderer))
    for index in range(count):
        draws = (draw(partial(rng, seed, task, length, index, attempt)) for attempt in range(_ATTEMPTS))
        fitting = (_largest(task, length, index, drawn, renderer) for drawn in draws)
        example = next((example for example in fitting if example is not None), None)
        if example is None:
            raise ValueError(
                f"RULER task {task!r} does not fit {length} tokens: at this length its smallest form takes "
                f"up to {_need(task, length, renderer)} with this tokenizer and template; choose a longer one"
            )
        yield example


def _largest(task: str, length: int, index: int, drawn: Draw, renderer: Renderer) -> Example | None:
    """The largest form of `drawn` that fits, or None."""
    limit = length - find(task).max_new_tokens

    def form(units: int) -> Example:
        return _example(task, length, index, drawn.build(units))

    units = largest_fitting(lambda n: renderer.count(form(n)), limit, drawn.smallest, drawn.largest)
    if units is None:
        return None
    example = form(units)
    if (size := renderer.count(example)) > limit:
        raise RuntimeError(f"{example.id} takes {size} prompt tokens, allowed {limit}: two counts disagree")
    return example


def _need(task: str, length: int, renderer: Renderer) -> int:
    """Tokens, new ones included, of the longest smallest form among the probes at this length."""
    kind = find(task)
    draw = kind.prepare(_setting(task, length, 0, renderer))
    probes = [draw(partial(rng, "probe", task, index)) for index in range(_PROBES)]
    return kind.max_new_tokens + max(
        renderer.count(_example(task, length, index, probe.build(probe.smallest)))
        for index, probe in enumerate(probes)
    )


def _setting(task: str, length: int, seed: int, renderer: Renderer) -> Setting:
    frame = renderer.count(_example(task, length, 0, Parts("", "", "", (), {})))
    return Setting(
        wording=wording(),
        words=word_lists(),
        length=length,
        room=max(length - find(task).max_new_tokens - frame, 0),
        count=renderer.count_text,
        rng=partial(rng, seed, task, length, "shared"),
    )


def _example(task: str, length: int, index: int, parts: Parts) -> Example:
    return Example(
        id=_id(task, length, index),
        task=task,
        length=length,
        context=parts.context,
        question=parts.question,
        answer_prefix=parts.answer_prefix,
        references=parts.references,
        max_new_tokens=find(task).max_new_tokens,
        metadata=parts.metadata,
    )
