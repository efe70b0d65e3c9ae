"""What a cell is called: an id hashed from everything that can change an output, and a label for people."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from inertia.records.canonical import canonical_json

_LABEL_LENGTH = 80


def identity_sha256(identity: Mapping[str, Any]) -> str:
    """Return the full sha256 (64 hex digits) of the canonical JSON of an identity.

    Raises:
        TypeError, ValueError: as `canonical_json`, and for a key with a dot, which joins flattened columns.
    """
    _refuse_dots(identity)
    return hashlib.sha256(canonical_json(identity).encode("ascii")).hexdigest()


def cell_id(identity: Mapping[str, Any]) -> str:
    """Return the id of a cell: "c" and the first 11 hex digits of its `identity_sha256`.

    The letter keeps an id such as 3e563412 from being read as a number by YAML, a shell or a spreadsheet.
    Two identities that share an id are told apart by the full hash in the manifest.
    """
    return "c" + identity_sha256(identity)[:11]


def readable(identity: Mapping[str, Any]) -> str:
    """Return a short, file-name-safe label of a cell for people; it names, it does not identify.

    Backbone and benchmark give their names, the policy every axis with its plain settings, e.g.
    `tiny_ruler_niah_single_1_1024_attention_ema-0.8_ratio-0.9_s0`.
    """
    words = [_word(identity.get("backbone"), settings=False), *_benchmark(identity.get("benchmark"))]
    policy = identity.get("policy")
    axes = policy.values() if isinstance(policy, Mapping) else [policy]
    words += [_word(axis, settings=True) for axis in axes]
    if identity.get("seed") is not None:
        words.append(f"s{identity['seed']}")
    return file_name(words)


def file_name(words: list[str]) -> str:
    """Join words into a file name of at most 80 characters: letters, digits, `.`, `+`, `-`, single `_`."""
    text = re.sub(r"[^A-Za-z0-9.+_-]+", "-", "_".join(word for word in words if word))
    text = re.sub(r"_{2,}", "_", text)[:_LABEL_LENGTH].strip("._-")
    return text if text else "cell"


def _refuse_dots(identity: Mapping[str, Any]) -> None:
    for key, value in identity.items():
        if isinstance(key, str) and "." in key:
            raise ValueError(f"identity has the key {key!r}: a dot is not allowed in keys, nest a mapping")
        if isinstance(value, Mapping):
            _refuse_dots(value)


def _benchmark(benchmark: Any) -> Iterator[str]:
    if not isinstance(benchmark, Mapping):
        yield _word(benchmark, settings=False)
        return
    for key in ("name", "task", "length"):
        if benchmark.get(key) is not None:
            yield str(benchmark[key])


def _word(value: Any, *, settings: bool) -> str:
    if value is None:
        return ""
    if not isinstance(value, Mapping):
        return str(value)
    name = value.get("name", value.get("kind", value.get("_target_", "")))
    shown = [str(name).rsplit(".", 1)[-1]] if name else []
    if settings:
        shown += [
            str(item)
            for item in value.values()
            if isinstance(item, int | float) and not isinstance(item, bool)
        ]
    return "-".join(shown)
