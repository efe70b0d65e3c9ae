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
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

# The profiler, which counts memory, would announce each start.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

if TYPE_CHECKING:
    from inertia.bench.kvpress_side import KVPressSide
    from inertia.bench.shapes import Shape

DTYPES = ("float32", "bfloat16", "float16")
DEFAULT, QUICK = ("smollm2-135m", "4-layers", "llama-8b-4-layers"), ("tiny",)
FLAT_STEPS, FLAT = 4000, 1.05


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        sweep_prompt: tokens of the prompt that twenty policies share.
        sweep_tokens: tokens that each of them generates.
        sweep_repeats: how often.
        reader_bytes: of the buffer whose reading gives the memory's speed.
        flat_steps: of the curve over steps.
        batch_cached: tokens of the full rows in the curve over batch rows.
    """

    sweep_prompt: int = 2048
    sweep_tokens: int = 128
    sweep_repeats: int = 2
    reader_bytes: int = 2**30
    flat_steps: int = FLAT_STEPS
    batch_cached: int = 4096


SMALL = Sizes(sweep_prompt=256, sweep_tokens=16, reader_bytes=2**26, flat_steps=200, batch_cached=640)


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
    parser.add_argument("--shape", nargs="+", help=f"models (default: {' '.join(DEFAULT)})")
    parser.add_argument("--kept", type=numbers, help="kept tokens, such as 256,1024 (default: by shape)")
    parser.add_argument("--steps", type=count, help="timed steps of a repeat, a multiple of 4 (default: by shape)")
    parser.add_argument("--repeats", type=count, help="how often each row is measured (default: 3; quick: 2)")
    parser.add_argument("--threads", type=count, default=1, help="of torch (default: 1)")
    parser.add_argument("--kvpress", action=argparse.BooleanOptionalAction, default=True, help="measure it beside")
    parser.add_argument(
        "--sweep",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="twenty policies of one prompt on the first shape",
    )
    parser.add_argument("--quick", action="store_true", help="a small random model and few steps")
    parser.add_argument(
        "--curves", action="store_true", help="of the first shape: over steps, intervals and batch rows (slow)"
    )
    parser.add_argument("--all-rows", action="store_true", help="all rows everywhere (default: see --all-rows-at)")
    parser.add_argument(
        "--all-rows-at", type=numbers, help="kept tokens of the first shape with all rows (default: 1024; quick: all)"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--dtype", choices=DTYPES, help="of weights (default: float32 on cpu, else bfloat16)")
    parser.add_argument("--environment", type=Path, help="of kvpress; made if missing")
    asked = parser.parse_args(words)
    from inertia.bench.cases import LAZY
    from inertia.bench.shapes import shape_named

    asked.shape = asked.shape or (QUICK if asked.quick else DEFAULT)
    try:
        asked.shapes = [shape_named(name) for name in asked.shape]
    except ValueError as problem:
        parser.error(str(problem))
    if asked.steps is not None and asked.steps % LAZY:
        parser.error(f"--steps {asked.steps} is no multiple of {LAZY}, which Lazy-4's period asks for")
    if asked.device.partition(":")[0] not in ("cpu", "cuda"):
        parser.error(f"--device {asked.device} is unknown; give cpu, cuda or cuda:N")
    asked.repeats = (2 if asked.quick else 3) if asked.repeats is None else asked.repeats
    asked.dtype = asked.dtype or ("float32" if asked.device == "cpu" else "bfloat16")
    return asked


def room(device: str) -> int:
    """Return the bytes that are free on a device now."""
    import torch

    if device.startswith("cuda"):
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def refuse_what_cannot_run(asked: argparse.Namespace) -> None:
    """Refuse before anything is loaded.

    Raises:
        ValueError: naming the value, what is allowed and the fix.
    """
    import torch

    from inertia.bench.shapes import weight_bytes

    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {asked.device}: there is no CUDA device; give --device cpu.")
    free = room(asked.device)
    sides = 2 if asked.kvpress else 1
    for shape in asked.shapes:
        needed = sides * weight_bytes(shape, getattr(torch, asked.dtype))
        if needed > free:
            raise ValueError(
                f"--shape {shape.name}: its weights take {needed / 2**30:.0f} GiB on both sides together, "
                f"{free / 2**30:.0f} are free; give another shape, --no-kvpress, or --dtype bfloat16."
            )


def learned_weights(model: Any, folder: Path) -> Path:
    """Write random weights of a learned scorer for a model; its speed does not depend on them."""
    import torch
    from safetensors.torch import save_file

    from inertia.eviction.scorers.learned import KEY, QUERY, RANK, widths

    query, key = widths(model.config)
    path = folder / "learned.safetensors"
    save_file({QUERY: torch.randn(RANK, query), KEY: torch.randn(RANK, key)}, path)
    return path


class Bench:
    """One run: what is asked for, and what was measured so far."""

    def __init__(self, asked: argparse.Namespace, sizes: Sizes) -> None:
        """Begin with nothing measured."""
        self.asked = asked
        self.sizes = sizes
        self.rows: list[dict[str, Any]] = []
        self.targets: list[dict[str, Any]] = []
        self.sweeps: list[dict[str, Any]] = []
        self.curves: list[dict[str, Any]] = []
        self.bandwidth: list[float] = []
        self.notes: list[str] = []
        self.faults: list[str] = []

    def note(self, text: str) -> None:
        """Keep a remark and print it."""
        self.notes.append(text)
        print(text, file=sys.stderr)

    def broken(self, shape: Shape, problem: Exception) -> None:
        """Keep an error as a fault and go on with what is left."""
        traceback.print_exception(problem)
        self.faults.append(f"{shape.name}: {type(problem).__name__}: {problem}")

    def steps(self, shape: Shape) -> int:
        """Return the timed steps of a repeat."""
        return self.asked.steps or shape.steps

    def kept(self, shape: Shape, window: int) -> list[int]:
        """Return the numbers of kept tokens that fit, ascending."""
        from inertia.bench.ours import EXCESS
        from inertia.bench.runs import LEAD

        beyond = EXCESS + self.steps(shape) + LEAD + 1
        least = self.steps(shape) + LEAD + 1
        asked = sorted(set(self.asked.kept or shape.kept))
        for kept in asked:
            if kept + beyond > window:
                self.note(f"{shape.name}: {kept} kept tokens and {beyond} more do not fit its window of {window}.")
            if kept < least:
                self.note(f"{shape.name}: {kept} kept tokens are fewer than the {least} that so many steps need.")
        return [kept for kept in asked if least <= kept <= window - beyond]

    def everything(self, shape: Shape, kept: int) -> bool:
        """Tell whether all rows are measured here."""
        if self.asked.all_rows or (self.asked.quick and self.asked.all_rows_at is None):
            return True
        return shape is self.asked.shapes[0] and kept in (self.asked.all_rows_at or (1024,))

    def shape(self, shape: Shape, python: Path | None, folder: Path, progress: Callable[..., Any]) -> None:
        """Measure all there is of one shape; the model is gone afterwards."""
        import torch

        from inertia.bench.bandwidth import Reader
        from inertia.bench.ours import EXCESS
        from inertia.bench.prompt import drawn_prompt, read_prompt
        from inertia.bench.shapes import build, window

        asked = self.asked
        print(f"{shape.name}: making the model", file=sys.stderr)
        model = build(shape, asked.device, getattr(torch, asked.dtype))
        kept = self.kept(shape, window(model))
        if not kept:
            return
        longest = max(*kept, self.sizes.batch_cached if asked.curves else 0) + EXCESS
        with torch.inference_mode():
            prompt = (read_prompt if shape.config is None else drawn_prompt)(model, longest)
        reader = Reader(asked.device, self.sizes.reader_bytes)
        side = self.kvpress(python, model, prompt)
        try:
            for number in kept:
                self.block(shape, model, prompt, number, side, reader, folder, progress)
            if shape is asked.shapes[0]:
                if asked.sweep:
                    self.sweep(shape, model, progress)
                if asked.curves:
                    self.curve(shape, model, prompt, kept, side, progress)
        finally:
            if side is not None:
                side.close()

    def kvpress(self, python: Path | None, model: Any, prompt: Any) -> KVPressSide | None:
        """Start kvpress's side, or say why there is none."""
        from inertia.bench.kvpress_side import KVPressFailed, KVPressSide

        if python is None:
            return None
        print("kvpress: starting its process with the same weights, keys and values", file=sys.stderr)
        try:
            return KVPressSide(python, model, prompt, self.asked.threads)
        except KVPressFailed as problem:
            self.note(f"kvpress: {problem} Its rows are left out.")
            return None

    def block(
        self,
        shape: Shape,
        model: Any,
        prompt: Any,
        kept: int,
        side: KVPressSide | None,
        reader: Any,
        folder: Path,
        progress: Callable[..., Any],
    ) -> None:
        """Measure, keep and print the rows of one shape and one number of kept tokens."""
        from inertia.bench.bandwidth import token_bytes, weight_bytes_per_step
        from inertia.bench.cases import cases
        from inertia.bench.measure import Block, Setting, measure
        from inertia.bench.table import faults, printed, rows_of, targets_of
        from inertia.eviction.kernels import available

        asked = self.asked
        everything = self.everything(shape, kept)
        chosen = cases(
            kept,
            everything=everything,
            with_kvpress=side is not None,
            with_kernel=asked.device != "cpu" and available(asked.device),
            learned=learned_weights(model, folder) if everything else None,
        )
        setting = Setting(
            model, prompt, kept, self.steps(shape), asked.device, side, most_bytes=0.5 * room(asked.device)
        )
        block = Block()
        try:
            with progress(len(chosen) * (asked.repeats + 1), f"{shape.name}, {kept} kept") as tick:
                measure(block, chosen, setting, asked.repeats, reader, tick)
        finally:
            rows = rows_of(
                block.found,
                block.speeds,
                shape=shape.name,
                kept=kept,
                weights=weight_bytes_per_step(model),
                token=token_bytes(model),
            )
            self.rows += rows
            self.bandwidth += block.speeds
            self.targets += targets_of(block.found, shape=shape.name, kept=kept)
            self.faults += faults(rows)
            floor = next((row["floor"] for row in rows if row["rows"] == 1 and row.get("floor")), "none")
            speed = f", memory reads at {max(block.speeds) / 1e9:.1f} GB/s at best" if block.speeds else ""
            printed(rows, f"{shape.name}, {asked.dtype}, {kept} kept; floor: {floor}{speed}")

    def sweep(self, shape: Shape, model: Any, progress: Callable[..., Any]) -> None:
        """Measure twenty policies of one prompt against one."""
        from inertia.bench.sweep import sweep

        sizes = self.sizes
        with progress(2 * sizes.sweep_repeats, f"{shape.name}, twenty policies of one prompt") as tick:
            found = sweep(model, sizes.sweep_prompt, sizes.sweep_tokens, sizes.sweep_repeats, tick)
        self.sweeps.append({"shape": shape.name, **found})
        self.faults += [
            f"{shape.name}, sweep: not equal ({name})" for name, good in found["checks"].items() if not good
        ]
        print(
            f"{found['policies']} policies of one prompt of {found['prompt']} tokens, {found['tokens']} new ones each: "
            f"{found['all_s']:.1f} s, one alone {found['one_s']:.1f} s, ratio {found['ratio']:.2f}",
            file=sys.stderr,
        )

    def curve(
        self,
        shape: Shape,
        model: Any,
        prompt: Any,
        kept: Sequence[int],
        side: KVPressSide | None,
        progress: Callable[..., Any],
    ) -> None:
        """Measure the curves at the kept number nearest to 1,024."""
        from inertia.bench.curves import BATCHES, INTERVALS, batches, flat, intervals, show
        from inertia.bench.measure import Setting
        from inertia.bench.ours import EXCESS
        from inertia.bench.runs import LEAD
        from inertia.bench.shapes import window

        number = min(kept, key=lambda kept: abs(kept - 1024))
        setting = Setting(model, prompt, number, self.steps(shape), self.asked.device, side)
        cached = min(self.sizes.batch_cached, prompt.length)
        fitting = window(model) - number - EXCESS - LEAD - 1
        repeats = self.asked.repeats
        total = 1 + repeats * (len(INTERVALS) + len(BATCHES) + len({*BATCHES, *(10 * rows for rows in BATCHES)}))
        with progress(total, f"{shape.name}, curves") as tick:
            found: dict[str, Any] = {"shape": shape.name}
            self.curves.append(found)
            found["flat"] = flat(setting, min(self.sizes.flat_steps, fitting))
            tick("steps")
            found["intervals"] = intervals(setting, repeats, tick)
            found["batches"] = batches(setting, cached, repeats, tick)
        show(found, shape.name)

    def line(self, complete: bool) -> dict[str, Any]:
        """Return all figures, JSON-able."""
        import torch
        import transformers

        return {
            "bench": "decode",
            "complete": complete,
            "machine": {
                "processor": processor(self.asked.device),
                "device": self.asked.device,
                "threads": self.asked.threads,
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
            "dtype": self.asked.dtype,
            "repeats": self.asked.repeats,
            "bandwidth_gb_s": [value / 1e9 for value in self.bandwidth],
            "rows": self.rows,
            "sweeps": self.sweeps,
            "curves": self.curves,
            "targets": self.targets
            + [
                {"shape": found["shape"], "kept": None, "what": "20 policies / one", **pick(found)}
                for found in self.sweeps
            ]
            + [flat_target(found["shape"], found["flat"]) for found in self.curves if "flat" in found],
            "notes": self.notes,
            "faults": self.faults,
        }


def pick(found: dict[str, Any]) -> dict[str, Any]:
    """Return what a target says."""
    return {name: found[name] for name in ("ratio", "most", "met")}


def flat_target(shape: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return whether the time of a step stayed flat: the fitted line's rise over all steps, as a ratio."""
    ratio = 1 + found["slope"]
    what = f"step {found['steps']} / step 1"
    return {"shape": shape, "kept": found["kept"], "what": what, "ratio": ratio, "most": FLAT, "met": ratio <= FLAT}


def processor(device: str) -> str:
    """Return the name of what computes."""
    if device != "cpu":
        import torch

        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def kvpress_python(folder: Path | None) -> Path:
    """Return the Python of kvpress's environment, the one that `make parity` uses."""
    from parity import ENVIRONMENT, environment

    return environment(folder or ENVIRONMENT)


def print_targets(targets: Sequence[dict[str, Any]]) -> None:
    """Print which targets were met."""
    from inertia.bench.table import printed

    if targets:
        printed(
            targets,
            "targets (ratios, least is best)",
            ("what", "shape", "kept", "ratio", "at most", "met"),
            lambda row: (
                row["what"],
                row["shape"],
                "-" if row["kept"] is None else str(row["kept"]),
                f"{row['ratio']:.2f}",
                f"{row['most']:.2f}",
                "yes" if row["met"] else "no",
            ),
        )


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    asked = options(words)
    import gc
    import signal
    import tempfile
    from contextlib import contextmanager

    import torch
    import transformers
    from tqdm import tqdm

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(asked.threads)
    try:
        refuse_what_cannot_run(asked)
    except ValueError as problem:
        print(problem, file=sys.stderr)
        return 2
    python = kvpress_python(asked.environment) if asked.kvpress else None

    @contextmanager
    def progress(total: int, title: str) -> Any:
        with tqdm(total=total, desc=title, file=sys.stderr, smoothing=0.1, dynamic_ncols=True) as bar:

            def tick(name: str) -> None:
                bar.set_postfix_str(name, refresh=False)
                bar.update()

            yield tick

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    bench = Bench(asked, SMALL if asked.quick else Sizes())
    complete = False
    try:
        with tempfile.TemporaryDirectory() as folder:
            for shape in asked.shapes:
                try:
                    bench.shape(shape, python, Path(folder), progress)
                except Exception as problem:
                    bench.broken(shape, problem)
                gc.collect()
        complete = True
    except KeyboardInterrupt:
        print("interrupted; what was measured follows", file=sys.stderr)
    line = bench.line(complete)
    print_targets(line["targets"])
    for fault in bench.faults:
        print(f"WRONG: {fault}", file=sys.stderr)
    sys.stderr.flush()
    print(json.dumps(line))
    if not complete:
        return 130
    return 1 if bench.faults or not bench.rows else 0


if __name__ == "__main__":
    sys.exit(main())
