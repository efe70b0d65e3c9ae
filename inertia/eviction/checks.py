"""Argument checks whose messages name the value, what is allowed and the fix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
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
        ValueError: it is not; the message lists the allowed ones and says which is nearest.
    """
    if value not in allowed:
        hint = nearest(value, allowed) if isinstance(value, str) else ""
        raise ValueError(f"{name}={value!r} is unknown; give one of {', '.join(map(repr, allowed))}.{hint}")
    return value


def nearest(name: str, allowed: Iterable[Any]) -> str:
    """Return " Did you mean ...?" for the nearest of some names, else for those that begin with it, else nothing."""
    names = [each for each in allowed if isinstance(each, str)]
    found = get_close_matches(name, names, n=1) or [each for each in names if name and each.startswith(name)][:3]
    return f" Did you mean {' or '.join(found)}?" if found else ""


def boolean(name: str, value: Any) -> bool:
    """Return `value` if it is True or False; 1 and 0 are not, since they would be another cell of equal meaning.

    Raises:
        ValueError: it is neither.
    """
    if value is not True and value is not False:
        raise ValueError(f"{name}={value!r} is not a boolean; give true or false.")
    return value


def has(name: str, value: Any, methods: tuple[str, ...], example: str) -> Any:
    """Return `value` if it has the methods that its place in a policy needs.

    Raises:
        ValueError: it is a class, or lacks one; the message gives an example of what fits.
    """
    lacking = [method for method in methods if not callable(getattr(value, method, None))]
    if isinstance(value, type) or lacking:
        raise ValueError(f"{name}={value!r} does not fit: it needs {', '.join(methods)}; give for instance {example}.")
    return value


def known_settings(what: str, given: Iterable[str], allowed: Sequence[str]) -> None:
    """Refuse settings that something does not have.

    Raises:
        ValueError: naming them and the ones that it has.
    """
    unknown = [key for key in given if key not in allowed]
    if unknown:
        known = ", ".join(allowed) or "none"
        raise ValueError(f"{what} has no setting {', '.join(map(repr, unknown))}; it has {known}.")
