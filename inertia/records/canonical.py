"""One spelling for every value: the JSON that identities and record hashes are computed from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

# Most of what is hashed, by the million; subclasses go the long way.
_AS_IT_IS = frozenset((str, int, bool, type(None)))


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a nested value: equal meaning, equal text.

    Key order does not matter, a tuple is a list, `512.0` is `512`, `-0.0` is `0`, every spelling of a float
    is its shortest round-trip form, a bool is never a number, and `None` stays. Text stays text: "1e-5" is
    not 1e-5. Non-ASCII characters are escaped, so a lone surrogate cannot break a later hash.

    Raises:
        ValueError: for NaN or infinity.
        TypeError: for a key that is no text or a value JSON does not know.
    """
    return json.dumps(_plain(value, "identity"), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}: only finite numbers have an identity; use null for 'no value'")
        return int(value) if value.is_integer() else float(value)
    if isinstance(value, Mapping):
        return {
            _key(key, where): item if type(item) in _AS_IT_IS else _plain(item, f"{where}.{key}")
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [
            item if type(item) in _AS_IT_IS else _plain(item, f"{where}[{place}]") for place, item in enumerate(value)
        ]
    raise TypeError(
        f"{where} is a {type(value).__name__}: allowed are null, bool, int, float, text, list, tuple and "
        "mapping; convert it first (numpy scalars: .item(), OmegaConf nodes: OmegaConf.to_container)"
    )


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{where} has the key {key!r} of type {type(key).__name__}: keys are text, write '{key}'")
    return key
