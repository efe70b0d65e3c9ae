"""What Slurm's queue says of jobs: `squeue` answers on every cluster, with accounting or without."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Iterable, Mapping

# A job in one of these states may still do its work.
ALIVE = (
    "PENDING RUNNING COMPLETING CONFIGURING SUSPENDED STOPPED RESIZING SIGNALING STAGE_OUT REQUEUED REQUEUE_HOLD "
    "REQUEUE_FED PREEMPTED SPECIAL_EXIT RESV_DEL_HOLD"
).split()
GONE = "GONE"
ASK_SECONDS = 5.0
ANSWER_SECONDS = 60
# How long the result of a job that left the queue may take to show on a network filesystem.
SETTLE_SECONDS = 15.0

log = logging.getLogger(__name__)


class Queue:
    """The states of some jobs, asked again when they are older than `ASK_SECONDS`."""

    def __init__(self, jobs: Iterable[str]) -> None:
        self.jobs = list(jobs)
        self.asked, self.silent = float("-inf"), False
        self.states: dict[str, str] = {}
        self.ended: dict[str, float] = {}

    def ended_as(self, job: str) -> str | None:
        """Return the state in which a job ended for good, `GONE` where the queue has forgotten it; None before."""
        now = time.monotonic()
        if now - self.asked >= ASK_SECONDS:
            self.asked = now
            answer = states(self.jobs)
            if answer is None and not self.silent:
                log.warning("squeue does not answer; waiting until it does")
            self.silent = answer is None
            if answer is not None:
                for each in self.jobs:
                    # A job that was seen to end may be forgotten after that.
                    self.states[each] = answer.get(each, self.states.get(each) if each in self.ended else GONE)
                    if self.states[each] in ALIVE:
                        self.ended.pop(each, None)
                    else:
                        self.ended.setdefault(each, now)
        ended = self.ended.get(job)
        return self.states[job] if ended is not None and now - ended >= SETTLE_SECONDS else None


def states(jobs: Iterable[str]) -> Mapping[str, str] | None:
    """Return job id -> state of those that the queue knows, ended ones for some minutes too; None without an answer."""
    jobs = list(jobs)
    main = sorted({job.split("_")[0] for job in jobs})
    command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T", f"--jobs={','.join(main)}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        # Of a single job that it has forgotten squeue says so, and fails.
        return {} if "Invalid job id" in done.stderr else None
    known = dict(line.strip().split("|", 1) for line in done.stdout.splitlines() if "|" in line)
    # Of an array that ended before it began there is one line: 4000_[0-1], or 4000 alone.
    whole = {job.split("_")[0]: state for job, state in known.items() if "[" in job or "_" not in job}
    found = {job: known.get(job) or whole.get(job.split("_")[0]) for job in jobs}
    return {job: state for job, state in found.items() if state is not None}
