"""Measure decode steps: plain, ours under every kind of policy, and kvpress's, in one run and as ratios.

    python scripts/bench_decode.py --quick --no-kvpress       a small random model, under a minute
    python scripts/bench_decode.py                            the embedded model and two shapes of four layers
    python scripts/bench_decode.py --curves --shape smollm2-135m --kept 1024

Every row is warmed up, checked against a reference, and then measured once per repeat, all rows in turn, so that a
machine that slows down slows them all. `x floor` is the median over repeats of a row's median step over the median
step of the floor in the same repeat; the floor is the fastest correct plain step over as many slots and batch rows:
transformers' static cache, or a block of slots under torch's attention or under two products. A step is the whole
step of a greedy loop, choice of the token included; where every fourth step scores, dear and cheap steps have medians
of their own, which count as often as they come.

`in scores` is the share of a step that it takes beyond a step of Score-Free, which keeps one set for all layers.
`peak` counts all tensors alive at once in a step, beyond the weights and the bench's own copy of the prompt. `must
read` is the weights once and the keys and values of all rows once; its share of bandwidth is of what a sum or a
matrix-vector product over 1 GiB reaches in the same repeats with the same threads.

Checks of every row: `generate`, the tokens of transformers' own; `masked cache`, the best tokens of a full cache in
which what was evicted is masked; `budget`, every unit holds exactly the budget after every step; `as alone`, a batch's
first and last policy answer as they do alone; `as ..`, the tokens of that row; `repeats alike`. Prompts are random
tokens; with random weights their keys and values are random as well. Tables go to stderr, one JSON line to stdout. The
exit status is 1 if a check of a row other than kvpress's failed, 130 after an interrupt, which prints what there is.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

# The profiler, which counts memory, would announce each start.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch
import transformers

from bench import bandwidth, curves, shapes, table
from bench.cases import LAZY, cases
from bench.kvpress_client import BENCH, KVPress, KVPressFailed, environment
from bench.measure import EXCESS, Measured, Setting, Tick, measure
from bench.prompt import CachedPrompt, drawn_prompt, read_prompt
from bench.shapes import SHAPES, Shape
from bench.show import show
from bench.sweep import sweep
from bench.timing import LEAD
from inertia.eviction.kernels import available

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DTYPES = ("float32", "bfloat16", "float16")
DEFAULT, QUICK = ("smollm2-135m", "4-layers", "llama-8b-4-layers"), ("tiny",)
# Most that the fitted line may rise over all steps.
FLAT = 1.05
Line = dict[str, Any]


class Sizes(NamedTuple):
    """How much is measured.

    Attributes:
        sweep_prompt: tokens of the prompt that twenty policies share.
        sweep_tokens: tokens that each of them generates.
        buffer_bytes: of what is read to see the memory's speed.
        flat_steps: of the curve over steps.
        batch_cached: tokens of the full rows in the curve over batch rows.
    """

    sweep_prompt: int = 2048
    sweep_tokens: int = 128
    buffer_bytes: int = 2**30
    flat_steps: int = 4000
    batch_cached: int = 4096


SMALL = Sizes(sweep_prompt=256, sweep_tokens=16, buffer_bytes=2**26, flat_steps=200, batch_cached=640)
SWEEP_REPEATS = 2


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a comma-separated list."""
    found = tuple(int(part) for part in text.split(","))
    if min(found) < 1:
        raise ValueError
    return found


def count(text: str) -> int:
    """Return a number of at least 1."""
    (found,) = numbers(text)
    return found


