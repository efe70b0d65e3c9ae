"""SIGTERM as an exception, so that a preempted run still says it was interrupted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def terminable() -> Iterator[None]:
    """Turn SIGTERM into `SystemExit(143)` inside the block; SIGINT is Python's KeyboardInterrupt already.

    A handler someone else installed (a Slurm launcher, an outer block) is left alone, and off the main
    thread, where Python sets no handlers, nothing happens.
    """
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if not ours:
        yield
        return
    signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
