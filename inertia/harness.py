"""The run: plan the cells, decode what is missing, score, record, seal."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from errno import ENOSPC
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inertia import backbones
from inertia.benchmarks.example import Example
from inertia.benchmarks.registry import Benchmark
from inertia.config import RunConfig, numbers
from inertia.paths import results_dir
from inertia.protocols import Answer, Asker
from inertia.records.canonical import canonical_json
from inertia.records.cell import CellWriter, Incomplete, open_cell
from inertia.records.identity import cell_id
from inertia.records.journal import CorruptRecord
from inertia.records.lock import CellLocked
from inertia.records.provenance import collect

if TYPE_CHECKING:
    from tqdm import tqdm

    from inertia.backbones import Backbone

# Raised whenever the same settings would give other outputs or scores; old and new cells then never share a table.
SCORE_VERSION = 1

log = logging.getLogger(__name__)


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
        return canonical_json({key: self.identity.get(key) for key in ("backbone", "benchmark", "measured", "seed")})

    @property
    def planned(self) -> list[str]:
        """Ids of the planned examples."""
        return self.benchmark.ids(self.task, self.length, self.config.benchmark.count(self.task))

    @property
    def place(self) -> str:
        """Task and length, for names."""
        return self.task if self.length is None else f"{self.task}-{self.length}"


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: its summary if sealed, else what is missing and why."""

    cell: Cell
    summary: dict[str, Any] | None
    problem: str | None = None


def cells_of(config: RunConfig) -> list[Cell]:
    """Return the cells of a job, tasks first."""
    backbone = backbones.identity(config.backbone)
    settings = config.benchmark
    bench = settings.bound()
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
                "seed": config.seed,
            },
        )
        for task in settings.tasks
        for length in settings.lengths
    ]


def run(configs: Sequence[RunConfig], jobs: Sequence[Sequence[Cell]] | None = None) -> list[Outcome]:
    """Bring every cell of the jobs to its seal, sharing prefills, and return how each ended.

    A sealed cell costs nothing. A failing example is recorded with its reason and the rest goes on; its cell stays
    unsealed and is tried again next time.

    Args:
        configs: the jobs.
        jobs: their cells (`cells_of`), where the caller has them already: making them reads the data.
    """
    made = [cells_of(config) for config in configs] if jobs is None else jobs
    cells = list({cell.id: cell for job in made for cell in job}.values())
    write_indices(cells)
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.group_key, []).append(cell)
    outcomes: dict[str, Outcome] = {}
    loaded = Loaded()
    provenance = collect()
    with progress_bar(cells) as bar:
        for group in groups.values():
            for outcome in guarded_group(group, loaded, provenance, bar):
                outcomes[outcome.cell.id] = outcome
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
        return run_group(group, loaded, provenance, bar)
    except Exception as error:  # noqa: BLE001 - a device, a file or data that one group needs is no matter of the others
        log.debug("group stopped", exc_info=True)
        if len(group) > 1 and isinstance(error, CellLocked | CorruptRecord):
            return [outcome for cell in group for outcome in guarded_group([cell], loaded, provenance, bar)]
        where = f" (writing below {results_dir()})" if isinstance(error, OSError) and error.errno == ENOSPC else ""
        return [
            Outcome(
                cell,
                None,
                f"cell {cell.id} ({cell.config.label}, {cell.place}): {type(error).__name__}: {error}{where}",
            )
            for cell in group
        ]


def run_group(group: list[Cell], loaded: Loaded, provenance: dict[str, Any], bar: tqdm) -> list[Outcome]:
    """Run cells that share their prompts, and return how each ended."""
    with ExitStack() as stack:
        writers = {
            cell.id: stack.enter_context(
                open_cell(
                    results_dir() / "runs",
                    cell.identity,
                    label=f"{cell.config.backbone.name}__{variant(cell.config)}__{cell.place}",
                    planned=cell.planned,
                    config=cell.config.resolved,
                    provenance=provenance,
                )
            )
            for cell in group
        }
        pending = [cell for cell in group if not writers[cell.id].sealed]
        if pending:
            decode_missing(pending, writers, loaded, bar)
        outcomes = [seal(cell, writers[cell.id]) for cell in group]
    for outcome in outcomes:
        if outcome.summary is not None and (outcome.cell in pending or not mirrored(outcome.cell)):
            mirror(outcome, writers[outcome.cell.id])
    return outcomes


