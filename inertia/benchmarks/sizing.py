"""How much haystack fits: few tokenizer calls, the answer verified on both sides."""

from __future__ import annotations

from collections.abc import Callable

from inertia.benchmarks.example import Example
from inertia.benchmarks.render import Renderer

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


def largest_example(
    build: Callable[[int], Example], renderer: Renderer, limit: int, smallest: int, largest: int
) -> Example | None:
    """Return the example of most units whose prompt takes at most `limit` tokens; None if none does.

    Args:
        build: Units of haystack -> the example.
        renderer: Counts its prompt's tokens.
        limit: Tokens allowed, template and answer prefix included.
        smallest: Least number of units that makes a valid example.
        largest: Greatest number that the material allows.

    Raises:
        RuntimeError: If two counts of one example disagree.
    """
    units = largest_fitting(lambda n: renderer.count(build(n)), limit, smallest, largest)
    if units is None:
        return None
    example = build(units)
    if (size := renderer.count(example)) > limit:
        raise RuntimeError(f"{example.id} takes {size} prompt tokens, allowed {limit}: two counts disagree")
    return example


def tokens(example: Example, renderer: Renderer) -> int:
    """Return the tokens of an example's prompt and of its longest answer."""
    return renderer.count(example) + example.max_new_tokens


def filled(benchmark: str, build: Callable[[int], Example], renderer: Renderer, smallest: int, largest: int) -> Example:
    """Return the example of most units whose prompt and longest answer fit its own length; see `largest_example`.

    Raises:
        ValueError: If not even its smallest form fits.
    """
    least = build(smallest)
    found = largest_example(build, renderer, least.length - least.max_new_tokens, smallest, largest)
    if found is None:
        raise ValueError(
            f"{benchmark} task {least.task!r} does not fit {least.length} tokens: with this tokenizer and template, "
            f"example {int(least.id.rpartition('/')[2])} needs at least {tokens(least, renderer)}; choose a longer one"
        )
    return found
