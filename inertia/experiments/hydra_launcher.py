"""The launcher behind `-m`: composes every job first, then runs together those that can share a prefill."""

from __future__ import annotations

import sys
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
        from inertia.experiments.launchers.launch import check, launch

        composed, configs, jobs, problems = [], [], [], []
        shared: dict[Benchmark, Benchmark] = {}
        for number, overrides in enumerate(job_overrides):
            try:
                composed.append(self._compose(list(overrides), initial_job_idx + number))
                configs.append(run_config(composed[-1]))
                jobs.append(cells_of(configs[-1], shared))
            except (ValueError, OSError) as error:
                problems.append(f"job {initial_job_idx + number} ({' '.join(overrides)}): {error}")
        if not problems:
            try:
                check(configs)
            except ValueError as error:
                problems.append(str(error))
        if problems:
            print("\n".join(["inertia: no job was started; wrong settings:", *problems]), file=sys.stderr)
            raise SystemExit(2)
        try:
            outcomes = launch(configs, jobs)
        except (ValueError, OSError) as error:
            print(f"inertia: {error}", file=sys.stderr)
            raise SystemExit(2 if isinstance(error, ValueError) else 1) from error
        code = report(configs, outcomes)
        if code:
            raise SystemExit(code)
        return [
            self._result(list(overrides), config, outcomes_of(cells, outcomes))
            for overrides, config, cells in zip(job_overrides, composed, jobs, strict=True)
        ]

    def _compose(self, overrides: list[str], number: int) -> DictConfig:
        """Return one job's config as Hydra's own launchers compose it."""
        from hydra.errors import HydraException
        from omegaconf import open_dict

        from inertia.experiments.cli import check

        try:
            config = self.context.config_loader.load_sweep_config(self.config, overrides)
        except HydraException as error:
            check(overrides)  # says it in our words, if it is a wrong setting
            raise ValueError(str(error.__cause__ or error)) from error
        with open_dict(config):
            config.hydra.job.id, config.hydra.job.num = f"job_{number}", number
        return config

    @staticmethod
    def _result(overrides: list[str], config: DictConfig, value: Any) -> JobReturn:
        """Return a completed job's result."""
        result = JobReturn(overrides=overrides, cfg=config, hydra_cfg=config, task_name="inertia")
        result.return_value, result.status = value, JobStatus.COMPLETED
        return result


def outcomes_of(cells: Sequence[Cell], outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """Return a job's value: the mean score of each of its cells, by place."""
    by_id = {outcome.cell.id: outcome for outcome in outcomes}
    mine = [(cell, by_id[cell.id]) for cell in cells]
    # A shard's mean is not the cell's.
    scores = [None if outcome.cell.config.shard is not None else outcome.summary for _, outcome in mine]
    return {
        cell.place: None if summary is None else summary["score"]["mean"]
        for (cell, _), summary in zip(mine, scores, strict=True)
    }


def report(configs: Sequence[RunConfig], outcomes: Sequence[Outcome]) -> int:
    """Print what was measured and what is missing; return the exit code, 0 when every cell, or its shard, is sealed."""
    from inertia.experiments.terminal import print_outcomes

    print_outcomes(outcomes, brief=any(config.experiment_name for config in configs))
    return int(any(outcome.problem is not None for outcome in outcomes))
