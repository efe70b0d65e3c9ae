"""A run of several cells with a stand-in for the model: in this process, or in one that crash tests can kill.

The stand-in notes every call in a file outside the records. What it answers depends on who else is in the batch, so
that another batch shows in the records. WRONG=b/e1 makes the cells of policy b fail on the examples e1.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from inertia.benchmarks.example import Example
from inertia.eviction.execution import Execution
from inertia.experiments import decode
from inertia.experiments import run as harness
from inertia.experiments.cells import Cell, Outcome
from inertia.measure.answers import Answer
from inertia.paths import results_dir
from inertia.records.faults import fault

TASKS = ("t", "u")


@dataclass(frozen=True)
class Bench:
    """A benchmark without data or renderer."""

    name: str = "stub"

    def ids(self, task: str, length: int | None, count: int) -> list[str]:
        return [f"{task}/e{index}" for index in range(count)]

    def examples(self, task: str, length: int | None, count: int, renderer: Any) -> Iterator[Example]:
        for name in self.ids(task, length, count):
            yield Example(name, task, length, "c", "q", "", ("r",), 4)

    def score(self, example: Example, prediction: str) -> float:
        return len(prediction) % 5 / 4

    def diagnostics(self, example: Example, prediction: str) -> Mapping[str, float]:
        return {"length": float(len(prediction))}


def config(name: str, n: int, **changes: Any) -> Any:
    """Return what the harness reads of a job, for the policy `name`."""
    return SimpleNamespace(
        **{
            "label": name,
            "backbone": SimpleNamespace(name="stub"),
            "benchmark": SimpleNamespace(count=lambda task: n, metrics=("official",), name="stub"),
            "policy": SimpleNamespace(describe=lambda: {"kind": name}),
            "logger": SimpleNamespace(mode="disabled"),
            "resolved": {"name": name},
            "execution": Execution(),
            **dict.fromkeys(("shard", "experiment_name", "profile_name", "scale", "threads")),
            "progress": False,
            "seed": 0,
            **changes,
        }
    )


def cells(names: Sequence[str], n: int, tasks: Sequence[str] = TASKS, **changes: Any) -> list[Cell]:
    """Return the cells of a sweep over policies, one job each."""
    return [
        Cell(
            config(name, n, **changes),
            Bench(),
            task,
            None,
            {"backbone": "stub", "benchmark": {"name": "stub", "task": task}, "policy": {"kind": name}, "seed": 0},
        )
        for name in names
        for task in tasks
    ]


def answers(batch: list[Cell], example: Example, runner: Any) -> list[Answer]:
    """Stand in for the model, and note the call."""
    names = "".join(sorted(cell.config.label for cell in batch))
    with (results_dir() / "calls").open("a") as calls:
        calls.write(f"{example.id} {names}\n")
    fault("generate")
    for cell in batch:
        if f"{cell.config.label}/{example.id.split('/')[1]}" in os.environ.get("WRONG", "").split(","):
            raise RuntimeError(f"{cell.config.label} cannot do {example.id}")
    prompt = SimpleNamespace(truncated=False, sha256="0" * 64, context_end=1, sanitised=False)
    generation = SimpleNamespace(
        tokens=[1, 2],
        stop="eos",
        batch_rows=len(batch),
        evictions=0.0,
        retained_tokens=1.0,
        near_ties=0,
        **dict.fromkeys(("prompt_tokens", "peak_tokens", "cache_bytes"), 1),
        **dict.fromkeys(("budget_tokens", "prefill_budget_tokens", "prefill_retained_tokens")),
        **dict.fromkeys(("prefill_seconds", "decode_seconds"), 0.5),
    )
    return [Answer(generation, prompt, f"{cell.config.label} of {names} on {example.id}") for cell in batch]


def stand_in(setattr_: Any = setattr) -> None:
    """Put the stand-ins into the harness; a test gives `monkeypatch.setattr`."""
    setattr_(decode, "answers", answers)
    setattr_(harness, "task_runner", lambda *_: SimpleNamespace(renderer=None))
    setattr_(harness, "check", lambda *_: None)
    setattr_(harness, "collect", lambda: {"commit": None})
    setattr_(harness.Loaded, "get", lambda *_: SimpleNamespace(name="stub"))


def sweep(names: Sequence[str], n: int, **changes: Any) -> list[Outcome]:
    """Run a sweep in this process, which must have the stand-ins."""
    results_dir().mkdir(parents=True, exist_ok=True)
    return harness.run([], [cells(names, n, **changes)])


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code, minus the signal that killed it, and what it said."""

    returncode: int | None
    stderr: str


def begin(results: Path, fault_point: str | None, names: str, n: int, more: Mapping[str, str]) -> tuple[Any, Path]:
    """Start a sweep in a process of its own, forked from one that has the imports; return it and where it speaks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "group_child", "pandas", "pyarrow.parquet"])
    faults = {} if fault_point is None else {"INERTIA_FAULT": fault_point}
    descriptor, said = tempfile.mkstemp()
    os.close(descriptor)
    process = context.Process(target=main, args=({"INERTIA_RESULTS": str(results), **faults, **more}, names, n, said))
    process.start()
    return process, Path(said)


def end(process: Any, said: Path) -> Ended:
    """Wait for a child."""
    process.join()
    text = said.read_text()
    said.unlink()
    return Ended(process.exitcode, text)


def child(results: Path, fault_point: str | None = None, names: str = "a,b,c", n: int = 3, **more: str) -> Ended:
    """Run a sweep in a process of its own; `more` joins its environment."""
    return end(*begin(results, fault_point, names, n, more))


def main(environment: Mapping[str, str], names: str, n: int, said: str) -> None:
    """Be the child."""
    # A shell may start background jobs with SIGINT ignored; the test means Python's default.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(said, "a") as file:
        os.dup2(file.fileno(), 2)
    for name in ("INERTIA_FAULT", "WRONG"):
        os.environ.pop(name, None)
    os.environ.update(environment)
    stand_in()
    problems = [outcome.problem for outcome in sweep(names.split(","), n) if outcome.problem is not None]
    print("\n".join(problems), file=sys.stderr)
    sys.exit(int(bool(problems)))
