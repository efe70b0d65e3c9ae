"""Many policies of one prompt against one policy, prefill included."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.figures import paired
from bench.measure import Tick
from bench.prompt import random_ids
from inertia import generate, preset

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Twenty methods of several scorers, scopes and rules, the first being the one that runs alone; no full cache.
METHODS = (
    *("inertiakv", "inertiakv_lazy", "score_free", "single_step", "h2o", "inertiakv_vnorm", "inertiakv_entropy"),
    *("inertiakv_keydiff", "inertiakv_key_norm", "inertiakv_recency", "inertiakv_random", "tova_decode"),
    *("keydiff_decode", "key_norm_decode", "tova_ema", "streaming_llm_decode", "random", "with_reserve"),
    *("high_reserve", "random_per_head"),
)
MOST = 2.5


def sweep(model: PreTrainedModel, prompt: int, tokens: int, repeats: int, tick: Tick) -> dict[str, Any]:
    """Time one policy and twenty of one prompt, in turn, each at a tenth of it, and return the figures.

    Args:
        model: the model.
        prompt: tokens.
        tokens: to generate.
        repeats: how often, after a short warm-up.
        tick: told the name of each run that is done, 2 * `repeats` times.
    """
    ids, many = random_ids(model, prompt), [preset(name, compression_ratio=0.9) for name in METHODS]
    generate(model, ids[:, : prompt // 2], many, 4)
    seconds: dict[int, list[float]] = {1: [], len(many): []}
    answers: dict[int, list[int]] = {}
    for _ in range(repeats):
        for count in seconds:
            started = time.perf_counter()
            found = generate(model, ids, many[:count], tokens)
            seconds[count].append(time.perf_counter() - started)
            answers[count] = found[0].tokens
            tick(f"{count} policies of one prompt")
    one, all_ = seconds.values()
    ratio = median(paired(all_, one))
    return {
        "prompt": prompt,
        "tokens": tokens,
        "policies": len(many),
        "one_s": median(one),
        "all_s": median(all_),
        "ratio": ratio,
        "most": MOST,
        "met": ratio <= MOST,
        "checks": {"as alone": answers[1] == answers[len(many)]},
    }
