"""Payload as tasks of a Ray cluster."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inertia.experiments.launchers.ambient import stderr_in
from inertia.experiments.launchers.payload import Payload, run_payload
from inertia.experiments.launchers.polling import Handle, WorkFailed
from inertia.experiments.launchers.settings import Ray

_SECONDS = 10


@dataclass(frozen=True)
class Task:
    """A started task."""

    ray: Any
    reference: Any

    def done(self) -> bool:
        """Tell whether it ended."""
        return bool(self.ray.wait([self.reference], timeout=0)[0])

    def problems(self) -> dict[str, str]:
        """Return what its work returned.

        Raises:
            WorkFailed: it ended without a result.
        """
        try:
            return self.ray.get(self.reference)
        except self.ray.exceptions.RayError as error:
            # An error of the work itself is the cause; one of Ray has none.
            cause = getattr(error, "cause", None) or error
            lines = [line.strip() for line in str(cause).splitlines() if line.strip()] or ["no reason given"]
            raise WorkFailed(f"a Ray task ended without a result: {type(cause).__name__}: {lines[0]}") from error

    def cancel(self) -> None:
        """Stop it: as Ctrl-C, so that its cells say interrupted."""
        self.ray.cancel(self.reference)


@dataclass(frozen=True)
class Connected:
    """An engine: a Ray cluster that we are connected to; it has a queue of its own."""

    ray: Any
    settings: Ray
    room: int | None = None

    def start(self, payloads: Sequence[Payload]) -> list[Handle]:
        """Start one task for each piece of work."""
        task = self.ray.remote(run_payload).options(
            num_gpus=self.settings.num_gpus,
            num_cpus=self.settings.num_cpus,
            max_retries=self.settings.retries,
            name="inertia",
        )
        return [Task(self.ray, task.remote(work)) for work in payloads]


@contextmanager
def connected(settings: Ray, log: Path) -> Iterator[Connected]:
    """Connect to the cluster, or start Ray here, and leave it in the end; what Ray itself says goes into a file.

    Raises:
        ValueError: no node can ever hold a task.
        ConnectionError: there is no cluster at the address.
    """
    import ray

    _reach(settings.address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with stderr_in(log):
        ray.init(address=settings.address or "local", log_to_driver=False, logging_level="ERROR")
        try:
            _fits(ray, settings)
            yield Connected(ray, settings)
        finally:
            ray.shutdown()


def _reach(address: str | None) -> None:
    """Try a host and port at once: Ray itself gives up after minutes only.

    Raises:
        ConnectionError: nobody answers there.
    """
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_SECONDS).close()
    except OSError as error:
        raise ConnectionError(
            f"launcher.address={address}: no Ray cluster answers there ({error}); give the address that `ray start` "
            "printed, auto on one of its nodes, or null to start Ray on this machine"
        ) from error


def _fits(ray: Any, settings: Ray) -> None:
    """Refuse tasks that Ray would keep waiting for ever; a cluster elsewhere may still grow."""
    if settings.address is not None:
        return
    have = ray.cluster_resources()
    for name, wanted in (("GPU", settings.num_gpus), ("CPU", settings.num_cpus)):
        if wanted > have.get(name, 0):
            raise ValueError(
                f"launcher.num_{name.lower()}s={wanted}: this machine has {have.get(name, 0):g}; give at most as many"
            )
