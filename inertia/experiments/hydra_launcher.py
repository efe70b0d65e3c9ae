"""The launcher behind `-m`: composes every job first, then runs together those that can share a prefill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher

if TYPE_CHECKING:
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig

    from inertia.benchmarks.registry import Benchmark
    from inertia.experiments.cells import Cell, Outcome
    from inertia.experiments.config import RunConfig


class GroupingLauncher(Launcher):
    """Runs the jobs of a multirun, here or where the group `launcher` says; one job is one config and one return value.

    Unlike Hydra's basic launcher it does not call the task function job by job: jobs that read the same prompts with
    the same backbone are decoded as rows of one batch. That is also why `hydra/launcher` stays at this one launcher and
    Slurm and Ray are options of a group of ours: Hydra's launchers for them ship single jobs, and only under `-m`.
    """

    def __init__(self) -> None:
        self.config: DictConfig | None = None
        self.context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what is needed to compose the jobs."""
        self.config, self.context = config, hydra_context

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Compose and check all jobs, run them, and return one result per job.

        Raises:
            SystemExit: a job's settings are wrong (2, before anything runs), or cells stayed incomplete (1).
        """
        from inertia.experiments.cells import cells_of
        from inertia.experiments.config import run_config
        from inertia.experiments.jobs import carry_out, every, exit_code

        shared: dict[Benchmark, Benchmark] = {}

        def made(number: int, overrides: list[str]) -> tuple[DictConfig, RunConfig, list[Cell]]:
            composed = self._compose(overrides, initial_job_idx + number)
            config = run_config(composed)
            return composed, config, cells_of(config, shared)

        with exit_code():
            composed, configs, jobs = zip(*every(job_overrides, made), strict=True)
        outcomes = carry_out(configs, jobs)
        return [
            self._result(list(overrides), config, scores_of(cells, outcomes))
            for overrides, config, cells in zip(job_overrides, composed, jobs, strict=True)
        ]

    def _compose(self, overrides: list[str], number: int) -> DictConfig:
        """Return one job's config as Hydra's own launchers compose it."""
        from hydra.errors import HydraException
        from omegaconf import open_dict

        from inertia.experiments.overrides import check

        try:
            config = self.context.config_loader.load_sweep_config(self.config, overrides)
        except HydraException:
            check(overrides)  # says it in our words, if it is a wrong setting
            raise
        with open_dict(config):
            config.hydra.job.id, config.hydra.job.num = f"job_{number}", number
        return config

    @staticmethod
    def _result(overrides: list[str], config: DictConfig, value: Any) -> JobReturn:
        """Return a completed job's result."""
        result = JobReturn(overrides=overrides, cfg=config, hydra_cfg=config, task_name="inertia")
        result.return_value, result.status = value, JobStatus.COMPLETED
        return result


def scores_of(cells: Sequence[Cell], outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """Return a job's value: the mean score of each of its cells, by place; None where unsealed, or a shard's alone."""
    ended = {outcome.cell.id: outcome for outcome in outcomes}
    whole = {cell.place: ended[cell.id].summary for cell in cells if ended[cell.id].cell.config.shard is None}
    return {cell.place: summary["score"]["mean"] if (summary := whole.get(cell.place)) else None for cell in cells}
