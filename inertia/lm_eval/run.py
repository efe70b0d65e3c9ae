"""One lm-eval run of the inertia model."""

from __future__ import annotations

import logging
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inertia.lm_eval.results import add_telemetry, run_name, save
from inertia.lm_eval.settings import check_requests, settings
from inertia.lm_eval.tasks.files import PREFIX

if TYPE_CHECKING:
    from lm_eval.config.evaluate_config import EvaluatorConfig
    from lm_eval.tasks import TaskManager

log = logging.getLogger(__name__)

# lm-eval's flag -> why the inertia model does not take it.
REFUSED = {
    "use_cache": "its key has neither model nor policy, so one policy would get another's answers",
    "cache_requests": "its key has neither lengths nor data, so one task's prompts would be scored as another's",
    "trust_remote_code": "a model's own code is never run",
    "wandb_args": "it copies whole prompts; `python -m inertia` mirrors runs to W&B",
    "trackio_args": "results are files; give --output_path",
    "hf_hub_log_args": "results are files; give --output_path",
}


def register() -> None:
    """Make `model="inertia"` known to lm-eval; its own models stay known."""
    # lm-eval lists its own models only while the registry is empty, so they go first.
    import lm_eval.models  # noqa: F401
    from lm_eval.api.registry import model_registry

    if "inertia" not in model_registry:
        model_registry.register("inertia", target="inertia.lm_eval.model:InertiaLM")


def check(config: EvaluatorConfig) -> None:
    """Refuse flags and settings that this model does not take, before tasks or weights are read.

    Raises:
        ValueError: naming the flag or setting and why.
    """
    for flag, reason in REFUSED.items():
        if getattr(config, flag):
            raise ValueError(f"--{flag} is refused: {reason}. Leave it out.")
    settings(**config.model_args)


def evaluate(config: EvaluatorConfig, include: list[str]) -> dict[str, Any]:
    """Run, save and return lm-eval's results; with `log_samples`, what the policy did stands beside every sample.

    Args:
        config: lm-eval's, checked.
        include: folders of tasks.

    Raises:
        ValueError: a task needs log-likelihoods that the policy cannot give, or its settings cannot be followed.
        RuntimeError: files were not written.
    """
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker

    from inertia.lm_eval.model import InertiaLM

    model = InertiaLM(batch_size=config.batch_size, **config.model_args)
    if model.settings.backbone.chat_template and not config.apply_chat_template:
        log.warning("%s is a chat model; consider --apply_chat_template", model.settings.backbone.name)
    manager = task_manager(config, include)
    if model.settings.policy.describe() != {"budget": {"kind": "unlimited"}}:
        for task in manager.load(config.tasks)["tasks"].values():
            check_requests(model.settings.policy, task.OUTPUT_TYPE)
    path = None
    if config.output_path:
        path = str(Path(config.output_path) / run_name(model.settings) / "results.json")
    tracker = EvaluationTracker(output_path=path)
    # lm-eval's configuration has a field for each of its arguments, save those that are stated or refused here.
    stated = {name: getattr(config, name) for name in signature(simple_evaluate).parameters if hasattr(config, name)}
    stated |= {"model": model, "device": model.device, "task_manager": manager, "evaluation_tracker": tracker}
    stated |= {"use_cache": None, "cache_requests": False, "verbosity": None}
    seeds = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
    stated |= dict(zip(seeds, config.seed or [None] * len(seeds), strict=True))
    results = simple_evaluate(**stated)
    results["config"]["model"] = "inertia"
    if config.log_samples:
        add_telemetry(results, model.telemetry)
    if path is not None:
        named = tracker.general_config_tracker
        named.model_source = "inertia"
        named.model_name = named.model_name_sanitized = run_name(model.settings)
        samples = results.pop("samples", None)
        for file in save(tracker, results, samples):
            log.info("wrote %s", file)
        results["samples"] = samples
    return results


def task_manager(config: EvaluatorConfig, include: list[str]) -> TaskManager:
    """Return lm-eval's task manager, and put the names that the tasks' patterns stand for into `config.tasks`.

    lm-eval takes many seconds to index its own thousands of tasks; where all tasks are ours or the user's, which come
    before lm-eval's anyway, they are left out.

    Raises:
        ValueError: a name is unknown.
    """
    from lm_eval.tasks import TaskManager

    given = config.tasks.split(",") if isinstance(config.tasks, str) else config.tasks
    names = [name for each in given for name in each.split(",")]
    small = TaskManager(include_path=include, include_defaults=False, metadata=config.metadata)
    # A group of the user's may name lm-eval's tasks, and a pattern may match them; ours never do.
    found = [small.match_tasks([name]) if name.startswith(PREFIX) else own_task(small, name) for name in names]
    if all(found):
        config.tasks = list(dict.fromkeys(task for each in found for task in each))
        return small
    config.include_path = include
    return config.process_tasks(config.metadata)


def own_task(manager: TaskManager, name: str) -> list[str]:
    """Return [name] if it is exactly a task that the manager knows, else []."""
    return [name] if name in manager.all_subtasks else []
