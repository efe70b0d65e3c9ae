"""RULER: synthetic long-context tasks, generated to the token and scored as the official code does."""

from inertia.benchmarks.ruler.generate import data_version, examples, identity, ids, reference_answer, shortest
from inertia.benchmarks.ruler.metrics import diagnostics, score
from inertia.benchmarks.ruler.tasks import COMPARISON, NEEDS_TEXT, OFFICIAL, TASKS, find, need
from inertia.benchmarks.ruler.texts import HUB, Sources
