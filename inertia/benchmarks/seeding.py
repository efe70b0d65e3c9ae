"""Random numbers that depend on nothing but their key."""

from __future__ import annotations

import hashlib
import json
from random import Random
from typing import TypeVar

Item = TypeVar("Item")


def rng(*key: str | int) -> Random:
    """Return a generator seeded by a hash of `key`; equal keys give equal streams in every process."""
    digest = hashlib.sha256(json.dumps(key).encode()).digest()
    return Random(int.from_bytes(digest[:16], "big"))


def official_shuffle(items: list[Item]) -> list[Item]:
    """Return `items` in the order that RULER's re-seeded shuffle gives a list of this length.

    The official code seeds a new generator with 42 before these shuffles, so every list of one length is
    permuted alike. It is kept: needle order, common-word slots and coded-word slots then sit where the
    published data have them.
    """
    shuffled = list(items)
    Random(42).shuffle(shuffled)
    return shuffled
