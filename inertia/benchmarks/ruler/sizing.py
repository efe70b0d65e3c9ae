"""How much haystack fits: few tokenizer calls, the answer verified on both sides."""

from __future__ import annotations

from collections.abc import Callable

# A near-linear size settles in a handful of secant steps; past this many, halving bounds the search.
_SECANT_STEPS = 8


def largest_fitting(size: Callable[[int], int], limit: int, smallest: int, largest: int) -> int | None:
    """Return an n in [smallest, largest] with `size(n) <= limit` whose successor does not fit.

    Both sides are evaluated, so the promise holds even where `size` is not monotone; only `largest` itself
    has no successor. None if `smallest` does not fit.

    Args:
        size: Tokens for n units of haystack, close to linear in n.
        limit: Tokens allowed.
        smallest: Least n that makes a valid example.
        largest: Greatest n the material allows.
    """
    low, low_size = smallest, size(smallest)
    if low_size > limit:
        return None
    high = largest + 1
    slope = max(low_size / max(low, 1), 1.0)
    steps = 0
    while high - low > 1:
        steps += 1
        guess = low + int((limit - low_size) / slope) if steps <= _SECANT_STEPS else (low + high) // 2
        n = min(max(guess, low + 1), high - 1)
        n_size = size(n)
        # A flat stretch (coded words that round to no occurrence) must not send the next guess to infinity.
        slope = max((n_size - low_size) / (n - low), 0.1)
        if n_size <= limit:
            low, low_size = n, n_size
        else:
            high = n
    return low
