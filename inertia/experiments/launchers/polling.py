"""Start work elsewhere, show how far it is, and collect what went wrong."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tqdm import tqdm

    from inertia.experiments.launchers.payload import Payload

POLL_SECONDS = 1.0


class WorkFailed(RuntimeError):
    """A job or task ended without doing its work; the message says which, why, and where its log is."""


class Handle(Protocol):
    """A piece of work that runs somewhere."""

    def done(self) -> bool:
        """Tell whether it ended, well or not."""

    def problems(self) -> dict[str, str]:
        """Return what `run_payload` returned.

        Raises:
            WorkFailed: it returned nothing.
        """

    def cancel(self) -> None:
        """Stop it."""


class Engine(Protocol):
    """What runs work in other processes."""

    room: int | None

    def start(self, payloads: Sequence[Payload]) -> list[Handle]:
        """Start pieces of work, one handle each; at most `room` are started and not done, None is no limit."""


def follow(engine: Engine, payloads: Sequence[Payload], bar: tqdm, count: Callable[[], int]) -> dict[str, str]:
    """Run work until all of it has ended; return cell id -> problem.

    A piece that fails costs the others nothing. SIGINT and SIGTERM stop what was started; its records stay.
    """
    waiting, running, found = list(payloads), list[tuple["Handle", "Payload"]](), dict[str, str]()
    try:
        while waiting or running:
            free = len(waiting) if engine.room is None else engine.room - len(running)
            batch, waiting = waiting[:free], waiting[free:]
            if batch:
                running += zip(engine.start(batch), batch, strict=True)
            ended = [pair for pair in running if pair[0].done()]
            running = [pair for pair in running if pair not in ended]
            for handle, payload in ended:
                found |= _problems(handle, payload)
            bar.n = count()
            bar.refresh()
            if running and not ended:
                time.sleep(POLL_SECONDS)
    except (KeyboardInterrupt, SystemExit):
        for handle, _ in running:
            handle.cancel()
        print(f"inertia: stopped {len(running)} running or queued jobs.", file=sys.stderr)
        raise
    return found


def _problems(handle: Handle, payload: Payload) -> dict[str, str]:
    try:
        return handle.problems()
    except WorkFailed as error:
        return dict.fromkeys(payload.cells, str(error))
