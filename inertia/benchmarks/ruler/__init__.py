"""RULER: synthetic long-context tasks, generated to the token and scored as the official code does."""

from inertia.benchmarks.ruler.generate import data_version, examples, identity, ids, shortest
from inertia.benchmarks.ruler.metrics import diagnostics, score
from inertia.benchmarks.ruler.tasks import NEEDS_TEXT, TASKS, find

__all__ = [
    "NEEDS_TEXT",
    "TASKS",
    "data_version",
    "diagnostics",
    "examples",
    "find",
    "identity",
    "ids",
    "score",
    "shortest",
]
