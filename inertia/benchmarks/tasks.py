"""What the tables of tasks share: one found by its name, and the checks of what is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

Task = TypeVar("Task")


def finder(benchmark: str, tasks: Mapping[str, Task]) -> Callable[[str], Task]:
    """Return the function that gives the task called `name`, and raises a ValueError where there is none."""

    def find(name: str) -> Task:
        if name not in tasks:
            raise ValueError(f"unknown {benchmark} task {name!r}; available: {', '.join(tasks)}")
        return tasks[name]

    return find


def at_least(low: int, **values: int) -> None:
    """Accept whole numbers, given by their names, that are not below `low`.

    Raises:
        ValueError: Naming the first that is.
    """
    for name, value in values.items():
        if value < low:
            raise ValueError(f"{name} is {value}; allowed: at least {low}")


def no_length(benchmark: str, length: int | None) -> None:
    """Accept None alone.

    Raises:
        ValueError: If a length is given.
    """
    if length is not None:
        raise ValueError(f"{benchmark} has no nominal lengths, got {length}; set length to null")
