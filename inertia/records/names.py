"""What people call a cell's parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Names(NamedTuple):
    """What people call a cell's parts; "none" where a record does not say.

    Attributes:
        backbone: name of the model.
        benchmark: name of the benchmark.
        task: task of the benchmark.
        length: nominal length, None where the task has none.
        policy: label of the policy with its settings, such as "inertiakv-0.8-1-0.9".
        method: the label alone, such as "inertiakv".
    """

    backbone: str
    benchmark: str
    task: str
    length: int | None
    policy: str
    method: str


def names(manifest: Mapping[str, Any]) -> Names:
    """Return the names in a manifest; labels are made as backbone__policy__place."""
    config, identity = manifest.get("config", {}), manifest["identity"]
    place = identity.get("benchmark")
    place = place if isinstance(place, Mapping) else {"name": place}
    words = manifest["label"].split("__")
    policy = "__".join(words[1:-1]) if len(words) > 2 else manifest["label"]
    length = place.get("length")
    return Names(
        backbone=_first(_name(config.get("backbone")), _name(identity.get("backbone"))),
        benchmark=_first(_name(place)),
        task=_first(place.get("task")),
        length=length if isinstance(length, int) else None,
        policy=policy,
        method=_first(config.get("label"), policy),
    )


def _name(value: Any) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("name")
    return value if isinstance(value, str) else None


def _first(*candidates: Any) -> str:
    return next((str(value) for value in candidates if value is not None), "none")
