"""Payload as Slurm jobs, or as processes of this machine, through submitit."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inertia.experiments.launchers.ambient import KEPT, SLURM, without
from inertia.experiments.launchers.payload import Payload, chunks, run_payload
from inertia.experiments.launchers.polling import Handle, WorkFailed
from inertia.experiments.launchers.settings import Submitit
from inertia.experiments.launchers.slurm_queue import Queue

# submitit's own count of timeouts never ends a job: it would raise in the middle of an example. `Task` counts.
_NO_LIMIT = 1_000_000
# Slurm's default MaxArraySize is 1001.
_ARRAY = 1000


@dataclass(frozen=True)
class Task:
    """What submitit pickles: the work, and how often it may go back into the queue."""

    payload: Payload
    requeues: int

    def __call__(self) -> dict[str, str]:
        """Do the work."""
        return run_payload(self.payload)

    def checkpoint(self) -> Any:
        """Return what goes into the queue when the job is preempted or out of time: the same, for the records resume.

        Raises:
            SystemExit: it was there too often. Nothing else may be raised: this runs inside whatever the job is doing.
        """
        if self.requeues == 0:
            raise SystemExit("inertia: out of time and requeues; repeat the command, or raise launcher.requeues")
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(replace(self, requeues=self.requeues - 1))


@dataclass(frozen=True)
class Job:
    """A submitted job.

    Attributes:
        job: submitit's.
        queue: what tells whether it still runs; None for a process of this machine, which submitit watches.
    """

    job: Any
    queue: Queue | None

    def done(self) -> bool:
        """Tell whether it ended."""
        if self.queue is None:
            return self.job.done()
        return self.job.paths.result_pickle.exists() or self.queue.ended_as(self.job.job_id) is not None

    def problems(self) -> dict[str, str]:
        """Return what its work returned.

        Raises:
            WorkFailed: it ended without a result.
        """
        reason = None if self.queue is None else self.queue.ended_as(self.job.job_id)
        try:
            if reason is None or self.job.paths.result_pickle.exists():
                return self.job.result()
        except Exception as error:  # noqa: BLE001 - submitit raises what the job raised, and errors of its own
            reason = reason_of(error)
        said = last_lines(self.job.paths.stderr) or last_lines(self.job.paths.stdout)
        raise WorkFailed(
            f"job {self.job.job_id} ended without a result: {reason}"
            + (f"; it said last: {said}" if said else "")
            + f"; its log: {self.job.paths.stderr}"
        )

    def cancel(self) -> None:
        """Stop it."""
        self.job.cancel(check=False)


def reason_of(error: Exception) -> str:
    """Return the line of a submitit error that says what happened: the last of the job's trace where it has one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    rules = [number for number, line in enumerate(lines) if not line.strip("-")]
    return lines[rules[1] - 1] if len(rules) > 1 else lines[0]


def last_lines(log: Path, count: int = 3) -> str:
    """Return the last lines of a log that say anything, in one; "" where there is none."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return " / ".join([line.strip() for line in lines if line.strip()][-count:])


@dataclass(frozen=True)
class Submitted:
    """An engine: submits work as one array."""

    settings: Submitit
    folder: Path

    @property
    def room(self) -> int | None:
        """Slurm has a queue of its own; this machine has not."""
        return None if self.settings.cluster == "slurm" else self.settings.parallel or 1

    def start(self, payloads: Sequence[Payload]) -> list[Handle]:
        """Submit pieces of work.

        Raises:
            OSError: the queue took none of them, for the reason given.
        """
        import submitit

        limits = {"slurm_max_num_timeout": _NO_LIMIT, "local_max_num_timeout": _NO_LIMIT}
        executor = submitit.AutoExecutor(self.folder / "%j", cluster=self.settings.cluster, **limits)
        executor.update_parameters(**parameters(self.settings))
        tasks = [Task(payload, self.settings.requeues) for payload in payloads]
        refused = (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError)
        try:
            with without(SLURM, KEPT):
                jobs = [job for batch in chunks(tasks, _ARRAY) for job in executor.submit_array(batch)]
        except refused as error:
            raise OSError(f"the queue refused the jobs: {error}") from error
        asks = self.settings.cluster == "slurm" and shutil.which("squeue") is not None
        queue = Queue(job.job_id for job in jobs) if asks else None
        return [Job(job, queue) for job in jobs]


def parameters(settings: Submitit) -> dict[str, Any]:
    """Return the settings in submitit's words."""
    return {
        "name": settings.name,
        "timeout_min": settings.timeout_minutes,
        "gpus_per_node": settings.gpus_per_node,
        "cpus_per_task": settings.cpus_per_task,
        "mem_gb": settings.mem_gb,
        "slurm_partition": settings.partition,
        "slurm_account": settings.account,
        "slurm_qos": settings.qos,
        "slurm_constraint": settings.constraint,
        "slurm_array_parallelism": settings.parallel,
        "slurm_setup": list(settings.setup) or None,
        "local_setup": list(settings.setup) or None,
        "slurm_additional_parameters": dict(settings.sbatch) or None,
    }


def check(settings: Submitit) -> None:
    """Refuse what cannot be submitted from here.

    Raises:
        ValueError: there is no Slurm, or local processes would share their GPUs.
    """
    if settings.cluster == "local" and (settings.parallel or 1) > 1 and settings.gpus_per_node > 0:
        raise ValueError(
            f"launcher.parallel={settings.parallel}: on this machine all processes would get the same GPUs; give "
            "launcher.parallel=1, launcher.gpus_per_node=0 for processes without GPU, or launcher=ray, which deals them"
        )
    if settings.cluster == "slurm" and shutil.which("sbatch") is None:
        raise ValueError(
            "launcher.cluster='slurm': there is no sbatch on this machine; run the command on a login node of the "
            "cluster, or give launcher.cluster=local"
        )
