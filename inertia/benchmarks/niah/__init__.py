"""A needle at every depth of haystacks of every length."""

from inertia.benchmarks.niah.generate import ESSAYS, examples, identity, ids
from inertia.benchmarks.niah.score import diagnostics, score
from inertia.benchmarks.niah.tasks import TASKS, Needle, find
