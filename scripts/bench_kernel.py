"""Measure the kernel of one-token attention on a GPU, beside torch's own attention and the eager reference.

    python scripts/bench_kernel.py
    python scripts/bench_kernel.py --slots 4096 --rows 1 16 32

Heads and sizes are those of Llama-3.1-8B in bf16. Each figure is the median over replays of a CUDA graph that goes
through so many sets of inputs that none is still in the GPU's cache. GB/s counts keys and values once, whatever else
was moved; its share is of a plain copy's rate on the same GPU (read and written bytes). `off` is the largest
difference from an fp32 softmax over the same inputs. Progress and the table go to stderr, one JSON line to stdout.
Without a CUDA device and Triton the exit status is 3.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from bench.show import show
from inertia.eviction.attention import Logits, slot_attention
from inertia.eviction.kernels import available

QUERY_HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
SCALING = HEAD_DIM**-0.5
NO_DEVICE = 3
Attention = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]


class Row(NamedTuple):
    """One measurement.

    Attributes:
        name: what was measured.
        rows: batch rows.
        slots: slots per row and KV head.
        microseconds: median of one call; None where the GPU's memory was too small.
        spread: a quarter of the replays were faster, a quarter slower than these.
        gigabytes: keys and values per second, in GB.
        share: of the measured bandwidth, 0 to 1.
        off: largest difference from the fp32 softmax.
    """

    name: str
    rows: int
    slots: int
    microseconds: float | None = None
    spread: tuple[float, float] | None = None
    gigabytes: float | None = None
    share: float | None = None
    off: float | None = None


def candidates() -> dict[str, Attention]:
    """Return what is measured: each takes query [R, Hq, D] and keys, values [R, Hkv, C, D].

    Each returns the output [R, Hq, D] and the weights' mean over the heads of a group [R, Hkv, C], or None.
    """
    from inertia.eviction.kernels.slot_decode import slot_decode

    def sdpa(query: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, None]:
        asked = query.unsqueeze(2)
        found = torch.nn.functional.scaled_dot_product_attention(asked, keys, values, scale=SCALING, enable_gqa=True)
        return found.squeeze(2), None

    def eager(query: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = slot_attention(query.unsqueeze(2), keys, values, Logits(SCALING))
        return output.squeeze(1), weights.mean(2)

    return {
        "SDPA, no weights": sdpa,
        "eager, weights": eager,
        "kernel, no weights": lambda query, keys, values: slot_decode(query, keys, values, SCALING),
        "kernel, weights": lambda query, keys, values: slot_decode(query, keys, values, SCALING, weights="head_mean"),
    }


def inputs(rows: int, slots: int, device: str, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor, Tensor]:
    """Return random query, keys and values."""
    cache = (rows, KV_HEADS, slots, HEAD_DIM)
    query = torch.randn(rows, QUERY_HEADS, HEAD_DIM, device=device, dtype=dtype)
    return query, torch.randn(cache, device=device, dtype=dtype), torch.randn(cache, device=device, dtype=dtype)


def expected(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return the output of an fp32 softmax, one KV head at a time, [R, Hq, D]."""
    heads = zip(query.chunk(KV_HEADS, 1), keys.unbind(1), values.unbind(1), strict=True)
    return torch.cat(
        [(asked.float() @ key.float().mT * SCALING).softmax(-1) @ value.float() for asked, key, value in heads], dim=1
    )


def replayed(work: Callable[[], object], repeats: int) -> list[float]:
    """Return the microseconds of each replay of some work, captured in a CUDA graph after a warm-up."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = []
    for _ in range(repeats + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return times[3:]


def bandwidth(repeats: int) -> float:
    """Return the GB/s of a copy of 1 GiB on the device, read and written bytes together."""
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / median(replayed(lambda: target.copy_(source), repeats)) / 1e3


def measured(
    name: str, attend: Attention, sets: Sequence[tuple[Tensor, Tensor, Tensor]], repeats: int, most: float
) -> Row:
    """Measure one candidate over some sets of inputs of one shape."""
    query, keys, values = sets[0]
    row = Row(name, keys.shape[0], keys.shape[2])
    off = float((attend(query, keys, values)[0].float() - expected(query, keys, values)).abs().max())

    def work() -> None:
        for one in sets:
            attend(*one)

    times = sorted(time / len(sets) for time in replayed(work, repeats))
    middle = median(times)
    gigabytes = (keys.nbytes + values.nbytes) / middle / 1e3
    spread = (times[len(times) // 4], times[-1 - len(times) // 4])
    return row._replace(microseconds=middle, spread=spread, gigabytes=gigabytes, share=gigabytes / most, off=off)


def print_rows(rows: Sequence[Row], title: str) -> None:
    """Print the table to stderr."""

    def figures(row: Row) -> list[str]:
        if row.microseconds is None:
            return ["out of memory", "-", "-", "-", "-"]
        spread = "{:.1f} to {:.1f}".format(*row.spread)
        return [f"{row.microseconds:.1f}", spread, f"{row.gigabytes:.0f}", f"{row.share:.0%}", f"{row.off:.1e}"]

    columns = ("attention", "rows", "slots", "µs", "quartiles", "GB/s", "of bandwidth", "off")
    show([(row.name, str(row.rows), str(row.slots), *figures(row)) for row in rows], title, columns)


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, nargs="+", default=[1024, 4096, 16384, 65536])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--repeats", type=int, default=30)
    asked = parser.parse_args(words)
    if min(*asked.slots, *asked.rows, asked.repeats) < 1:
        parser.error("--slots, --rows and --repeats must be at least 1")
    if not available("cuda"):
        print(
            "nothing measured: this needs a CUDA device and Triton (pip install -c constraints.txt -e '.[gpu]').",
            file=sys.stderr,
        )
        return NO_DEVICE
    torch.manual_seed(0)
    device = torch.cuda.get_device_properties("cuda")
    most = bandwidth(asked.repeats)
    found = []
    for rows, slots in itertools.product(asked.rows, asked.slots):
        one = 4 * rows * KV_HEADS * slots * HEAD_DIM
        sets: list[tuple[Tensor, Tensor, Tensor]] = []
        for name, attend in candidates().items():
            print(f"{name}: {rows} rows of {slots} slots", file=sys.stderr)
            try:
                sets = sets or [inputs(rows, slots, "cuda") for _ in range(max(2, 2 * -(-device.L2_cache_size // one)))]
                found.append(measured(name, attend, sets, asked.repeats, most))
            except torch.cuda.OutOfMemoryError:
                found.append(Row(name, rows, slots))
    print_rows(found, f"{device.name}, {most:.0f} GB/s measured")
    print(json.dumps({"device": device.name, "bandwidth_gb_s": most, "rows": [row._asdict() for row in found]}))
    return 0


if __name__ == "__main__":
    with torch.inference_mode():
        sys.exit(main())
