"""What one decoding of one row of the table gave, and how it is timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

# Steps before the timed ones: the first sees the whole prompt, the second makes the batch.
LEAD = 2


class Run(NamedTuple):
    """One decoding.

    Attributes:
        tokens: per batch row, what was chosen after each forward; the first token fed is the prompt's and is not here.
        held: bytes of keys and values at the end.
        live: per batch row, tokens that attention could see at the end (mean over layers and heads).
    """

    tokens: tuple[tuple[int, ...], ...]
    held: int
    live: tuple[float, ...]


class Clock:
    """Notes the time after every step."""

    def __init__(self, device: str) -> None:
        """Make a clock that waits for the device before it reads the time."""
        self.cuda = device.startswith("cuda")
        self.times: list[float] = []

    def __call__(self) -> None:
        """Note the time."""
        if self.cuda:
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Return how long each timed step took."""
        timed = self.times[LEAD - 1 :]
        return [later - earlier for earlier, later in zip(timed, timed[1:], strict=False)]


Work = Callable[[Callable[[], None]], Run]
