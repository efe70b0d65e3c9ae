"""Random numbers and hashes that depend on nothing but their key."""

from __future__ import annotations

import hashlib
import json
from random import Random
from typing import Any, TypeVar

Item = TypeVar("Item")


def digest(value: Any) -> str:
    """Return the sha256 of a JSON value, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def rng(*key: str | int) -> Random:
    """Return a generator seeded by a hash of `key`; equal keys give equal streams in every process."""
    return Random(int(digest(key)[:32], 16))


def official_shuffle(items: list[Item]) -> list[Item]:
    """Return `items` in the order that RULER's re-seeded shuffle gives a list of this length.

    The official code seeds a new generator with 42 before these shuffles, so every list of one length is
    permuted alike. It is kept: needle order, common-word slots and coded-word slots then sit where the
    published data have them.
    """
    shuffled = list(items)
    Random(42).shuffle(shuffled)
    return shuffled
