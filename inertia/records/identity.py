"""What a cell is called: an id hashed from everything that can change an output."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from inertia.records.canonical import canonical_json


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


def _refuse_dots(identity: Mapping[str, Any]) -> None:
    for key, value in identity.items():
        if isinstance(key, str) and "." in key:
            raise ValueError(f"identity has the key {key!r}: a dot is not allowed in keys, nest a mapping")
        if isinstance(value, Mapping):
            _refuse_dots(value)
