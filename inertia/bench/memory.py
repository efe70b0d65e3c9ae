"""The most memory that tensors took while decoding."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

MARK = "bench step"
Result = TypeVar("Result")


def peak_while_decoding(work: Callable[[Callable[[], None]], Result], device: str, lead: int) -> tuple[Result, int]:
    """Return what some work gave, and the most bytes of tensors alive at once while it decoded, beyond those before.

    On the CPU every allocation of torch is recorded by its profiler; on CUDA its allocator keeps the peak.

    Args:
        work: called once, with what it must call after every step.
        device: where it works.
        lead: steps that do not count; the peak is taken from the end of the last of them to the end of the last step.
    """
    gc.collect()
    return _on_cuda(work, lead) if device.startswith("cuda") else _on_cpu(work, lead)


def _on_cuda(work: Callable[[Callable[[], None]], Result], lead: int) -> tuple[Result, int]:
    import torch

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


def _on_cpu(work: Callable[[Callable[[], None]], Result], lead: int) -> tuple[Result, int]:
    from torch.profiler import ProfilerActivity, profile, record_function

    def mark() -> None:
        with record_function(MARK):
            pass

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = work(mark)
    events = profiler.profiler.kineto_results.events()
    changes = ((event.start_ns(), None if event.name() == MARK else event.nbytes()) for event in events if _kept(event))
    return result, highest(changes, lead)


def _kept(event: Any) -> bool:
    return event.name() in (MARK, "[memory]")


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
