"""What tables call a policy: its method, and every setting in which it differs from that method."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from inertia.eviction.policy import Policy
from inertia.experiments.config import RunConfig
from inertia.methods import METHODS, preset
from inertia.records.canonical import canonical_json
from inertia.records.redact import redact_text

# Longer values (the weights of all layers, the hash of a file) are named by a digest.
LONGEST = 24
USUAL = (("seed", 0), ("metrics", "official"))
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/+-]*")


def policy_label(config: RunConfig) -> str:
    """Return a job's policy in words, such as `inertiakv aggregation.alpha=0.5 protect.sinks=4`.

    The words are the config's. What a method sets is left out; of a policy without a method, what the default policy
    has. Jobs with equal words, of one backbone and one benchmark, have equal cells: seed, execution and what is
    measured are words too.
    """
    metrics = "+".join(sorted(config.benchmark.metrics))
    further = {"seed": config.seed, "metrics": metrics, "execution": config.execution.describe()}
    words = [
        *differences(config.policy.describe(), base_of(config.label)),
        *(each for each in flat(further) if each not in USUAL),
    ]
    name = re.sub(r"[^A-Za-z0-9.+_-]+", "-", redact_text(config.label))
    return " ".join([name, *(f"{key.removesuffix('.kind')}={written(value)}" for key, value in words)])


@cache
def base_of(label: str) -> Mapping[str, Any]:
    """Return the description of the method of that name, of the default policy where there is none."""
    return (preset(label) if label in METHODS else Policy()).describe()


def differences(described: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield dotted name and value of every setting that the base does not have; of a part of another kind, all.

    Parts that only the base has are None, but those that a policy without a limit never has.
    """
    ours, theirs = dict(flat(described)), dict(flat(base))
    others = tuple(key.removesuffix("kind") for key, value in ours.items() if theirs.get(key, value) != value)
    others = tuple(part for part in others if part.endswith("."))
    for key, value in ours.items():
        if key not in theirs or theirs[key] != value or key.startswith(others):
            yield key, value
    possible = base if "scorer" in described else ("budget", "prefill")
    yield from ((part, None) for part in possible if part in base and part not in described)


def flat(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested settings by dotted name."""
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from flat(item, f"{above}{key}.")
        else:
            yield f"{above}{key}", item


def written(value: Any) -> str:
    """Return a value as a word; no two values have the same."""
    if isinstance(value, str) and WORD.fullmatch(value) and value not in ("true", "false", "null"):
        return value if len(value) <= LONGEST else f"~{digest(value)}"
    text = canonical_json(value)
    return text if len(text) <= LONGEST and " " not in text else f"~{digest(value)}"


def digest(value: Any) -> str:
    """Return the first 8 hex digits of a value's hash."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:8]
