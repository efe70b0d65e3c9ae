"""The run: plan the cells, decode what is missing, score, record, seal."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inertia import backbones
from inertia.benchmarks.example import Example
from inertia.benchmarks.registry import Benchmark
from inertia.experiments.cells import Cell, Outcome, cells_of, groups_of, plan_of
from inertia.experiments.config import RunConfig
from inertia.experiments.decode import check, decode_example, task_runner
from inertia.experiments.indices import listings, write_tables
from inertia.experiments.mirroring import mirror
from inertia.experiments.rows import row_of
from inertia.measure.answers import TaskRunner
from inertia.paths import results_dir
from inertia.records.progress import Progress, progress
from inertia.records.provenance import collect
from inertia.records.store import files, refuse_old
from inertia.records.writer import Batch, CellWriter, Closed, Group, Incomplete, Writer, writing

if TYPE_CHECKING:
    from tqdm import tqdm

    from inertia.backbones import Backbone

log = logging.getLogger(__name__)


def run(
    configs: Sequence[RunConfig], jobs: Sequence[Sequence[Cell]] | None = None, *, file: str | None = None
) -> list[Outcome]:
    """Bring every cell of the jobs to its seal, sharing prefills, and return how each ended.

    A sealed cell costs nothing. A failing example is recorded with its reason and the rest goes on; its cell stays
    unsealed and is tried again next time. Where the jobs name a shard, its examples alone are decoded, and who records
    the last example of a cell seals it.

    Args:
        configs: the jobs.
        jobs: their cells (`cells_of`), where the caller has them already: making them reads the data.
        file: name of the file to write, where this is a job of a run elsewhere; "local" or the shard's by default.

    Raises:
        OldRecords: the results hold records of another version.
    """
    refuse_old(results_dir())
    shared: dict[Benchmark, Benchmark] = {}
    made = [cells_of(config, shared) for config in configs] if jobs is None else jobs
    cells = list({cell.id: cell for job in made for cell in job}.values())
    known = recorded(cells)
    outcomes: dict[str, Outcome] = {}
    shard = next((cell.config.shard for cell in cells), None)
    name = file or ("local" if shard is None else f"shard-{shard.number}of{shard.count}")
    loaded = Loaded()
    with writing(runs_dir(), name, collect) as writer, progress_bar(cells, known) as bar:
        write_listings(writer, cells)
        groups = groups_of(cells)
        # All of them first: what only data and settings can tell must not wait for hours of decoding.
        unfit = {id(group): misfit(group, known) for group in groups}
        for group in groups:
            error = unfit[id(group)]
            ended = guarded_group(group, known, writer, loaded, bar) if error is None else failed(group, error)
            mirror(ended, writer)
            outcomes.update({outcome.cell.id: outcome for outcome in ended})
        if file is None:
            write_tables(results_dir(), cells, changed=writer.store is not None)
    return [outcomes[cell.id] for cell in cells]


class Loaded:
    """The backbone in use; loading another one lets the former go."""

    def __init__(self) -> None:
        self.backbone: Backbone | None = None

    def get(self, config: RunConfig) -> Backbone:
        """Return the job's backbone, loading it if it is not the one in use."""
        if config.threads is not None:
            import torch

            torch.set_num_threads(config.threads)
        if self.backbone is None or self.backbone.identity != backbones.identity(config.backbone):
            self.backbone = None
            self.backbone = backbones.load(config.backbone)
        return self.backbone


def guarded_group(
    group: list[Cell], known: Mapping[str, Progress], writer: Writer, loaded: Loaded, bar: tqdm
) -> list[Outcome]:
    """Run a group; what stops it (a full disk, infeasible data) does not stop the others."""
    try:
        return run_group(group, known, writer, loaded, bar)
    except Exception as error:  # noqa: BLE001 - a device, a file or data that one group needs is no matter of the others
        log.debug("group stopped", exc_info=True)
        return failed(group, error)


def failed(group: list[Cell], error: Exception) -> list[Outcome]:
    """Return that an error stopped all cells of a group."""
    return [Outcome(cell, None, stopped(cell, error)) for cell in group]


def misfit(group: list[Cell], known: Mapping[str, Progress]) -> Exception | None:
    """Return why a group that has something to decode cannot be asked of its model; None where it can."""
    try:
        if not all(plan_of(cell).done(known.get(cell.id)) for cell in group):
            check(group[0])
    except Exception as error:  # noqa: BLE001 - as in `guarded_group`
        return error
    return None


def run_group(
    group: list[Cell], known: Mapping[str, Progress], writer: Writer, loaded: Loaded, bar: tqdm
) -> list[Outcome]:
    """Run cells that share their prompts, and return how each ended; one that cannot be recorded does not stop others.

    Raises:
        OSError: the records cannot be written.
        Exception: what a model or data that the whole group needs raises.
    """
    plans = {cell.id: plan_of(cell) for cell in group}
    ended: dict[str, Closed | Exception] = {
        name: Closed(known[name].summary, True) for name, plan in plans.items() if plan.done(known.get(name))
    }
    left = [plan for name, plan in plans.items() if name not in ended and plan.ours(plan.planned)]
    if left:
        with writer.open(left, group[0].group_key, group[0].place) as held:
            if held.batches:
                decode_missing(group, held, writer, loaded, bar)
        ended |= held.problems
        ended |= writer.close([plan for plan in left if plan.id not in ended])
    return [outcome_of(cell, ended.get(cell.id)) for cell in group]


