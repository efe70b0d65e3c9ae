"""A cell: what is measured, recorded and sealed as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from inertia import backbones
from inertia.benchmarks.registry import Benchmark
from inertia.experiments.config import RunConfig
from inertia.records.canonical import canonical_json
from inertia.records.identity import cell_id
from inertia.records.writer import CellPlan

# Raised whenever the same settings would give other outputs or scores; old and new cells then never share a table.
SCORE_VERSION = 1

# Kinds that names leave out.
UNSAID = ("attention", "coupled_ema", "decoupled", "every", "ratio", "unlimited", "prefill")


@dataclass(frozen=True)
class Cell:
    """One (backbone, task, length, policy): what is measured, recorded and sealed as a whole.

    Attributes:
        config: the job that asked for it.
        benchmark: its benchmark, bound to its data.
        task: task of the benchmark.
        length: nominal length.
        identity: everything that can change an output.
    """

    config: RunConfig
    benchmark: Benchmark
    task: str
    length: int | None
    identity: dict[str, Any]

    @property
    def id(self) -> str:
        """The cell's id."""
        return cell_id(self.identity)

    @property
    def group_key(self) -> str:
        """Cells with equal keys read the same prompts with the same model, and can share a prefill."""
        shared = ("backbone", "benchmark", "measured", "execution", "seed")
        return canonical_json({key: self.identity.get(key) for key in shared})

    @property
    def planned(self) -> list[str]:
        """Ids of the planned examples."""
        return self.benchmark.ids(self.task, self.length, self.config.benchmark.count(self.task))

    @property
    def share(self) -> list[str]:
        """Ids of the examples that its job decodes: all planned ones, or those of its shard."""
        shard = self.config.shard
        return self.planned if shard is None else shard.of(self.planned)

    @property
    def place(self) -> str:
        """Task and length, for names."""
        return self.task if self.length is None else f"{self.task}-{self.length}"


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: its summary if sealed, else what is missing and why.

    A cell whose config names a shard stands for that part alone; it has neither summary nor problem where none of the
    cell's examples fall into the part.
    """

    cell: Cell
    summary: dict[str, Any] | None
    problem: str | None = None


def cells_of(config: RunConfig, shared: dict[Benchmark, Benchmark] | None = None) -> list[Cell]:
    """Return the cells of a job, tasks first.

    Args:
        config: the job.
        shared: benchmarks of other jobs, each under itself; one that reads the same data is taken from here, so that
            the data are read once, and a new one is added.
    """
    backbone = backbones.identity(config.backbone)
    settings = config.benchmark
    bench = settings.bound()
    if shared is not None:
        bench = shared.setdefault(bench, bench)
    return [
        Cell(
            config,
            bench,
            task,
            length,
            {
                "score_version": SCORE_VERSION,
                "backbone": backbone,
                "benchmark": bench.identity(task, length),
                **({} if settings.metrics == ("official",) else {"measured": sorted(settings.metrics)}),
                "policy": config.policy.describe(),
                "decoding": {"kind": "greedy"},
                **({"execution": how} if (how := config.execution.describe()) else {}),
                "seed": config.seed,
            },
        )
        for task in settings.tasks
        for length in settings.lengths
    ]


def plan_of(cell: Cell) -> CellPlan:
    """Return what is to be recorded of a cell by its job."""
    shard = cell.config.shard
    return CellPlan(
        cell.identity,
        f"{cell.config.backbone.name}__{variant(cell.config)}__{cell.place}",
        tuple(cell.planned),
        cell.config.resolved,
        **({} if shard is None else {"part": (shard.number, shard.count)}),
    )


def variant(config: RunConfig) -> str:
    """Return a name for a job's policy that tells it from its neighbours in a sweep: its label and what was set.

    A method's label is followed by the kinds that it does not name itself, and by the numbers of its parts.
    """
    described = config.policy.describe()
    parts = [described[name] for name in ("scorer", "aggregation", "refresh", "budget", "prefill") if name in described]
    words = [] if described.get("scope", "shared") in ("shared", config.label) else [described["scope"]]
    words += [word for part in parts for word in settings_of(part)]
    known = re.split(r"[-+_]", config.label)
    return "-".join([config.label, *(word for word in words if not set(re.split(r"[-+_]", word)) <= set(known))])


def groups_of(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Return cells by what they share a prefill with, in the order of first appearance."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.group_key, []).append(cell)
    return list(groups.values())


def settings_of(part: Mapping[str, Any]) -> Iterator[str]:
    """Yield the kinds and numbers of a described part of a policy, nested ones too; the commonest kinds go unsaid."""
    for key, value in part.items():
        if isinstance(value, Mapping):
            yield from settings_of(value)
        elif key == "kind" and value not in UNSAID:
            yield str(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{value:g}"
