"""RULER's tasks by name; a new task is one entry."""

from __future__ import annotations

from collections.abc import Mapping

from inertia.benchmarks.ruler.cwe import CommonWords
from inertia.benchmarks.ruler.draw import Task
from inertia.benchmarks.ruler.fwe import FrequentWords
from inertia.benchmarks.ruler.lm_eval import PREFIX, LmEval, plain
from inertia.benchmarks.ruler.niah import Niah
from inertia.benchmarks.ruler.qa import QuestionAnswering
from inertia.benchmarks.ruler.texts import ESSAYS, HOTPOT, SQUAD
from inertia.benchmarks.ruler.vt import VariableTracking
from inertia.benchmarks.tasks import finder

TASKS: Mapping[str, Task] = {
    "niah_single_1": Niah(haystack="noise", key="words", value="numbers"),
    "niah_single_2": Niah(haystack="essay", key="words", value="numbers"),
    "niah_single_3": Niah(haystack="essay", key="words", value="uuids"),
    "niah_multikey_1": Niah(haystack="essay", key="words", value="numbers", keys=4),
    "niah_multikey_2": Niah(haystack="needle", key="words", value="numbers"),
    "niah_multikey_3": Niah(haystack="needle", key="uuids", value="uuids"),
    "niah_multivalue": Niah(haystack="essay", key="words", value="numbers", values=4),
    "niah_multiquery": Niah(haystack="essay", key="words", value="numbers", keys=4, queries=4),
    "vt": VariableTracking(chains=1, hops=4),
    "cwe": CommonWords(),
    "fwe": FrequentWords(),
    "qa_1": QuestionAnswering(SQUAD),
    "qa_2": QuestionAnswering(HOTPOT),
    # Relatives of ours for small models; their names are not RULER's.
    "niah_noise_3keys": Niah(haystack="noise", keys=3),
    "niah_noise_multivalue": Niah(haystack="noise", values=4),
    "niah_noise_multiquery": Niah(haystack="noise", keys=4, queries=4),
    "niah_noise_uuids": Niah(haystack="noise", value="uuids"),
    "vt_1hop": VariableTracking(chains=1, hops=1),
}

NEEDS_TEXT: Mapping[str, str] = {
    name: text
    for name, task in TASKS.items()
    if (text := ESSAYS if getattr(task, "haystack", "") == "essay" else getattr(task, "data", None))
}
"""The tasks that need outside text, and the name under which a source is asked for it."""

OFFICIAL = tuple(TASKS)[:13]
"""The names of RULER's own tasks."""

COMPARISON: Mapping[str, Task] = {PREFIX + name: LmEval(plain(TASKS[name])) for name in OFFICIAL}
"""The official tasks as lm-eval 0.4.13 makes and scores them: for comparison with its numbers, and nothing else."""

find = finder("RULER", {**TASKS, **COMPARISON})


def need(name: str) -> str | None:
    """Return the name of the outside text that the task called `name` needs, None where it needs none."""
    return NEEDS_TEXT.get(name.removeprefix(PREFIX))
