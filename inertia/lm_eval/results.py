"""What a run leaves: one folder per policy, what the policy did beside every sample, files that are really there."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inertia import backbones
from inertia.lm_eval.settings import Settings
from inertia.records.canonical import canonical_json

if TYPE_CHECKING:
    from lm_eval.loggers import EvaluationTracker


def run_name(settings: Settings) -> str:
    """Return backbone, method and a hash of everything that makes them: two policies never share a folder."""
    made_of = [backbones.identity(settings.backbone), settings.policy.describe(), settings.seed]
    digest = hashlib.sha256(canonical_json(made_of).encode()).hexdigest()
    return f"{settings.backbone.name}__{settings.method}__r{digest[:8]}"


def add_telemetry(
    results: dict[str, Any], telemetry: Mapping[tuple[str | None, int | None], Mapping[str, Any]]
) -> None:
    """Add a field `inertia`, what the policy did, to every logged sample of a generation task, in place.

    lm-eval numbers requests and samples alike only without `--samples`, so they are matched by their order in the
    task, and the prompt's hash is compared.

    Args:
        results: of `simple_evaluate`, with its samples.
        telemetry: `InertiaLM.telemetry`.

    Raises:
        RuntimeError: a sample and its request have different prompts.
    """
    for task, samples in results["samples"].items():
        places: Counter[str] = Counter()
        for sample in samples:
            place = places[sample["filter"]]
            places[sample["filter"]] += 1
            if (task, place) not in telemetry:
                continue
            found = dict(telemetry[task, place])
            if found.pop("prompt_hash") != sample["prompt_hash"]:
                raise RuntimeError(
                    f"sample {sample['doc_id']} of {task} is not the answer to request {place}: lm-eval's order has "
                    "changed; install lm-eval 0.4.13."
                )
            sample["inertia"] = found


def save(tracker: EvaluationTracker, results: dict[str, Any], samples: dict[str, Any] | None) -> list[Path]:
    """Write lm-eval's files (results_<time>.json, samples_<task>_<time>.jsonl) and return their paths.

    Raises:
        RuntimeError: a file was not written; lm-eval only logs that.
    """
    tracker.save_results_aggregated(results=results, samples=samples)
    for task, rows in (samples or {}).items():
        tracker.save_results_samples(task_name=task, samples=rows)
    folder, wanted = Path(tracker.output_path).parent, 1 + len(samples or {})
    written = sorted(folder.glob(f"*_{tracker.date_id}.json*")) if hasattr(tracker, "date_id") else []
    if len(written) != wanted:
        raise RuntimeError(f"lm-eval wrote {len(written)} of {wanted} files into {folder}; its log above says why.")
    return written
