"""The settings of one run, typed and closed: from Hydra's composed config to values that have been checked.

Nothing here loads torch, so that a bad setting is refused at once.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inertia.backbones.config import BackboneConfig, from_mapping
from inertia.benchmarks import registry
from inertia.benchmarks.registry import Benchmark, Kept
from inertia.eviction import checks
from inertia.eviction.budget import Unlimited
from inertia.eviction.execution import KERNEL, Execution
from inertia.eviction.policy import Policy
from inertia.experiments.launchers import settings as launchers
from inertia.experiments.shards import Shard
from inertia.experiments.shards import parse as parse_shard

# Every leaf of the composed config can change a number (identity) or cannot (transport). A test fails for a leaf that
# is in neither set. A name stands for everything below it; the backbone declares its own fields.
IDENTITY = (
    "benchmark.name",
    "benchmark.tasks",
    "benchmark.lengths",
    "benchmark.seed",
    "benchmark.metrics",
    "scorer",
    "aggregation",
    "refresh",
    "budget",
    "evict",
    "scope",
    "selection",
    "protect",
    "new_token",
    "prefill",
    "start",
    "seed",
    "execution.scoring",
    "execution.compiled",
    "execution.prefill_chunk",
)
TRANSPORT = (
    # Where data lie; what they hold enters the identity by its hash.
    "benchmark.source",
    "benchmark.examples",
    "benchmark.task_examples",
    "label",
    "experiment_name",
    "profile_name",
    "scale",
    "threads",
    "progress",
    "logger",
    "launcher",
    "shard",
    # How policies are split into batches; each row says with which it was decoded.
    "execution.batch_gib",
)
# Settings that name a file or folder of this machine: they mean the directory where the command was typed, wherever the
# work is done. A test fails for a setting called a path that is in neither this set nor its own list of exceptions.
PATHS = ("backbone.path", "benchmark.source.path", "scorer.weights")
POLICY_PARTS = ("scorer", "aggregation", "refresh", "budget", "selection", "protect", "new_token", "prefill")
METRICS = ("official", "fidelity")
LOGGER_MODES = ("offline", "online", "disabled")


@dataclass(frozen=True)
class BenchmarkConfig:
    """Which examples a run takes.

    Attributes:
        name: a benchmark of `inertia.benchmarks.registry`.
        tasks: its tasks.
        lengths: nominal prompt lengths in tokens, new tokens included; [null] where a benchmark has none.
        seed: seed of the data.
        source: where outside data come from (`inertia.benchmarks.sources.Source`), or None for what the benchmark pins.
        metrics: "official", and "fidelity" to the full cache beside it.
        examples: examples per (task, length).
        task_examples: the same for single tasks, where it differs; null is none.
    """

    name: str
    tasks: tuple[str, ...]
    lengths: tuple[int | None, ...]
    seed: int
    source: Mapping[str, Any] | None
    metrics: tuple[str, ...]
    examples: int
    task_examples: Mapping[str, int]

    def __post_init__(self) -> None:
        checks.choice("benchmark.name", self.name, tuple(registry.NAMES))
        for name, kind in (("tasks", str), ("lengths", int | None), ("metrics", str)):
            values = getattr(self, name)
            if not isinstance(values, tuple) or not all(isinstance(each, kind) for each in values):
                raise ValueError(f"benchmark.{name}={values!r} is not a list of its values; give for instance [a,b].")
        if not isinstance(self.task_examples, Mapping):
            raise ValueError(f"benchmark.task_examples={self.task_examples!r} is not a mapping of task: count.")
        known = registry.task_names(self.name)
        for task in (*self.tasks, *self.task_examples):
            checks.choice("benchmark.tasks", task, known)
        for name, values in (("tasks", self.tasks), ("lengths", self.lengths)):
            if not values or len(set(values)) < len(values):
                raise ValueError(f"benchmark.{name}={list(values)} must hold at least one value and none twice.")
        for length in self.lengths:
            if length is not None:
                checks.integer("benchmark.lengths", length, low=1)
        self._check_room(registry.package(self.name))
        for metric in self.metrics:
            checks.choice("benchmark.metrics", metric, METRICS)
        if "official" not in self.metrics:
            raise ValueError(f"benchmark.metrics={list(self.metrics)} lacks 'official'; add it.")
        checks.integer("benchmark.seed", self.seed, low=0)
        for count in (self.examples, *self.task_examples.values()):
            checks.integer("benchmark.examples", count, low=1)

    def _check_room(self, package: Any) -> None:
        """Refuse lengths that an answer alone would fill."""
        kinds = {**package.TASKS, **getattr(package, "COMPARISON", {})}
        for task in self.tasks:
            answer = getattr(kinds[task], "max_new_tokens", None) or 0
            for length in self.lengths:
                if length is not None and length <= answer:
                    raise ValueError(
                        f"benchmark.lengths={length} has no room for a prompt: task {task} answers in up to {answer} "
                        f"tokens, which count; give more than {answer}."
                    )

    def bound(self) -> Benchmark:
        """Return the benchmark with its seed and data.

        Raises:
            ValueError: the source is none.
        """
        given = {key: value for key, value in (self.source or {}).items() if value is not None}
        if not given:
            pinned = registry.default_source(self.name)
            return Benchmark(self.name, self.seed, None if pinned is None else Kept(pinned))
        if given == {"kind": "pinned"}:
            bound = Benchmark(self.name, self.seed)
            return Benchmark(self.name, self.seed, Kept(bound.module.HUB))
        from inertia.benchmarks.sources import Source

        try:
            return Benchmark(self.name, self.seed, Kept(Source(**given)))
        except TypeError as error:
            raise ValueError(
                f"benchmark.source={dict(self.source)}: {error}; see inertia.benchmarks.sources."
            ) from error

    def count(self, task: str) -> int:
        """Return how many examples of a task are planned."""
        return self.task_examples.get(task, self.examples)


@dataclass(frozen=True)
class LoggerConfig:
    """Where cells are mirrored to; W&B is never the only copy.

    Attributes:
        mode: "offline", "online" or "disabled".
        project: W&B project.
        group: W&B group; None takes the experiment's name.
    """

    mode: str
    project: str
    group: str | None

    def __post_init__(self) -> None:
        checks.choice("logger.mode", self.mode, LOGGER_MODES)


@dataclass(frozen=True)
class RunConfig:
    """One job: one backbone, one policy, the tasks and lengths of one benchmark.

    Attributes:
        backbone: the model.
        benchmark: the examples.
        policy: what decides which tokens stay.
        label: what tables call the policy.
        seed: seed of scorers that draw.
        logger: W&B mirror.
        launcher: where groups of cells run.
        execution: how decoding is carried out.
        shard: the part of each cell's examples that this job decodes, or None for all of them.
        experiment_name: the experiment whose index names these cells, or None.
        profile_name: its profile, or None.
        scale: label that stands on everything made from these cells, or None.
        threads: CPU threads, or None for torch's choice.
        progress: whether to show a progress bar.
        resolved: the composed config as plain data, for the manifest.
    """

    backbone: BackboneConfig
    benchmark: BenchmarkConfig
    policy: Policy
    label: str
    seed: int
    logger: LoggerConfig
    launcher: launchers.Launcher
    execution: Execution
    shard: Shard | None
    experiment_name: str | None
    profile_name: str | None
    scale: str | None
    threads: int | None
    progress: bool
    resolved: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name in ("label", "experiment_name", "profile_name", "scale"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"{name}={value!r} is not text; give a name.")
        for name in ("experiment_name", "profile_name"):
            value = getattr(self, name)
            if value is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
                raise ValueError(f"{name}={value!r} names a file; give letters, digits, dots, dashes and underscores.")
        if self.execution.scoring == KERNEL and self.backbone.device == "cpu":
            raise ValueError(
                "execution.scoring='kernel' needs a CUDA device; set backbone.device=cuda, or execution.scoring=fused."
            )
        window = self.backbone.context_window
        for length in self.benchmark.lengths:
            if length is not None and length > window:
                raise ValueError(
                    f"benchmark.lengths={length} exceeds the window of {window} tokens of {self.backbone.name}; "
                    "give a shorter length or another backbone."
                )
            self._check_protected(length or window)

    def _check_protected(self, longest: int) -> None:
        """Refuse protected tokens above the budget of the longest prompt, and so of every prompt."""
        policy = self.policy
        if policy.evicts and not policy.protect.question:
            try:
                policy.protect.resolve(longest, policy.budget.tokens(longest, longest), None)
            except ValueError as error:
                raise ValueError(f"{error} (of a prompt of {longest} tokens, at most)") from error


def run_config(composed: Any) -> RunConfig:
    """Return the checked settings of a composed Hydra config.

    Raises:
        ValueError: a value is of the wrong type, out of range or unknown; the message says what is allowed.
    """
    from omegaconf import OmegaConf

    ours = OmegaConf.masked_copy(composed, [key for key in composed if key != "hydra"])
    return from_plain(absolute(OmegaConf.to_container(ours, resolve=True, throw_on_missing=True)))


def absolute(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resolved config whose `PATHS` do not depend on the working directory."""
    made = copy.deepcopy(dict(plain))
    for name in PATHS:
        *above, last = name.split(".")
        node: Any = made
        for key in above:
            node = node.get(key) if isinstance(node, Mapping) else None
        value = node.get(last) if isinstance(node, Mapping) else None
        # The path of a Hub data set lies inside its repository.
        if isinstance(value, str) and value and node.get("kind") != "hub":
            node[last] = os.path.abspath(os.path.expanduser(value))
    return made