def decode_missing(group: list[Cell], held: Group, writer: Writer, loaded: Loaded, bar: tqdm) -> None:
    """Decode the planned batches, and record of each what our cells lack.

    Rows that decode together can differ in the last bits from rows that decode alone. So that a killed and repeated
    run gives the same records, a batch is decoded as it was planned: with cells that have the example already, or are
    sealed, as long as the command names them.
    """
    cells = {cell.id: cell for cell in group}
    backbone = loaded.get(group[0].config)
    bench, task, length = group[0].benchmark, group[0].task, group[0].length
    runner = task_runner(backbone, bench, task, group[0].config.execution)
    # A failure of an earlier, larger plan is still planned.
    tried = [row["index"] + 1 for cell in held.cells.values() for row in cell.failed.values()]
    count = max([cell.config.benchmark.count(task) for cell in group] + tried)
    place = {name: index for index, name in enumerate(bench.ids(task, length, count))}
    complete_with: dict[str, list[Batch]] = {}
    for batch in held.batches:
        complete_with.setdefault(max(place.keys() & batch.examples, key=place.get), []).append(batch)
    uses = Counter(name for batch in held.batches for name in batch.examples)
    at_hand: dict[str, Example] = {}
    bar.set_description(f"{backbone.name} {group[0].place}")
    for example in bench.examples(task, length, count, runner.renderer):
        if uses[example.id]:
            at_hand[example.id] = example
        for batch in complete_with.pop(example.id, ()):
            examples = {place[name]: at_hand[name] for name in batch.examples if name in at_hand}
            made = decode_batch([cells[name] for name in batch.cells if name in cells], examples, held, runner)
            writer.record(batch.id, made)
            bar.update(len(made))
            uses.subtract(batch.examples)
            at_hand = {name: each for name, each in at_hand.items() if uses[name]}


def decode_batch(
    cells: list[Cell], examples: Mapping[int, Example], held: Group, runner: TaskRunner
) -> list[tuple[CellWriter, dict[str, Any]]]:
    """Decode index -> example under the policies of cells, and return the rows of what our cells lack."""
    made = []
    for index, example in examples.items():
        for some, results in decode_example(cells, example, runner):
            used = Batch(tuple(cell.id for cell in some), (example.id,)).id
            for cell, result in zip(some, results, strict=True):
                mine = held.cells.get(cell.id)
                if mine is not None and mine.lacks(example.id):
                    made.append((mine, row_of(mine, cell, example, index, result, used)))
    return made


def outcome_of(cell: Cell, ended: Closed | Exception | None) -> Outcome:
    """Return how a cell ended; a sealed one stands for the whole of it, whatever part its job decodes."""
    match ended:
        case None:
            return Outcome(cell, None)
        case Closed(summary, sealed):
            whole = sealed and cell.config.shard is not None
            return Outcome(replace(cell, config=replace(cell.config, shard=None)) if whole else cell, summary)
        case Incomplete():
            return Outcome(cell, None, str(ended))
        case _:
            return Outcome(cell, None, stopped(cell, ended))


def standing(cells: Sequence[Cell]) -> list[Outcome]:
    """Return how cells stand by their records alone; nothing is decoded, but what is complete is listed and sealed.

    A cell that is not complete has neither summary nor problem.

    Raises:
        OldRecords: as `run`.
    """
    refuse_old(results_dir())
    with writing(runs_dir(), "local", collect) as writer:
        write_listings(writer, cells)
        ended = writer.close([plan_of(cell) for cell in cells if cell.share])
        missing = [name for name, each in ended.items() if isinstance(each, Incomplete)]
        outcomes = [outcome_of(cell, None if cell.id in missing else ended.get(cell.id)) for cell in cells]
        mirror(outcomes, writer)
    return outcomes


def write_listings(writer: Writer, cells: Sequence[Cell]) -> None:
    """List the cells in their experiments, where they are not listed yet."""
    if rows := listings(writer.root, cells):
        writer.write(listing=rows)


def recorded(cells: Sequence[Cell]) -> dict[str, Progress]:
    """Return cell id -> how far it is; a file that cannot be read is said in the log."""
    known, damage = progress(files(runs_dir()), [cell.id for cell in cells])
    for each in damage:
        if each.cells is None:
            log.warning("%s; what only that file holds is decoded again", each.reason)
    return known


def runs_dir() -> Path:
    """Return the folder of records that runs write to."""
    return results_dir() / "runs"


def stopped(cell: Cell, error: Exception) -> str:
    """Return what stopped a cell, in words."""
    reason = " ".join(str(error).split())
    return f"cell {cell.id} ({cell.config.label}, {cell.place}): {type(error).__name__}: {reason}"


def progress_bar(cells: Sequence[Cell], known: Mapping[str, Progress]) -> tqdm:
    """Return a bar over all (cell, example) pairs, at what is recorded already."""
    from tqdm import tqdm

    total = sum(len(cell.share) for cell in cells)
    done = sum(len(known[cell.id].good.intersection(cell.share)) for cell in cells if cell.id in known)
    shown = any(cell.config.progress for cell in cells) and done < total
    return tqdm(
        total=total, initial=done, unit="answer", smoothing=0.1, disable=not shown, file=sys.stderr, dynamic_ncols=True
    )
