"""A cell: what is measured, recorded and sealed as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from inertia import backbones
from inertia.benchmarks.registry import Benchmark
from inertia.experiments.config import RunConfig
from inertia.experiments.labels import digest, policy_label
from inertia.records.canonical import canonical_json
from inertia.records.identity import cell_id
from inertia.records.writer import CellPlan

# Raised whenever the same settings would give other outputs or scores; old and new cells then never share a table.
SCORE_VERSION = 1


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
    def label(self) -> str:
        """A name for people that only cells of this identity have: backbone, policy, place and data, joined by "__"."""
        read = {key: self.identity.get(key) for key in ("score_version", "backbone", "benchmark")}
        return f"{self.config.backbone.name}__{policy_label(self.config)}__{self.place}@{digest(read)}"

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
        cell.label,
        tuple(cell.planned),
        cell.config.resolved,
        **({} if shard is None else {"part": (shard.number, shard.count)}),
    )


def groups_of(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Return cells by what they share a prefill with, in the order of first appearance."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.group_key, []).append(cell)
    return list(groups.values())