def from_plain(plain: Mapping[str, Any]) -> RunConfig:
    """Return the checked settings of a resolved config, `RunConfig.resolved` of another process for instance.

    Raises:
        ValueError: as `run_config`.
    """
    for name in ("backbone", "benchmark", "logger", "launcher", "execution", *POLICY_PARTS):
        if not isinstance(plain[name], Mapping):
            raise ValueError(f"{name}={plain[name]!r} is not a group of settings; choose one of configs/{name}/.")
    benchmark = dict(plain["benchmark"])
    return RunConfig(
        backbone=from_mapping(plain["backbone"]),
        benchmark=BenchmarkConfig(
            **{
                **benchmark,
                "task_examples": {} if benchmark["task_examples"] is None else benchmark["task_examples"],
                **{
                    name: tuple(benchmark[name]) if isinstance(benchmark[name], list) else benchmark[name]
                    for name in ("tasks", "lengths", "metrics")
                },
            }
        ),
        policy=policy(plain),
        label=plain["label"] or label(policy(plain)),
        seed=checks.integer("seed", plain["seed"], low=0),
        logger=LoggerConfig(**plain["logger"]),
        launcher=launchers.from_mapping(plain["launcher"]),
        execution=Execution(**plain["execution"]),
        shard=parse_shard(plain["shard"]),
        experiment_name=plain["experiment_name"],
        profile_name=plain["profile_name"],
        scale=plain["scale"],
        threads=None if plain["threads"] is None else checks.integer("threads", plain["threads"], low=1),
        progress=checks.boolean("progress", plain["progress"]),
        resolved=plain,
    )