def decode_missing(pending: list[Cell], writers: dict[str, CellWriter], loaded: Loaded, bar: tqdm) -> None:
    """Decode and record every example that a pending cell lacks.

    Rows that decode together can differ in the last bits from rows that decode alone. So that a killed and repeated
    run gives the same records, an example is always decoded for the cells that lack it and for those that already
    got it from this very group: the batch is then the one of the undisturbed run.
    """
    batch_id = "b" + hashlib.sha256("".join(sorted(cell.id for cell in pending)).encode()).hexdigest()[:11]
    first = pending[0].config
    backbone = loaded.get(first)
    bench, task, length = pending[0].benchmark, pending[0].task, pending[0].length
    asker = make_asker(backbone, bench, task)
    count = max(cell.config.benchmark.count(task) for cell in pending)
    examples = bench.examples(task, length, count, asker.renderer)
    bar.set_description(f"{backbone.name} {pending[0].place}")
    for index, example in enumerate(examples):
        lacking = [
            cell
            for cell in pending
            if example.id in writers[cell.id].planned and example.id not in writers[cell.id].rows
        ]
        if not lacking:
            continue
        mates = [
            cell for cell in pending if cell not in lacking and decoded_with(writers[cell.id], example.id) == batch_id
        ]
        together = [cell for cell in pending if cell in lacking or cell in mates]
        for cell, result in decode_example(together, example, asker):
            if cell in lacking:
                record(writers[cell.id], cell, example, index, result, batch_id)
        bar.update(len(lacking))


def variant(config: RunConfig) -> str:
    """Return a job's label with its policy's numbers, for the name of a cell's folder."""
    described = config.policy.describe()
    found = [item for name in ("aggregation", "refresh", "budget") for item in numbers(described.get(name, {}))]
    return "-".join([config.label, *(f"{item:g}" for item in found)])


def decoded_with(writer: CellWriter, example_id: str) -> str | None:
    """Return the id of the batch that gave an example's row, None where there is no row."""
    row = writer.rows.get(example_id)
    return None if row is None else json.loads(row["telemetry"])["decoded_with"]


def make_asker(backbone: Backbone, bench: Benchmark, task: str) -> Asker:
    """Return what answers a task's examples with a backbone."""
    from inertia.benchmarks.render import Renderer

    renderer = Renderer(backbone.tokenizer, backbone.chat_template)
    return Asker(backbone, bench.renderer(task, renderer, backbone.context_window), bench)


def decode_example(cells: list[Cell], example: Example, asker: Asker) -> Iterable[tuple[Cell, Answer | Exception]]:
    """Decode one example under the policies of several cells; where that fails, each half of them by itself.

    Returns:
        Pairs of a cell and its answer, or the exception that stopped it.
    """
    try:
        return list(zip(cells, answers(cells, example, asker), strict=True))
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not take the other examples with it
        if len(cells) == 1:
            return [(cells[0], error)]
        log.warning("%s failed for %d policies at once (%s); splitting them", example.id, len(cells), error)
        half = len(cells) // 2
        return [pair for part in (cells[:half], cells[half:]) for pair in decode_example(part, example, asker)]


def answers(cells: list[Cell], example: Example, asker: Asker) -> list[Answer]:
    """Answer one example under the policies of several cells, and measure their fidelity where it is asked for."""
    policies = [cell.config.policy for cell in cells]
    seed = example_seed(cells[0].config.seed, example.id)
    found = asker.answers(example, policies, seed)
    if "fidelity" in cells[0].config.benchmark.metrics:
        from inertia.fidelity import with_fidelity

        found = with_fidelity(asker, example, policies, found, seed)
    return found


def example_seed(seed: int, example_id: str) -> int:
    """Return the seed of one example: it depends on nothing else of the run."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{example_id}".encode()).digest()[:7], "big")


def record(
    writer: CellWriter, cell: Cell, example: Example, index: int, result: Answer | Exception, batch_id: str
) -> None:
    """Append one example to a cell's journal."""
    shared = {"length": example.length, "references": list(example.references)}
    if isinstance(result, Exception):
        writer.append_failure(example.id, index, result, task=example.task, **shared)
        return
    generation, prompt = result.generation, result.prompt
    writer.append(
        {
            **shared,
            "example_id": example.id,
            "index": index,
            "task": example.task,
            "prediction": result.prediction,
            "score": cell.benchmark.score(example, result.prediction),
            "metrics": {
                **cell.benchmark.diagnostics(example, result.prediction),
                "hit_limit": float(generation.stop == "length"),
                "truncated": float(prompt.truncated),
                **result.metrics,
            },
            "prompt_tokens": generation.prompt_tokens,
            "new_tokens": len(generation.tokens),
            "tokens": generation.tokens,
            "stop": generation.stop,
            "budget_tokens": generation.budget_tokens,
            "retained_tokens": generation.retained_tokens,
            "peak_tokens": generation.peak_tokens,
            "cache_bytes": generation.cache_bytes,
            "evictions": round(generation.evictions),
            "truncated": prompt.truncated,
            "prompt_sha256": prompt.sha256,
            "prefill_seconds": generation.prefill_seconds,
            "decode_seconds": generation.decode_seconds,
            "batch_rows": generation.batch_rows,
            "telemetry": {
                "decoded_with": batch_id,
                "context_tokens": prompt.context_end,
                "prefill_budget_tokens": generation.prefill_budget_tokens,
                "prefill_retained_tokens": generation.prefill_retained_tokens,
                "sanitised": prompt.sanitised,
                "example": facts(example),
                **result.telemetry,
            },
        }
    )