def options(words: Sequence[str] | None) -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, switch = parser.add_argument, argparse.BooleanOptionalAction
    known = f"{', '.join(SHAPES)} (default: {' '.join(DEFAULT)})"
    add("--shape", nargs="+", choices=SHAPES, metavar="SHAPE", help=known)
    add("--kept", type=numbers, help="kept tokens, such as 256,1024 (default: by shape)")
    add("--steps", type=count, help="timed steps of a repeat, a multiple of 4 (default: by shape)")
    add("--repeats", type=count, help="how often each row is measured (default: 3; quick: 2)")
    add("--threads", type=count, default=1, help="of torch (default: 1)")
    add("--kvpress", action=switch, default=True, help="measure it beside")
    add("--sweep", action=switch, default=True, help="twenty policies of one prompt on the first shape")
    add("--quick", action="store_true", help="a small random model and few steps")
    add("--curves", action="store_true", help="of the first shape: over steps, intervals and batch rows (slow)")
    add("--all-rows", action="store_true", help="all rows everywhere (default: see --all-rows-at)")
    add("--all-rows-at", type=numbers, help="kept tokens of the first shape with all rows (default: 1024; quick: all)")
    add("--device", default="cpu", help="cpu or cuda (default: cpu)")
    add("--dtype", choices=DTYPES, help="of weights (default: float32 on cpu, else bfloat16)")
    add("--environment", type=Path, help="of kvpress; made if missing")
    asked = parser.parse_args(words)
    if asked.steps is not None and asked.steps % LAZY:
        parser.error(f"--steps {asked.steps} is no multiple of {LAZY}, which Lazy-4's period asks for")
    if asked.device.partition(":")[0] not in ("cpu", "cuda"):
        parser.error(f"--device {asked.device} is unknown; give cpu, cuda or cuda:N")
    asked.shapes = [SHAPES[name] for name in asked.shape or (QUICK if asked.quick else DEFAULT)]
    asked.repeats = asked.repeats or (2 if asked.quick else 3)
    asked.dtype = asked.dtype or ("float32" if asked.device == "cpu" else "bfloat16")
    asked.sizes = SMALL if asked.quick else Sizes()
    return asked


def room(device: str) -> int:
    """Return the bytes that are free on a device now."""
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def refuse_what_cannot_run(asked: argparse.Namespace) -> None:
    """Refuse before anything is loaded.

    Raises:
        ValueError: naming the value, what is allowed and the fix.
    """
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {asked.device}: there is no CUDA device; give --device cpu.")
    free = room(asked.device)
    for shape in asked.shapes:
        needed = (2 if asked.kvpress else 1) * shapes.weight_bytes(shape, getattr(torch, asked.dtype))
        if needed > free:
            raise ValueError(
                f"--shape {shape.name}: its weights take {needed / 2**30:.0f} GiB on both sides together, "
                f"{free / 2**30:.0f} are free; give another shape, --no-kvpress, or --dtype bfloat16."
            )


def learned_weights(model: PreTrainedModel, folder: Path) -> Path:
    """Write random weights of a learned scorer for a model; its speed does not depend on them."""
    from safetensors.torch import save_file

    from inertia.eviction.scorers.learned import KEY, QUERY, RANK, widths

    query, key = widths(model.config)
    path = folder / "learned.safetensors"
    save_file({QUERY: torch.randn(RANK, query), KEY: torch.randn(RANK, key)}, path)
    return path


def note(line: Line, text: str) -> None:
    """Keep a remark and print it."""
    line["notes"].append(text)
    print(text, file=sys.stderr)


def fitting(asked: argparse.Namespace, shape: Shape, window: int, line: Line) -> list[int]:
    """Return the numbers of kept tokens that fit, ascending."""
    least = (asked.steps or shape.steps) + LEAD + 1
    beyond = EXCESS + least
    wanted = sorted(set(asked.kept or shape.kept))
    for kept in wanted:
        if kept + beyond > window:
            note(line, f"{shape.name}: {kept} kept tokens and {beyond} more do not fit its window of {window}.")
        if kept < least:
            note(line, f"{shape.name}: {kept} kept tokens are fewer than the {least} that so many steps need.")
    return [kept for kept in wanted if least <= kept <= window - beyond]


@contextmanager
def progress(total: int, title: str) -> Iterator[Tick]:
    """Show a progress bar; what it gives is called with the name of each part that is done."""
    from tqdm import tqdm

    with tqdm(total=total, desc=title, file=sys.stderr, smoothing=0.1, dynamic_ncols=True) as bar:

        def tick(name: str) -> None:
            bar.set_postfix_str(name, refresh=False)
            bar.update()

        yield tick