def policy(plain: Mapping[str, Any]) -> Policy:
    """Return the policy that a composed config describes.

    Raises:
        ValueError: a part cannot be made from its settings.
    """
    parts = {name: part(name, plain[name]) for name in POLICY_PARTS}
    if not checks.boolean("evict", plain["evict"]):
        return Policy(budget=Unlimited(), prefill=parts["prefill"])
    start = None if plain["start"] is None else part("start", plain["start"])
    return Policy(**parts, scope=plain["scope"], start=start)


def part(name: str, settings: Any) -> Any:
    """Return one part of a policy from its `_target_` and settings; parts may come from any importable package.

    Raises:
        ValueError: there is no such class, or its settings are wrong.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    if isinstance(settings, Mapping) and "_target_" not in settings:
        raise ValueError(f"{name}={settings!r} has no _target_; choose one of configs/{name}/ or give a class path.")
    try:
        made = instantiate(settings, _convert_="all")
    except InstantiationException as error:
        reason = error.__cause__ or error
        raise ValueError(f"{name}: {reason}") from error
    return made


def label(value: Policy) -> str:
    """Return a short name made of the kinds of a policy's parts, for runs that name no method."""
    if not value.evicts:
        return "full_cache"
    described = value.describe()
    kinds = [described[name]["kind"] for name in ("scorer", "aggregation", "refresh", "budget")]
    return "+".join([*kinds, *([] if value.scope == "shared" else [value.scope])])
