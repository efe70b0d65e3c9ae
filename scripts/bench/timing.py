"""What one decoding of one row of the table gave, how its steps are timed, and the most memory it took.

Needs torch alone, for kvpress's environment imports it too.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

# Steps before the timed ones: the first sees the whole prompt, the second makes the batch.
LEAD = 2
MARK, MEMORY = "bench step", "[memory]"
Result = TypeVar("Result")
Mark = Callable[[], None]


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


def timed(work: Callable[[Mark], Result], device: str) -> tuple[list[float], Result]:
    """Return the seconds of each timed step of some work that calls its argument after every step, and its result."""
    times: list[float] = []

    def mark() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        times.append(time.perf_counter())

    result = work(mark)
    after = times[LEAD - 1 :]
    return [later - earlier for earlier, later in zip(after, after[1:], strict=False)], result


def peak_while_decoding(work: Callable[[Mark], Result], device: str, lead: int = LEAD) -> tuple[Result, int]:
    """Return what some work gave, and the most bytes of tensors alive at once while it decoded, beyond those before.

    On the CPU every allocation of torch is recorded by its profiler; on CUDA its allocator keeps the peak.

    Args:
        work: called once, with what it must call after every step.
        device: where it works.
        lead: steps that do not count; the peak is taken from the end of the last of them to the end of the last step.
    """
    gc.collect()
    if device.startswith("cuda"):
        return _peak_on_cuda(work, lead)

    def mark() -> None:
        with record_function(MARK):
            pass

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = work(mark)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() in (MARK, MEMORY)]
    return result, highest(
        ((event.start_ns(), event.nbytes() if event.name() == MEMORY else None) for event in events), lead
    )


def _peak_on_cuda(work: Callable[[Mark], Result], lead: int) -> tuple[Result, int]:
    torch.cuda.synchronize()
    before, steps = torch.cuda.memory_allocated(), 0

    def mark() -> None:
        nonlocal steps
        steps += 1
        if steps == lead:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()

    result = work(mark)
    torch.cuda.synchronize()
    return result, torch.cuda.max_memory_allocated() - before


def highest(events: Iterable[tuple[int, int | None]], lead: int) -> int:
    """Return the highest running sum between the `lead`-th mark and the last one.

    Args:
        events: (time, change in bytes), or (time, None) for a mark; in any order.
        lead: marks before it counts.
    """
    total, peak, marks, best = 0, 0, 0, 0
    for _, change in sorted(events, key=lambda event: event[0]):
        if change is None:
            marks += 1
            # What comes after the last mark is clearing up and does not count.
            best = peak if marks > lead else best
            peak = total if marks == lead else peak
        else:
            total += change
            peak = max(peak, total)
    return best