def measure_shape(asked: argparse.Namespace, shape: Shape, python: Path | None, line: Line) -> None:
    """Measure all there is of one shape into the line; the model is gone afterwards."""
    print(f"{shape.name}: making the model", file=sys.stderr)
    model = shapes.build(shape, asked.device, getattr(torch, asked.dtype))
    kept = fitting(asked, shape, shapes.window(model), line)
    if not kept:
        return
    longest = max(*kept, asked.sizes.batch_cached if asked.curves else 0) + EXCESS
    with torch.inference_mode():
        prompt = (read_prompt if shape.config is None else drawn_prompt)(model, longest)
    with kvpress_beside(asked, python, model, prompt, line) as side:
        base = Setting(model, prompt, kept[0], asked.steps or shape.steps, asked.device, side)
        buffer = bandwidth.buffer(asked.device, asked.sizes.buffer_bytes)
        for number in kept:
            measure_rows(asked, shape, replace(base, kept=number, most_bytes=0.5 * room(asked.device)), buffer, line)
        if shape is asked.shapes[0] and asked.sweep:
            measure_sweep(asked.sizes, shape, model, line)
        if shape is asked.shapes[0] and asked.curves:
            nearest = min(kept, key=lambda number: abs(number - 1024))
            measure_curves(asked, shape, replace(base, kept=nearest), line)


@contextmanager
def kvpress_beside(
    asked: argparse.Namespace, python: Path | None, model: PreTrainedModel, prompt: CachedPrompt, line: Line
) -> Iterator[KVPress | None]:
    """Start kvpress's side and end it afterwards, or say why there is none."""
    if python is None:
        yield None
        return
    print("kvpress: starting its process with the same weights, keys and values", file=sys.stderr)
    with KVPress(python, BENCH, asked.threads) as side:
        try:
            side.load(model, prompt, asked.threads)
        except KVPressFailed as problem:
            note(line, f"kvpress: {problem} Its rows are left out.")
            side = None
        yield side


def measure_rows(
    asked: argparse.Namespace, shape: Shape, setting: Setting, buffer: torch.Tensor, line: Line
) -> None:
    """Measure, keep and print the rows of one shape and one number of kept tokens."""
    kept, model = setting.kept, setting.model
    found: list[Measured] = []
    speeds: list[float] = []
    at = asked.all_rows_at or ((kept,) if asked.quick else (1024,))
    everything = asked.all_rows or (shape is asked.shapes[0] and kept in at)
    with tempfile.TemporaryDirectory() as folder:
        chosen = cases(
            kept,
            everything=everything,
            with_kvpress=setting.kvpress is not None,
            with_kernel=asked.device != "cpu" and available(asked.device),
            learned=learned_weights(model, Path(folder)) if everything else None,
        )
    try:
        with progress(len(chosen) * (asked.repeats + 1), f"{shape.name}, {kept} kept") as tick:
            measure(found, speeds, chosen, setting, asked.repeats, buffer, tick)
    finally:
        weights, token = bandwidth.weight_bytes_per_step(model), bandwidth.token_bytes(model)
        rows = table.rows_of(found, speeds, shape=shape.name, kept=kept, weights=weights, token=token)
        line["rows"] += rows
        line["bandwidth_gb_s"] += [speed / 1e9 for speed in speeds]
        line["targets"] += table.targets_of(found, shape=shape.name, kept=kept)
        line["faults"] += table.faults(rows)
        floor = next((row["floor"] for row in rows if row["rows"] == 1 and row.get("floor")), "none")
        speed = f", memory reads at {max(speeds) / 1e9:.1f} GB/s at best" if speeds else ""
        title = f"{shape.name}, {asked.dtype}, {kept} kept; floor: {floor}{speed}"
        show(map(table.cells, rows), title, table.COLUMNS)


