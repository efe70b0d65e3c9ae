"""The run: plan the cells, decode what is missing, score, record, seal."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from errno import ENOSPC
from typing import TYPE_CHECKING, Any

from inertia import backbones
from inertia.benchmarks.example import Example
from inertia.benchmarks.registry import Benchmark
from inertia.experiments import absorb
from inertia.experiments.answers import Answer, Asker
from inertia.experiments.cells import CELL_ERRORS, Cell, Outcome, cells_of, groups_of
from inertia.experiments.config import RunConfig
from inertia.experiments.feasible import infeasible
from inertia.experiments.indices import write_indices
from inertia.experiments.mirroring import mirror, mirrored
from inertia.experiments.rows import row_of
from inertia.paths import results_dir
from inertia.records.cell import CellWriter, Incomplete, open_cell
from inertia.records.group import Group, batch_id, held, open_group, remove_finished
from inertia.records.journal import CorruptRecord
from inertia.records.lock import CellLocked
from inertia.records.provenance import collect
from inertia.records.termination import terminable

if TYPE_CHECKING:
    from tqdm import tqdm

    from inertia.backbones import Backbone
    from inertia.eviction.execution import Execution

log = logging.getLogger(__name__)


def run(configs: Sequence[RunConfig], jobs: Sequence[Sequence[Cell]] | None = None) -> list[Outcome]:
    """Bring every cell of the jobs to its seal, sharing prefills, and return how each ended.

    A sealed cell costs nothing. A failing example is recorded with its reason and the rest goes on; its cell stays
    unsealed and is tried again next time.

    Args:
        configs: the jobs.
        jobs: their cells (`cells_of`), where the caller has them already: making them reads the data.
    """
    shared: dict[Benchmark, Benchmark] = {}
    made = [cells_of(config, shared) for config in configs] if jobs is None else jobs
    cells = list({cell.id: cell for job in made for cell in job}.values())
    write_indices(cells)
    outcomes: dict[str, Outcome] = {}
    loaded = Loaded()
    provenance, there = collect(), mirrored(cells)
    impossible = infeasible(cell for cell in cells if not is_sealed(cell))
    with progress_bar(cells) as bar:
        for group in groups_of(cells):
            reason = impossible.get(group[0].group_key)
            ended = (
                [Outcome(cell, None, stopped(cell, reason)) for cell in group]
                if reason is not None
                else guarded_group(group, loaded, provenance, bar)
            )
            mirror(ended, there)
            outcomes.update({outcome.cell.id: outcome for outcome in ended})
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


def guarded_group(group: list[Cell], loaded: Loaded, provenance: dict[str, Any], bar: tqdm) -> list[Outcome]:
    """Run a group; what stops it (a lock, a damaged record, a full disk, infeasible data) does not stop the others."""
    try:
        return run_share(group, loaded, provenance, bar)
    except Exception as error:  # noqa: BLE001 - a device, a file or data that one group needs is no matter of the others
        log.debug("group stopped", exc_info=True)
        if len(group) > 1 and isinstance(error, CorruptRecord):
            return [outcome for cell in group for outcome in guarded_group([cell], loaded, provenance, bar)]
        return [Outcome(cell, None, stopped(cell, error)) for cell in group]


def run_share(group: list[Cell], loaded: Loaded, provenance: dict[str, Any], bar: tqdm) -> list[Outcome]:
    """Run cells that share their prompts; where they are shards, absorb each cell whose last shard this was."""
    if all(cell.config.shard is None for cell in group):
        return run_group(group, loaded, provenance, bar)
    begun = [finish(Outcome(cell, None), loaded, provenance, bar) for cell in group]
    rest = [each.cell for each in begun if each.summary is None and each.problem is None and each.cell.share]
    parts = {outcome.cell.id: outcome for outcome in (run_group(rest, loaded, provenance, bar) if rest else ())}
    return [
        finish(parts[outcome.cell.id], loaded, provenance, bar) if outcome.cell.id in parts else outcome
        for outcome in begun
    ]


def finish(outcome: Outcome, loaded: Loaded, provenance: dict[str, Any], bar: tqdm) -> Outcome:
    """Return how the whole cell ended if all its examples are recorded in one shard or another, else `outcome`.

    The cell is then absorbed and sealed. Where another process holds it, to do the same, the shard's outcome stands.
    """
    cell = outcome.cell
    try:
        if outcome.problem is not None or not absorb.recorded(results_dir(), cell.id).issuperset(cell.planned):
            return outcome
        (whole,) = run_group([replace(cell, config=replace(cell.config, shard=None))], loaded, provenance, bar)
    except CellLocked:
        return outcome
    except CELL_ERRORS as error:
        return Outcome(cell, None, stopped(cell, error))
    return whole


def standing(cells: Sequence[Cell]) -> list[Outcome]:
    """Return how cells stand by their records alone; nothing is decoded, but what is complete is absorbed and sealed.

    A cell that is not complete has neither summary nor problem.
    """
    loaded, provenance, found = Loaded(), collect(), []
    with progress_bar([]) as bar:
        for cell in cells:
            try:
                outcome = finish(Outcome(cell, None), loaded, provenance, bar)
                if outcome.summary is None and cell.config.shard is not None:
                    outcome = Outcome(cell, absorb.sealed_summary(cell.root, cell.id, cell.share))
            except Exception as error:  # noqa: BLE001 - what is wrong with one cell is no matter of the others
                outcome = Outcome(cell, None, stopped(cell, error))
            found.append(outcome)
    return found


def stopped(cell: Cell, error: Exception) -> str:
    """Return what stopped a cell, in words."""
    where = f" (writing below {results_dir()})" if isinstance(error, OSError) and error.errno == ENOSPC else ""
    reason = " ".join(str(error).split())
    return f"cell {cell.id} ({cell.config.label}, {cell.place}): {type(error).__name__}: {reason}{where}"


def run_group(group: list[Cell], loaded: Loaded, provenance: dict[str, Any], bar: tqdm) -> list[Outcome]:
    """Run cells that share their prompts, and return how each ended; one that cannot be opened does not stop others.

    Raises:
        CellLocked: when another process holds the group, or the only cell.
        CorruptRecord: when the only cell is damaged.
    """
    root, ids = group[0].root, [cell.id for cell in group]
    writers: dict[str, CellWriter] = {}
    problems: dict[str, Outcome] = {}
    with ExitStack() as stack:
        if not all(is_sealed(cell) for cell in group):
            stack.enter_context(terminable())
            stack.enter_context(held(root, ids, group[0].place))
        for cell in group:
            try:
                writers[cell.id] = stack.enter_context(opened(cell, provenance))
                if not writers[cell.id].sealed:
                    absorb.adopt(writers[cell.id], results_dir(), own=cell.root)
            except CELL_ERRORS as error:
                if len(group) == 1:
                    raise
                problems[cell.id] = Outcome(cell, None, stopped(cell, error))
        pending = {name: writer for name, writer in writers.items() if not writer.sealed and name not in problems}
        if any(writer.missing for writer in pending.values()):
            decode_missing(group, open_group(root, ids, pending), loaded, bar)
        outcomes = [problems.get(cell.id) or seal(cell, writers[cell.id]) for cell in group]
    remove_finished(root, ids)
    for outcome in outcomes:
        if outcome.summary is not None and outcome.cell.config.shard is None:
            absorb.drop(results_dir(), outcome.cell.id, writers[outcome.cell.id].rows)
    return outcomes


def is_sealed(cell: Cell) -> bool:
    """Tell whether a cell is sealed with all that its job asks for."""
    try:
        return absorb.sealed_summary(cell.root, cell.id, cell.share) is not None
    except CELL_ERRORS:
        return False  # said when the cell is opened


def opened(cell: Cell, provenance: dict[str, Any]) -> AbstractContextManager[CellWriter]:
    """Return a cell's records, open inside the block."""
    return open_cell(
        cell.root,
        cell.identity,
        label=cell.label,
        planned=cell.share,
        config=cell.config.resolved,
        provenance={**provenance, **shard_sessions(cell)},
    )


