"""RULER's tasks by name; a new task is one entry."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from inertia.benchmarks.ruler.cwe import CommonWords
from inertia.benchmarks.ruler.draw import Task
from inertia.benchmarks.ruler.fwe import FrequentWords
from inertia.benchmarks.ruler.niah import Niah
from inertia.benchmarks.ruler.vt import VariableTracking

TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "niah_single_1": Niah(haystack="noise", key="words", value="numbers"),
        "niah_multikey_2": Niah(haystack="needle", key="words", value="numbers"),
        "niah_multikey_3": Niah(haystack="needle", key="uuids", value="uuids"),
        "vt": VariableTracking(chains=1, hops=4),
        "cwe": CommonWords(),
        "fwe": FrequentWords(),
        # Relatives of ours for small models; their names are not RULER's.
        "niah_noise_3keys": Niah(haystack="noise", keys=3),
        "niah_noise_multivalue": Niah(haystack="noise", values=4),
        "niah_noise_multiquery": Niah(haystack="noise", keys=4, queries=4),
        "niah_noise_uuids": Niah(haystack="noise", value="uuids"),
        "vt_1hop": VariableTracking(chains=1, hops=1),
    }
)

NEEDS_TEXT: Mapping[str, str] = MappingProxyType(
    {
        "niah_single_2": "Paul Graham essays",
        "niah_single_3": "Paul Graham essays",
        "niah_multikey_1": "Paul Graham essays",
        "niah_multivalue": "Paul Graham essays",
        "niah_multiquery": "Paul Graham essays",
        "qa_1": "SQuAD 2.0 dev",
        "qa_2": "HotpotQA dev (distractor)",
    }
)


def find(name: str) -> Task:
    """Return the task called `name`.

    Raises:
        ValueError: If the task is unknown, or is an official one that needs outside text.
    """
    if name in NEEDS_TEXT:
        raise ValueError(
            f"RULER task {name!r} needs outside text, arrives with source {NEEDS_TEXT[name]!r}, which this "
            f"version cannot read; available without outside text: {', '.join(TASKS)}"
        )
    if name not in TASKS:
        raise ValueError(f"unknown RULER task {name!r}; available: {', '.join(TASKS)}")
    return TASKS[name]
