"""One lm-eval run of the inertia model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inertia.lm_eval.output import run_name, save
from inertia.lm_eval.samples import with_facts
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

    model = InertiaLM(**config.model_args)
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
    results = simple_evaluate(
        model=model,
        model_args=config.model_args,
        tasks=config.tasks,
        num_fewshot=config.num_fewshot,
        batch_size=config.batch_size,
        device=model.device,
        limit=config.limit,
        samples=config.samples,
        check_integrity=config.check_integrity,
        write_out=config.write_out,
        log_samples=config.log_samples,
        evaluation_tracker=tracker,
        system_instruction=config.system_instruction,
        apply_chat_template=config.apply_chat_template,
        fewshot_as_multiturn=config.fewshot_as_multiturn,
        gen_kwargs=config.gen_kwargs,
        task_manager=manager,
        predict_only=config.predict_only,
        random_seed=config.seed[0] if config.seed else None,
        numpy_random_seed=config.seed[1] if config.seed else None,
        torch_random_seed=config.seed[2] if config.seed else None,
        fewshot_random_seed=config.seed[3] if config.seed else None,
        confirm_run_unsafe_code=config.confirm_run_unsafe_code,
        metadata=config.metadata,
    )
    results["config"]["model"] = "inertia"
    if config.log_samples:
        with_facts(results, model.facts)
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