def measure_sweep(sizes: Sizes, shape: Shape, model: PreTrainedModel, line: Line) -> None:
    """Measure twenty policies of one prompt against one."""
    with progress(2 * SWEEP_REPEATS, f"{shape.name}, twenty policies of one prompt") as tick:
        found = sweep(model, sizes.sweep_prompt, sizes.sweep_tokens, SWEEP_REPEATS, tick)
    line["sweeps"].append({"shape": shape.name, **found})
    line["targets"].append(table.target(shape.name, None, "20 policies / one", found["ratio"], found["most"]))
    line["faults"] += [f"{shape.name}, sweep: not equal ({name})" for name, good in found["checks"].items() if not good]
    print(
        f"{found['policies']} policies of one prompt of {found['prompt']} tokens, {found['tokens']} new ones each: "
        f"{found['all_s']:.1f} s, one alone {found['one_s']:.1f} s, ratio {found['ratio']:.2f}",
        file=sys.stderr,
    )


def measure_curves(asked: argparse.Namespace, shape: Shape, setting: Setting, line: Line) -> None:
    """Measure the curves of one shape at the number of kept tokens of the setting."""
    cached = min(asked.sizes.batch_cached, setting.prompt.length)
    steps = min(asked.sizes.flat_steps, shapes.window(setting.model) - setting.kept - EXCESS - LEAD - 1)
    repeats = asked.repeats
    found: dict[str, Any] = {"shape": shape.name}
    line["curves"].append(found)
    total = 1 + repeats * (len(curves.INTERVALS) + len(curves.BATCHES) + len(curves.POLICIES))
    with progress(total, f"{shape.name}, curves") as tick:
        found["flat"] = curves.flat(setting, steps)
        what = f"step {steps} / step 1"
        line["targets"].append(table.target(shape.name, setting.kept, what, 1 + found["flat"]["slope"], FLAT))
        tick("steps")
        found["intervals"] = curves.intervals(setting, repeats, tick)
        found["batches"] = curves.batches(setting, cached, repeats, tick)
    curves.show_curves(found, shape.name)


def processor(device: str) -> str:
    """Return the name of what computes."""
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def started(asked: argparse.Namespace) -> Line:
    """Return the line of figures with nothing measured yet."""
    machine = {
        "processor": processor(asked.device),
        "device": asked.device,
        "threads": asked.threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    lists = ("bandwidth_gb_s", "rows", "sweeps", "curves", "targets", "notes", "faults")
    return {
        "bench": "decode",
        "complete": False,
        "machine": machine,
        "dtype": asked.dtype,
        "repeats": asked.repeats,
        **{name: [] for name in lists},
    }


def print_targets(targets: Sequence[dict[str, Any]]) -> None:
    """Print which targets were met."""
    rows = [
        (
            row["what"],
            row["shape"],
            "-" if row["kept"] is None else str(row["kept"]),
            f"{row['ratio']:.2f}",
            f"{row['most']:.2f}",
            "yes" if row["met"] else "no",
        )
        for row in targets
    ]
    if rows:
        title = "targets (ratios, least is best)"
        show(rows, title, ("what", "shape", "kept", "ratio", "at most", "met"))


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    asked = options(words)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(asked.threads)
    try:
        refuse_what_cannot_run(asked)
    except ValueError as problem:
        print(problem, file=sys.stderr)
        return 2
    python = environment(asked.environment) if asked.kvpress else None

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    line = started(asked)
    try:
        for shape in asked.shapes:
            try:
                measure_shape(asked, shape, python, line)
            except Exception as problem:
                traceback.print_exception(problem)
                line["faults"].append(f"{shape.name}: {type(problem).__name__}: {problem}")
        line["complete"] = True
    except KeyboardInterrupt:
        print("interrupted; what was measured follows", file=sys.stderr)
    print_targets(line["targets"])
    for fault in line["faults"]:
        print(f"WRONG: {fault}", file=sys.stderr)
    sys.stderr.flush()
    print(json.dumps(line))
    if not line["complete"]:
        return 130
    return 1 if line["faults"] or not line["rows"] else 0


if __name__ == "__main__":
    sys.exit(main())