def facts(example: Example) -> dict[str, Any]:
    """Return what an example says of itself, without the texts that only prompts need."""
    return {key: value for key, value in example.metadata.items() if key not in ("fields", "all_classes")}


def seal(cell: Cell, writer: CellWriter) -> Outcome:
    """Seal a cell, or say what is missing."""
    try:
        return Outcome(cell, writer.seal())
    except Incomplete as error:
        return Outcome(cell, None, str(error))


def mirrored(cell: Cell) -> bool:
    """Tell whether a cell has a W&B run here already; a kill between seal and mirror leaves none."""
    return any((results_dir() / "wandb").rglob(f"run-{cell.id}*.wandb"))


def mirror(outcome: Outcome, writer: CellWriter) -> None:
    """Copy a sealed cell to W&B; whatever happens there is only logged."""
    logger = outcome.cell.config.logger
    if logger.mode == "disabled":
        return
    from inertia.records.wandb_mirror import mirror as to_wandb

    config = outcome.cell.config
    to_wandb(
        writer.directory,
        mode=logger.mode,
        project=logger.project,
        directory=results_dir() / "wandb",
        group=logger.group or config.experiment_name or "runs",
        job_type="eval",
        tags=[
            config.backbone.name,
            config.label,
            config.benchmark.name,
            f"{outcome.cell.task}-{outcome.cell.length}",
        ],
    )


def progress_bar(cells: list[Cell]) -> tqdm:
    """Return a bar over all (cell, example) pairs, at what is recorded already."""
    from tqdm import tqdm

    total = sum(len(cell.planned) for cell in cells)
    done = total - sum(missing(cell) for cell in cells)
    shown = any(cell.config.progress for cell in cells) and done < total
    return tqdm(
        total=total, initial=done, unit="answer", smoothing=0.1, disable=not shown, file=sys.stderr, dynamic_ncols=True
    )


def missing(cell: Cell) -> int:
    """Return how many planned examples of a cell have no record yet."""
    from inertia.records.progress import recorded_ids

    try:
        return len(set(cell.planned) - recorded_ids(results_dir() / "runs", cell.id))
    except CorruptRecord:
        return len(cell.planned)  # said when the cell is opened


def write_indices(cells: list[Cell]) -> None:
    """Write, for each experiment and profile among the cells, the index that reports are made from."""
    from inertia.records.atomic import write_json

    named = [cell for cell in cells if cell.config.experiment_name is not None]
    keys = dict.fromkeys((cell.config.experiment_name, cell.config.profile_name or "custom") for cell in named)
    for experiment, profile in keys:
        members = [
            cell
            for cell in named
            if (cell.config.experiment_name, cell.config.profile_name or "custom") == (experiment, profile)
        ]
        config = members[0].config
        folder = results_dir() / "experiments"
        folder.mkdir(parents=True, exist_ok=True)
        path = index_path(folder, experiment, profile, config.backbone.name)
        listed = [index_entry(cell) for cell in members]
        write_json(
            path,
            {
                "experiment": experiment,
                "profile": profile,
                "scale": config.scale or "custom",
                "backbone": config.backbone.name,
                "backbone_label": "; ".join(dict.fromkeys(backbones.label(cell.config.backbone) for cell in members)),
                "cells": [*kept_entries(path, listed), *listed],
            },
        )


def index_path(folder: Path, experiment: str, profile: str, backbone: str) -> Path:
    """Return where an index goes: beside one of the same name that is another backbone's, never over it."""
    path = folder / f"{experiment}__{profile}.json"
    if path.exists() and json.loads(path.read_text(encoding="utf-8"))["backbone"] != backbone:
        path = folder / f"{experiment}__{profile}-{backbone}.json"
        log.warning(
            "%s is another backbone's; this one's cells are listed as profile %s-%s", experiment, profile, backbone
        )
    return path


def index_entry(cell: Cell) -> dict[str, Any]:
    """Return what an index says of a cell."""
    return {
        "cell_id": cell.id,
        "axes": axes(cell.config),
        "task": cell.task,
        "length": cell.length,
        "planned": len(cell.planned),
    }


def kept_entries(path: Path, new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of an index that is there already and that the new ones do not replace.

    Several jobs may share one experiment; an entry of equal place and axes is an older run of the same thing.
    """
    if not path.exists():
        return []
    replaced = [{key: entry[key] for key in ("axes", "task", "length")} for entry in new]
    ids = {entry["cell_id"] for entry in new}
    old = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [
        entry
        for entry in old
        if entry["cell_id"] not in ids and {key: entry[key] for key in ("axes", "task", "length")} not in replaced
    ]


def axes(config: RunConfig) -> dict[str, Any]:
    """Return what a cell was varied in: the policy's label and every setting of its parts, by dotted name."""
    flat: dict[str, Any] = {"method": config.label, "alpha": None, "backbone": config.backbone.name}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                walk(f"{prefix}.{key}" if prefix else key, item)
        else:
            flat[prefix] = value

    walk("", config.policy.describe())
    flat["alpha"] = flat.get("aggregation.alpha")
    return flat
