"""Recite a long keyed list from the context: hundreds of decode steps whose tokens are all needed."""

from inertia.benchmarks.recite.generate import examples, identity, ids, shortest
from inertia.benchmarks.recite.score import diagnostics, entries, score
from inertia.benchmarks.recite.tasks import TASKS, Recite, find

__all__ = [
    "TASKS",
    "Recite",
    "diagnostics",
    "entries",
    "examples",
    "find",
    "identity",
    "ids",
    "score",
    "shortest",
]
