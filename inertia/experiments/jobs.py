"""The jobs of one command: made together, launched together, reported together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from inertia.experiments.overrides import BadSetting

if TYPE_CHECKING:
    from inertia.experiments.cells import Cell, Outcome
    from inertia.experiments.config import RunConfig

T = TypeVar("T")


def every(jobs: Sequence[Sequence[str]], make: Callable[[int, list[str]], T]) -> list[T]:
    """Return what `make` returns for the number and the overrides of each job.

    Raises:
        BadSetting: naming all jobs that are wrong.
    """
    from hydra.errors import HydraException

    found, problems = [], []
    for number, words in enumerate(jobs):
        try:
            found.append(make(number, list(words)))
        except HydraException as error:
            problems.append(f"job {number} ({' '.join(words)}): {error.__cause__ or error}")
        except (ValueError, OSError) as error:
            problems.append(f"job {number} ({' '.join(words)}): {error}")
    if problems:
        raise BadSetting("\n".join(["no job was started; wrong settings:", *problems]))
    return found


def carry_out(configs: Sequence[RunConfig], jobs: Sequence[Sequence[Cell]]) -> list[Outcome]:
    """Run the cells of checked jobs where their launcher says, print how they ended, and return it.

    Raises:
        SystemExit: the jobs cannot be launched together (2), their cluster refuses or cells stayed incomplete (1).
    """
    from inertia.experiments.launchers.launch import check, launch
    from inertia.experiments.terminal import report

    with exit_code():
        check(configs)
    with exit_code(others=1):
        outcomes = launch(configs, jobs)
    if code := report(configs, outcomes):
        raise SystemExit(code)
    return outcomes


@contextmanager
def exit_code(others: int = 2) -> Iterator[None]:
    """Turn errors of the block into their message on stderr and an exit code: 2 for a wrong setting, or `others`.

    Raises:
        SystemExit: in place of ValueError and OSError.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        print(f"inertia: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, ValueError) else others) from error
