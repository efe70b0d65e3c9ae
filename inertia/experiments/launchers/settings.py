"""The settings of each launcher, typed and closed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from typing import Any, ClassVar

from inertia.eviction import checks

CLUSTERS = ("slurm", "local")


@dataclass(frozen=True)
class Local:
    """This process."""

    kind: ClassVar[str] = "local"
    shards: ClassVar[int] = 1


@dataclass(frozen=True)
class Submitit:
    """Jobs of Slurm, or processes of this machine, through submitit.

    Attributes:
        cluster: "slurm" or "local".
        shards: parts that each group's examples are cut into.
        groups_per_job: groups that one job takes; they share the loaded backbone.
        parallel: jobs at the same time; None is submitit's own limit on Slurm, one here.
        timeout_minutes: time limit of a job.
        requeues: how often a job that was preempted or ran out of time goes back into the queue.
        name: of the jobs.
        partition: Slurm partition; like the next three, None leaves Slurm's default.
        account: Slurm account.
        qos: Slurm quality of service.
        constraint: Slurm constraint on nodes.
        gpus_per_node: GPUs of a job.
        cpus_per_task: CPU cores of a job.
        mem_gb: memory of a job, GB.
        setup: shell lines that run before Python starts.
        sbatch: further options of sbatch, name: value.
    """

    kind: ClassVar[str] = "submitit"
    cluster: str = "slurm"
    shards: int = 1
    groups_per_job: int = 1
    parallel: int | None = None
    timeout_minutes: int = 240
    requeues: int = 32
    name: str = "inertia"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gpus_per_node: int = 1
    cpus_per_task: int = 8
    mem_gb: float = 64
    setup: tuple[str, ...] = ()
    sbatch: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.choice("launcher.cluster", self.cluster, CLUSTERS)
        for name, low in {
            "shards": 1,
            "groups_per_job": 1,
            "timeout_minutes": 1,
            "requeues": 0,
            "gpus_per_node": 0,
            "cpus_per_task": 1,
        }.items():
            checks.integer(f"launcher.{name}", getattr(self, name), low=low)
        if self.parallel is not None:
            checks.integer("launcher.parallel", self.parallel, low=1)
        checks.number("launcher.mem_gb", self.mem_gb, low=0)
        _text("name", self.name)
        for name in ("partition", "account", "qos", "constraint"):
            if getattr(self, name) is not None:
                _text(name, getattr(self, name))
        if not all(isinstance(line, str) for line in self.setup):
            raise ValueError(f"launcher.setup={list(self.setup)} is not a list of shell lines.")
        if not isinstance(self.sbatch, Mapping):
            raise ValueError(f"launcher.sbatch={self.sbatch!r} is not a mapping of option: value.")


@dataclass(frozen=True)
class Ray:
    """Tasks of a Ray cluster.

    Attributes:
        address: of the cluster ("auto", "host:port", "ray://..."); None starts Ray on this machine.
        shards: parts that each group's examples are cut into.
        groups_per_job: groups that one task takes; they share the loaded backbone.
        num_gpus: GPUs that a task reserves.
        num_cpus: CPU cores that a task reserves.
        retries: how often a task whose worker died is started again.
    """

    kind: ClassVar[str] = "ray"
    address: str | None = None
    shards: int = 1
    groups_per_job: int = 1
    num_gpus: float = 1
    num_cpus: float = 8
    retries: int = 3

    def __post_init__(self) -> None:
        if self.address is not None:
            _text("address", self.address)
        for name, low in {"shards": 1, "groups_per_job": 1, "retries": 0}.items():
            checks.integer(f"launcher.{name}", getattr(self, name), low=low)
        for name in ("num_gpus", "num_cpus"):
            checks.number(f"launcher.{name}", getattr(self, name), low=0)


Launcher = Local | Submitit | Ray
KINDS: Mapping[str, type[Launcher]] = {each.kind: each for each in (Local, Submitit, Ray)}


def from_mapping(values: Mapping[str, Any]) -> Launcher:
    """Return the launcher that a mapping of settings states.

    Raises:
        ValueError: the kind or a key is unknown, or a value is wrong.
    """
    kind = KINDS[checks.choice("launcher.kind", values.get("kind"), tuple(KINDS))]
    given = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if name != "kind"
    }
    known = [each.name for each in fields(kind)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"launcher={kind.kind} has no key {unknown[0]!r}; it has {', '.join(known) or 'none'}.")
    return kind(**given)


def require(package: str) -> None:
    """Refuse a launcher whose package is missing, without importing it.

    Raises:
        ValueError: with the command that installs it.
    """
    if find_spec(package) is None:
        raise ValueError(f"launcher={package} needs the package {package}; run: pip install 'inertia[{package}]'")


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError(f"launcher.{name}={value!r} is not text; give a name.")
