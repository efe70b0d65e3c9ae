"""From the jobs of a command to their outcomes, wherever the command says that they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inertia.experiments.launchers import ray_tasks, submitit_jobs
from inertia.experiments.launchers.payload import divide
from inertia.experiments.launchers.polling import Engine, follow
from inertia.experiments.launchers.settings import Local, Ray, Submitit, require
from inertia.paths import results_dir
from inertia.records.termination import terminable

if TYPE_CHECKING:
    from inertia.experiments.cells import Cell, Outcome
    from inertia.experiments.config import RunConfig


def check(configs: Sequence[RunConfig]) -> None:
    """Refuse jobs that cannot be launched together, before anything starts.

    Raises:
        ValueError: they name several launchers or shards, cut their examples twice, or the launcher cannot work here.
    """
    launcher = _one("launcher", [config.launcher for config in configs])
    shard = _one("shard", [config.shard for config in configs])
    if shard is not None and launcher.shards > 1:
        raise ValueError(f"shard={shard} and launcher.shards={launcher.shards} both cut the examples; give one of them")
    if not isinstance(launcher, Local):
        require(launcher.kind)
    if isinstance(launcher, Submitit):
        submitit_jobs.check(launcher)


def launch(configs: Sequence[RunConfig], jobs: Sequence[Sequence[Cell]]) -> list[Outcome]:
    """Bring every cell of the jobs to its seal where their launcher says, and return how each ended.

    Args:
        configs: the jobs, accepted by `check`.
        jobs: their cells.

    Raises:
        ValueError: the launcher turns out to be unable to hold the work.
        OSError: its cluster cannot be reached or refuses.
    """
    from inertia.experiments import run as harness
    from inertia.experiments.indices import write_tables
    from inertia.experiments.launchers.progress import Progress

    launcher = configs[0].launcher
    if isinstance(launcher, Local):
        return harness.run(configs, jobs)
    cells = list({cell.id: cell for job in jobs for cell in job}.values())
    before = {outcome.cell.id: outcome for outcome in harness.standing(cells)}
    left = [
        cell for cell in cells if before[cell.id].summary is None and before[cell.id].problem is None and cell.share
    ]
    payloads = divide(left, shards=launcher.shards, groups_per_job=launcher.groups_per_job, results=results_dir())
    problems: dict[str, str] = {}
    if payloads:
        progress, known = Progress(harness.runs_dir(), left), harness.recorded(left)
        with terminable(), _engine(launcher) as engine, harness.progress_bar(left, known) as bar:
            bar.set_description(f"{len(payloads)} jobs through {launcher.kind}")
            problems = follow(engine, payloads, bar, progress.count)
    after = {outcome.cell.id: outcome for outcome in harness.standing(left)} if payloads else {}
    write_tables(results_dir(), cells, changed=bool(payloads))
    return [_said(after[cell.id], problems) if cell.id in after else before[cell.id] for cell in cells]


def _said(outcome: Outcome, problems: Mapping[str, str]) -> Outcome:
    """Return an outcome with the reason for what is missing."""
    if outcome.summary is not None or outcome.problem is not None:
        return outcome
    cell = outcome.cell
    missing = f"cell {cell.id} ({cell.config.label}, {cell.place}) is not complete; repeat the command"
    return replace(outcome, problem=problems.get(cell.id, missing))


@contextmanager
def _engine(launcher: Submitit | Ray) -> Iterator[Engine]:
    if isinstance(launcher, Ray):
        with ray_tasks.connected(launcher, (results_dir() / "jobs" / "ray.log").absolute()) as engine:
            yield engine
    else:
        yield submitit_jobs.Submitted(launcher, (results_dir() / "jobs").absolute())


def _one(name: str, values: Sequence[Any]) -> Any:
    """Return the value that all jobs have.

    Raises:
        ValueError: they differ.
    """
    first = values[0]
    for value in values[1:]:
        if value != first:
            raise ValueError(
                f"{name} differs between the jobs ({first} and {value}); give each a command of its own"
                + (", or launcher.shards=n" if name == "shard" else "")
            )
    return first
