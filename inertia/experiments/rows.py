"""From an answer to the row that is recorded of it."""

from __future__ import annotations

from typing import Any

from inertia.benchmarks.example import Example
from inertia.experiments.cells import Cell
from inertia.measure.answers import Answer
from inertia.records.writer import CellWriter


def row_of(
    writer: CellWriter, cell: Cell, example: Example, index: int, result: Answer | Exception, batch: str
) -> dict[str, Any]:
    """Return the row of one example of a cell; an answer that cannot be scored is a failure of this example alone."""
    if not isinstance(result, Exception):
        try:
            return writer.row(measured(cell, example, index, result, batch))
        except Exception as error:  # noqa: BLE001 - a metric is foreign code, and the other cells' answers are in hand
            result = error
    known = {"length": example.length, "references": list(example.references)}
    return writer.failure_row(example.id, index, result, task=example.task, **known)


def measured(cell: Cell, example: Example, index: int, answer: Answer, batch: str) -> dict[str, Any]:
    """Return what is recorded of an answer; `batch` names the cells that were decoded together."""
    generation, prompt = answer.generation, answer.prompt
    return {
        "length": example.length,
        "references": list(example.references),
        "example_id": example.id,
        "index": index,
        "task": example.task,
        "prediction": answer.prediction,
        "score": cell.benchmark.score(example, answer.prediction),
        "metrics": {
            **cell.benchmark.diagnostics(example, answer.prediction),
            "hit_limit": float(generation.stop == "length"),
            "truncated": float(prompt.truncated),
            "near_ties": float(generation.near_ties),
            **answer.metrics,
        },
        "prompt_tokens": generation.prompt_tokens,
        "new_tokens": len(generation.tokens),
        "tokens": generation.tokens,
        "stop": generation.stop,
        "budget_tokens": generation.budget_tokens,
        "retained_tokens": generation.retained_tokens,
        "peak_tokens": generation.peak_tokens,
        "cache_bytes": generation.cache_bytes,
        "evictions": round(generation.evictions),
        "truncated": prompt.truncated,
        "prompt_sha256": prompt.sha256,
        "prefill_seconds": generation.prefill_seconds,
        "decode_seconds": generation.decode_seconds,
        "batch_rows": generation.batch_rows,
        "telemetry": {
            "decoded_with": batch,
            "context_tokens": prompt.context_end,
            "prefill_budget_tokens": generation.prefill_budget_tokens,
            "prefill_retained_tokens": generation.prefill_retained_tokens,
            "sanitised": prompt.sanitised,
            "example": facts(example),
            **answer.telemetry,
        },
    }


def facts(example: Example) -> dict[str, Any]:
    """Return what an example says of itself, without the texts that only prompts need."""
    return {key: value for key, value in example.metadata.items() if key not in ("fields", "all_classes")}
