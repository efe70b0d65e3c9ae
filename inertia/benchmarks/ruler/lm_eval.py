"""RULER's tasks as lm-eval 0.4.13 makes them, oddities included: for comparison with its numbers only."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import NamedTuple

from inertia.benchmarks.ruler.cwe import CommonWords
from inertia.benchmarks.ruler.draw import Draw, Parts, Setting, Stream, Task
from inertia.benchmarks.ruler.fwe import FrequentWords
from inertia.benchmarks.ruler.niah import Niah
from inertia.benchmarks.ruler.qa import QuestionAnswering
from inertia.benchmarks.ruler.vt import VariableTracking
from inertia.benchmarks.ruler.wording import Wording, split
from inertia.benchmarks.sizing import largest_fitting

PREFIX = "lm_eval_"
"""What the names of these tasks begin with: their numbers are never RULER's."""


@dataclass(frozen=True)
class LmEval:
    """A task in lm-eval's wording, sized in lm-eval's steps on lm-eval's count of tokens.

    One size is found on a first draw, as the largest number of whole steps that fits; an example that is too
    long with it is shrunk by whole steps. The count leaves out the chat template and, where lm-eval does, the
    answer prefix and the new tokens, so that a prompt can be longer than its length says.

    Attributes:
        task: The official task.

    Source: lm_eval/tasks/ruler of lm-eval 0.4.13.

    Deviations: from lm-eval, every example has generators of its own (lm-eval: the process's), no special token
    is counted, the worked chain of variable tracking has up to 500 tokens (lm-eval: 470), and the answer prefix
    keeps lm-eval's plain delimiter under a chat template too (lm-eval then has none). An example that cannot be
    made to fit is drawn again (lm-eval: skipped, or never ends).
    """

    task: Task

    @property
    def max_new_tokens(self) -> int:
        """Decoding limit."""
        return self.task.max_new_tokens

    def prepare(self, setting: Setting) -> Callable[..., Draw]:
        """Return the function that draws one example, its number of units chosen."""
        way = _WAYS[type(self.task)]
        inner = self.task.prepare(way.setting(setting, self.max_new_tokens))
        step, start = way.step(self.task, setting.length)
        limit = setting.length - (self.max_new_tokens if way.reserves else 0)

        def size(drawn: Draw, measured: Callable[[Parts, Wording], str], units: int) -> int:
            return setting.count(measured(drawn.build(units), setting.wording))

        first = inner(partial(setting.rng, "lm_eval"))
        start = min(max(start, first.smallest), first.largest)
        most = max((first.largest - start) // step, 0)
        steps = largest_fitting(lambda n: size(first, way.first, start + n * step), limit, 0, most)
        begin = first.smallest if steps is None else start + steps * step

        def draw(stream: Stream, **which: int) -> Draw:
            drawn = inner(stream, **which)
            tries = [*range(max(begin, drawn.smallest), drawn.smallest, -step), drawn.smallest]
            fitting = (units for units in tries if size(drawn, way.each, units) <= limit)
            order = stream("lm_eval order")
            seed, value = order.getrandbits(64), str(setting.rng("lm_eval value").randrange(10000, 99999))

            def build(units: int) -> Parts:
                return way.turn(drawn.build(units), setting.wording, Random(seed), value)

            return Draw(build, drawn.smallest, drawn.largest, next(fitting, None))

        return draw


class _Way(NamedTuple):
    """What lm-eval does with one kind of task.

    Attributes:
        turn: The official parts, in lm-eval's words.
        first: The text whose tokens decide the size.
        each: The text whose tokens decide whether an example is shrunk.
        step: Task and length -> units per step, and units of the first step.
        reserves: Whether room is left for the new tokens.
        setting: What the official task is given.
    """

    turn: Callable[[Parts, Wording, Random, str], Parts]
    first: Callable[[Parts, Wording], str]
    each: Callable[[Parts, Wording], str]
    step: Callable[[Task, int], tuple[int, int]] = lambda task, length: (10, 10)
    reserves: bool = True
    setting: Callable[[Setting, int], Setting] = lambda setting, new: setting


def plain(task: Task) -> Task:
    """Return a task as lm-eval has it: question answering ends before the first document that is too long."""
    return replace(task, skip_long=False) if isinstance(task, QuestionAnswering) else task


def _plain(parts: Parts, wording: Wording, rng: Random, value: str) -> Parts:
    return parts._replace(answer_prefix=" " + parts.answer_prefix.strip())


def _turn_text(parts: Parts, wording: Wording) -> str:
    return parts.context + parts.question


def _whole_text(parts: Parts, wording: Wording) -> str:
    return parts.context + parts.question + parts.answer_prefix


def _niah_step(task: Task, length: int) -> tuple[int, int]:
    step = 500 if task.haystack == "essay" else 25 if length >= 4096 else 5
    return step, max(step, task.needles)


def _example_and_turn(context: str, before: str) -> tuple[str, str]:
    """The worked example in front, and what follows it."""
    place = context.rindex(before)
    return context[:place], context[place:]


def _cwe_turn(parts: Parts, wording: Wording, rng: Random, value: str) -> Parts:
    """No worked example, words shuffled anew, an empty line before the prefix."""
    before, _ = split(wording.cwe)
    words = re.split(r"(?:^| )\d+\. ", _example_and_turn(parts.context, before)[1][len(before) : -1])[1:]
    rng.shuffle(words)
    listed = " ".join(f"{number}. {word}" for number, word in enumerate(words, start=1))
    return parts._replace(
        context=f"{before}{listed}\n",
        answer_prefix="\n\n" + parts.answer_prefix.strip(),
        metadata={"units": parts.metadata["units"]},
    )


def _cwe_first(parts: Parts, wording: Wording) -> str:
    answers = " ".join(f"{number}. {word}" for number, word in enumerate(parts.references, start=1))
    return f"{_whole_text(parts, wording)} {answers}"


def _cwe_each(parts: Parts, wording: Wording) -> str:
    return _example_and_turn(parts.context, split(wording.cwe)[0])[1] + parts.question + parts.answer_prefix


def _vt_turn(parts: Parts, wording: Wording, rng: Random, value: str) -> Parts:
    """Assignments on the lines of the noise, a misspelt prefix, one value in all worked examples."""
    before, _ = split(wording.vt)
    example, turn = _example_and_turn(parts.context, before)
    head, asked, answer = example.partition("\nQuestion:")
    answer = re.sub(r"\d{5}", value, _misspelt(answer))
    example = re.sub(r"= \d{5}", f"= {value}", _joined(head, before, wording)) + asked + answer + "\n\n"
    return parts._replace(
        context=example + _joined(turn.removesuffix("\n"), before, wording) + "\n",
        answer_prefix=" " + _misspelt(parts.answer_prefix).strip(),
    )


def _joined(text: str, before: str, wording: Wording) -> str:
    lines = text.removeprefix(before).split("\n")
    spaced = " ".join(line + "\n" if line == wording.noise else line for line in lines)
    return before + spaced


def _misspelt(text: str) -> str:
    return text.replace("variables are assigned", "variables are assgined")


def _vt_first(parts: Parts, wording: Wording) -> str:
    return f"{_whole_text(parts, wording)} {list(parts.references)}"


def _fwe_step(task: Task, length: int) -> tuple[int, int]:
    return max(length // 32, 1), max(length // task.letters, 1)


_WAYS: Mapping[type, _Way] = {
    Niah: _Way(
        _plain,
        lambda parts, wording: _turn_text(parts, wording) + " ".join(parts.references),
        _turn_text,
        _niah_step,
    ),
    QuestionAnswering: _Way(
        _plain, lambda parts, wording: f"{_turn_text(parts, wording)} {list(parts.references)}", _turn_text
    ),
    VariableTracking: _Way(_vt_turn, _vt_first, _whole_text),
    CommonWords: _Way(_cwe_turn, _cwe_first, _cwe_each),
    FrequentWords: _Way(
        _plain,
        _whole_text,
        _whole_text,
        _fwe_step,
        reserves=False,
        setting=lambda setting, new: setting._replace(length=setting.length + new),
    ),
}
