"""What a policy did, beside each sample that lm-eval logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any


def with_facts(results: dict[str, Any], facts: Mapping[tuple[str | None, int | None], Mapping[str, Any]]) -> None:
    """Add a field `inertia` to every logged sample of a generation task, in place.

    lm-eval numbers requests and samples alike only without `--samples`, so they are matched by their order in the
    task, and the prompt's hash is compared.

    Args:
        results: of `simple_evaluate`, with its samples.
        facts: `InertiaLM.facts`.

    Raises:
        RuntimeError: a sample and its request have different prompts.
    """
    for task, samples in results["samples"].items():
        places: Counter[str] = Counter()
        for sample in samples:
            place = places[sample["filter"]]
            places[sample["filter"]] += 1
            if (task, place) not in facts:
                continue
            found = dict(facts[task, place])
            if found.pop("prompt_hash") != sample["prompt_hash"]:
                raise RuntimeError(
                    f"sample {sample['doc_id']} of {task} is not the answer to request {place}: lm-eval's order has "
                    "changed; install lm-eval 0.4.13."
                )
            sample["inertia"] = found
