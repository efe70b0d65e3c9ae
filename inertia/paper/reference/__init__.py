"""The paper's own numbers, as data: one CSV per table, and one for values that stand only in its text."""

from inertia.paper.reference.tables import RULER_TASKS, names, reference

__all__ = ["RULER_TASKS", "names", "reference"]
