"""One folder per policy, and files that are there when the run says so."""

from __future__ import annotations

import hashlib
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