def decode_missing(group: list[Cell], journal: Group, loaded: Loaded, bar: tqdm) -> None:
    """Decode and record every example that an open cell of the group lacks.

    Rows that decode together can differ in the last bits from rows that decode alone. So that a killed and repeated
    run gives the same records, an example is decoded in the batches that it was planned in: with cells that have it
    already, or are sealed, as long as the command names them.
    """
    cells = {cell.id: cell for cell in group}
    missing = {name: frozenset(writer.missing) for name, writer in journal.writers.items()}
    backbone = loaded.get(group[0].config)
    bench, task, length = group[0].benchmark, group[0].task, group[0].length
    asker = make_asker(backbone, bench, task, group[0].config.execution)
    counts = [cells[name].config.benchmark.count(task) for name in missing]
    # A failure of an earlier, larger plan is still planned.
    tried = [row["index"] + 1 for writer in journal.writers.values() for row in writer.failures.values()]
    examples = bench.examples(task, length, max(counts + tried), asker.renderer)
    bar.set_description(f"{backbone.name} {group[0].place}")
    for index, example in enumerate(examples):
        lacking = [name for name in missing if example.id in missing[name]]
        if not lacking:
            continue
        rows, used = {}, []
        for planned in journal.batches(example.id, lacking):
            together = [cells[name] for name in planned if name in cells]
            for batch, results in decode_example(together, example, asker):
                used.append([cell.id for cell in batch])
                for cell, result in zip(batch, results, strict=True):
                    if cell.id in lacking:
                        writer = journal.writers[cell.id]
                        rows[cell.id] = row_of(writer, cell, example, index, result, batch_id(used[-1]))
        journal.record(example.id, used, rows)
        bar.update(len(lacking))


