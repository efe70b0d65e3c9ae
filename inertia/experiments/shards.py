"""A shard: every n-th planned example of each cell, so that several processes can share one cell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_WRITTEN = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")


@dataclass(frozen=True)
class Shard:
    """The part `number` of `count`; written 3/16.

    Attributes:
        number: from 1 to `count`.
        count: how many parts there are.

    Raises:
        ValueError: the number is not one of the parts.
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise ValueError(
                f"shard={self} is out of range; give a part from 1/{self.count} to {self.count}/{self.count}."
            )

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, planned: Sequence[str]) -> list[str]:
        """Return the part's own examples: those whose place p in the plan has p % count == number - 1."""
        return list(planned[self.number - 1 :: self.count])


def parse(value: Any) -> Shard | None:
    """Return the shard that a setting asks for; None where it is null.

    Raises:
        ValueError: it is neither null nor a part such as 3/16.
    """
    if value is None:
        return None
    found = _WRITTEN.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"shard={value!r} is no part; give one such as 3/16 (the third of sixteen), or null.")
    return Shard(int(found[1]), int(found[2]))
