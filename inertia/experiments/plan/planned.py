"""The cells of a run, and how much of each is recorded already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from inertia import backbones
from inertia.backbones.config import BackboneConfig
from inertia.benchmarks.registry import Benchmark
from inertia.experiments.cells import Cell, cells_of
from inertia.experiments.config import RunConfig
from inertia.paths import results_dir
from inertia.records.progress import progress
from inertia.records.store import files

NO_DATA = "no data at hand (benchmark.source): planned from benchmark.examples; what is done is unknown"
STATES = SEALED, PARTLY, MISSING, UNKNOWN = ("sealed", "partly", "missing", "unknown")


@dataclass(frozen=True)
class Planned:
    """A cell as far as it is known before anything runs.

    Attributes:
        cell: the cell; a stand-in without an id of its own where something could not be resolved.
        ids: of the examples that the run would decode; numbers where the data are not at hand.
        done: those of them that are recorded, or None where that cannot be known.
        sealed: whether the cell is complete and sealed.
        notes: pairs of what could not be resolved or read and why.
    """

    cell: Cell
    ids: tuple[str, ...]
    done: frozenset[str] | None
    sealed: bool
    notes: tuple[tuple[str, str], ...] = ()

    @property
    def lacking(self) -> tuple[str, ...]:
        """Ids of the examples that are left to decode; all where nothing is known."""
        done = self.done or frozenset()
        return tuple(each for each in self.ids if each not in done)

    @property
    def state(self) -> str:
        """One of sealed, partly, missing and unknown."""
        if self.done is None:
            return UNKNOWN
        if self.sealed:
            return SEALED
        return PARTLY if self.done else MISSING


def planned_cells(configs: Sequence[RunConfig]) -> list[Planned]:
    """Return the distinct cells of some jobs.

    Where the identity of a Hub model or the data of a benchmark cannot be had here, a stand-in is planned from the
    settings alone.

    Raises:
        ValueError: settings or data that the run would refuse.
        OSError: `backbone.path` holds no model.
    """
    known: dict[BackboneConfig, dict[str, Any] | str] = {}
    shared: dict[Benchmark, Benchmark] = {}
    found: dict[Any, Planned] = {}
    for config in configs:
        if config.backbone not in known:
            known[config.backbone] = identity_of(config.backbone)
        for each in cells_or_stand_ins(config, known[config.backbone], shared):
            found.setdefault((each.cell.id, each.ids), each)
    return with_records(list(found.values()))


def identity_of(config: BackboneConfig) -> dict[str, Any] | str:
    """Return a backbone's identity, or why it cannot be resolved."""
    try:
        return backbones.identity(config)
    except ConnectionError:
        return "not in the Hub cache, so its commit is not known: planned by its config; what is done is unknown"


def cells_or_stand_ins(
    config: RunConfig, backbone: dict[str, Any] | str, shared: dict[Benchmark, Benchmark]
) -> Iterable[Planned]:
    """Yield the cells of one job; `shared` are the benchmarks whose data were read for earlier ones."""
    if isinstance(backbone, dict) and (cells := cells_at_hand(config, shared)) is not None:
        yield from map(unrecorded, cells)
        return
    for task in config.benchmark.tasks:
        for length in config.benchmark.lengths:
            one = replace(config, benchmark=replace(config.benchmark, tasks=(task,), lengths=(length,)))
            cells = cells_at_hand(one, shared) if isinstance(backbone, dict) else None
            yield from map(unrecorded, cells) if cells is not None else [stand_in(one, task, length, backbone)]


def cells_at_hand(config: RunConfig, shared: dict[Benchmark, Benchmark]) -> list[Cell] | None:
    """Return the cells of a job, or None where some of its data are not at hand."""
    bench = config.benchmark.bound()
    if any(lacks_source(bench, task) for task in config.benchmark.tasks):
        return None
    try:
        cells = cells_of(config, shared)
        # Reading the ids reads the data, as the run would.
        _ = [cell.planned for cell in cells]
    except FileNotFoundError:
        return None
    return cells


def lacks_source(bench: Benchmark, task: str) -> bool:
    """Tell whether a task needs an outside text that no source was given for."""
    if bench.source is not None:
        return False
    if bench.name == "ruler":
        return bench.module.need(task) is not None
    return getattr(bench.module.TASKS[task], "haystack", None) == "essay" if bench.name == "niah" else False


def stand_in(config: RunConfig, task: str, length: int | None, backbone: dict[str, Any] | str) -> Planned:
    """Return a cell planned from its settings: equal settings still share a prefill."""
    bench, settings = config.benchmark.bound(), config.benchmark
    identity = {
        "stand-in": True,
        "backbone": backbone if isinstance(backbone, dict) else {"name": config.backbone.name},
        "benchmark": {"name": bench.name, "task": task, "length": length, "seed": settings.seed},
        "measured": sorted(settings.metrics),
        "policy": config.policy.describe(),
        "seed": config.seed,
    }
    cell = Cell(config, bench, task, length, identity)
    notes = [] if isinstance(backbone, dict) else [(f"{config.backbone.repo}@{config.backbone.revision}", backbone)]
    try:
        ids = () if lacks_source(bench, task) else tuple(cell.share)
    except FileNotFoundError:
        ids = ()
    if not ids:
        notes.append((f"{bench.name} {task}", NO_DATA))
        numbers = [f"{task}/{number:06d}" for number in range(settings.count(task))]
        ids = tuple(numbers if config.shard is None else config.shard.of(numbers))
    return Planned(cell, ids, None, False, tuple(notes))


def unrecorded(cell: Cell) -> Planned:
    """Return a cell before its records are looked at."""
    return Planned(cell, tuple(cell.share), frozenset(), False)


def with_records(cells: Sequence[Planned]) -> list[Planned]:
    """Return cells with what is recorded of them; stand-ins stay as they are."""
    real = [each.cell.id for each in cells if each.done is not None]
    known, damage = progress(files(results_dir() / "runs"), real, check=False)
    hurt = {cell: each.reason for each in damage for cell in each.cells or ()}
    found = []
    for each in cells:
        have = None if each.done is None else known.get(each.cell.id)
        if each.cell.id in hurt:
            each = replace(each, notes=((f"cell {each.cell.id}", f"cannot be read: {hurt[each.cell.id]}"),))
        elif have is not None:
            done = have.good.intersection(each.ids)
            each = replace(each, done=done, sealed=have.summary is not None and len(done) == len(each.ids))
        found.append(each)
    return found
