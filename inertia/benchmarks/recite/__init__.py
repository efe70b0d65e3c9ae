"""Recite a long keyed list from the context: hundreds of decode steps whose tokens are all needed."""

from inertia.benchmarks.recite.generate import examples, identity, ids, reference_answer, shortest
from inertia.benchmarks.recite.score import diagnostics, entries, score
from inertia.benchmarks.recite.tasks import TASKS, Recite, find
