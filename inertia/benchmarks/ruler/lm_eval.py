"""RULER's tasks as lm-eval 0.4.13 makes them, oddities included: for comparison with its numbers only."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import NamedTuple

from inertia.benchmarks.ruler.cwe import CommonWords, numbered
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
        way, words = _WAYS[type(self.task)], setting.wording
        unreserved = setting._replace(length=setting.length + self.max_new_tokens)
        inner = self.task.prepare(setting if way.reserves else unreserved)
        step, start = way.step(self.task, setting.length)
        limit = setting.length - (self.max_new_tokens if way.reserves else 0)

        def size(parts: Parts, answers: str = "") -> int:
            prefix = parts.answer_prefix if way.prefix else ""
            return setting.count(parts.context + parts.question + prefix + answers)

        def first_size(steps: int) -> int:
            parts = first.build(start + steps * step)
            return size(parts, way.answers(parts.references))

        first = inner(partial(setting.rng, "lm_eval"))
        start = min(max(start, first.smallest), first.largest)
        steps = largest_fitting(first_size, limit, 0, max((first.largest - start) // step, 0))
        begin = first.smallest if steps is None else start + steps * step

        def draw(stream: Stream, **which: int) -> Draw:
            drawn = inner(stream, **which)
            tries = [*range(max(begin, drawn.smallest), drawn.smallest, -step), drawn.smallest]
            fitting = (units for units in tries if size(way.shown(drawn.build(units), words)) <= limit)
            order = stream("lm_eval order")
            seed, value = order.getrandbits(64), str(setting.rng("lm_eval value").randrange(10000, 99999))

            def build(units: int) -> Parts:
                return way.turn(way.shown(drawn.build(units), words), words, Random(seed), value)

            return Draw(build, drawn.smallest, drawn.largest, next(fitting, None))

        return draw


def _plain(parts: Parts, wording: Wording, rng: Random, value: str) -> Parts:
    return parts._replace(answer_prefix=" " + parts.answer_prefix.strip())


def _spaced_list(references: Sequence[str]) -> str:
    return f" {list(references)}"


class _Way(NamedTuple):
    """What lm-eval does with one kind of task.

    Attributes:
        turn: The shown parts, in lm-eval's words.
        answers: References -> the text of the answers, counted where the size is decided.
        prefix: Whether the answer prefix is counted.
        step: Task and length -> units per step, and units of the first step.
        reserves: Whether room is left for the new tokens.
        shown: The official parts, less what counts where the size is decided but is not shown.
    """

    turn: Callable[[Parts, Wording, Random, str], Parts] = _plain
    answers: Callable[[Sequence[str]], str] = _spaced_list
    prefix: bool = True
    step: Callable[[Task, int], tuple[int, int]] = lambda task, length: (10, 10)
    reserves: bool = True
    shown: Callable[[Parts, Wording], Parts] = lambda parts, wording: parts


def plain(task: Task) -> Task:
    """Return a task as lm-eval has it: question answering ends before the first document that is too long."""
    return replace(task, skip_long=False) if isinstance(task, QuestionAnswering) else task


def _niah_step(task: Task, length: int) -> tuple[int, int]:
    step = 500 if task.haystack == "essay" else 25 if length >= 4096 else 5
    return step, max(step, task.needles)


def _example_and_turn(context: str, before: str) -> tuple[str, str]:
    """The worked example in front, and what follows it."""
    place = context.rindex(before)
    return context[:place], context[place:]


def _cwe_shown(parts: Parts, wording: Wording) -> Parts:
    return parts._replace(context=_example_and_turn(parts.context, split(wording.cwe)[0])[1])


def _cwe_turn(parts: Parts, wording: Wording, rng: Random, value: str) -> Parts:
    """Words shuffled anew, an empty line before the prefix."""
    before, _ = split(wording.cwe)
    words = re.split(r"(?:^| )\d+\. ", parts.context[len(before) : -1])[1:]
    rng.shuffle(words)
    return parts._replace(
        context=f"{before}{numbered(words)}\n",
        answer_prefix="\n\n" + parts.answer_prefix.strip(),
        metadata={"units": parts.metadata["units"]},
    )


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


def _fwe_step(task: Task, length: int) -> tuple[int, int]:
    return max(length // 32, 1), max(length // task.letters, 1)


_WAYS: Mapping[type, _Way] = {
    Niah: _Way(answers=" ".join, prefix=False, step=_niah_step),
    QuestionAnswering: _Way(prefix=False),
    VariableTracking: _Way(_vt_turn),
    CommonWords: _Way(_cwe_turn, answers=lambda references: f" {numbered(references)}", shown=_cwe_shown),
    FrequentWords: _Way(answers=lambda references: "", step=_fwe_step, reserves=False),
}