def shard_sessions(cell: Cell) -> dict[str, Any]:
    """Return who decoded the shards that a whole cell is about to absorb, for its manifest."""
    found = {} if cell.config.shard is not None else absorb.sessions(results_dir(), cell.id)
    return {"shards": found} if found else {}


def make_asker(backbone: Backbone, bench: Benchmark, task: str, execution: Execution | None = None) -> Asker:
    """Return what answers a task's examples with a backbone."""
    from inertia.benchmarks.render import Renderer

    renderer = Renderer(backbone.tokenizer, backbone.chat_template)
    return Asker(backbone, bench.renderer(task, renderer, backbone.context_window), bench, execution)


def decode_example(
    cells: list[Cell], example: Example, asker: Asker
) -> list[tuple[list[Cell], Sequence[Answer | Exception]]]:
    """Decode one example under the policies of several cells; where that fails, each half of them by itself.

    Returns:
        The batches that were decoded: their cells and, for each, its answer or the exception that stopped it.
    """
    try:
        return [(cells, answers(cells, example, asker))]
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not take the other examples with it
        if len(cells) == 1:
            return [(cells, [error])]
        log.warning("%s failed for %d policies at once (%s); splitting them", example.id, len(cells), error)
        half = len(cells) // 2
        return [batch for part in (cells[:half], cells[half:]) for batch in decode_example(part, example, asker)]


def answers(cells: list[Cell], example: Example, asker: Asker) -> list[Answer]:
    """Answer one example under the policies of several cells, and measure their fidelity where it is asked for."""
    policies = [cell.config.policy for cell in cells]
    seed = example_seed(cells[0].config.seed, example.id)
    found = asker.answers(example, policies, seed)
    if "fidelity" in cells[0].config.benchmark.metrics:
        from inertia.measure.fidelity import with_fidelity

        found = with_fidelity(asker, example, policies, found, seed)
    return found


def example_seed(seed: int, example_id: str) -> int:
    """Return the seed of one example: it depends on nothing else of the run."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{example_id}".encode()).digest()[:7], "big")


def seal(cell: Cell, writer: CellWriter) -> Outcome:
    """Seal a cell, or say what is missing."""
    try:
        return Outcome(cell, writer.seal())
    except Incomplete as error:
        return Outcome(cell, None, str(error))


def progress_bar(cells: list[Cell]) -> tqdm:
    """Return a bar over all (cell, example) pairs, at what is recorded already."""
    from tqdm import tqdm

    total = sum(len(cell.share) for cell in cells)
    done = total - sum(missing(cell) for cell in cells)
    shown = any(cell.config.progress for cell in cells) and done < total
    return tqdm(
        total=total, initial=done, unit="answer", smoothing=0.1, disable=not shown, file=sys.stderr, dynamic_ncols=True
    )


def missing(cell: Cell) -> int:
    """Return how many planned examples of a cell have no record yet."""
    try:
        return len(set(cell.share) - absorb.recorded(results_dir(), cell.id))
    except CELL_ERRORS:
        return len(cell.share)  # said when the cell is opened
