"""Argument checks whose messages name the value, what is allowed and the fix."""

from __future__ import annotations

from typing import Any


def number(name: str, value: Any, *, low: float, high: float | None = None, high_open: bool = False) -> float:
    """Return `value` as given if it is a real number inside the range, bools excluded.

    Raises:
        ValueError: not a number, not finite, or outside the range.
    """
    closing = ")" if high_open else "]"
    allowed = f">= {low}" if high is None else f"in [{low}, {high}{closing}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}={value!r} is not a number; give a number {allowed}.")
    inside = value >= low and (high is None or (value < high if high_open else value <= high))
    if not inside or value in (float("inf"), float("-inf")):
        raise ValueError(f"{name}={value!r} is out of range; give a number {allowed}.")
    return value


def integer(name: str, value: Any, *, low: int) -> int:
    """Return `value` if it is an integer of at least `low`, bools excluded.

    Raises:
        ValueError: not an integer, or below `low`.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name}={value!r} is not an integer; give an integer >= {low}.")
    if value < low:
        raise ValueError(f"{name}={value!r} is too small; give an integer >= {low}.")
    return value


def choice(name: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    """Return `value` if it is one of `allowed`.

    Raises:
        ValueError: it is not; the message lists the allowed ones.
    """
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is unknown; give one of {', '.join(map(repr, allowed))}.")
    return value
