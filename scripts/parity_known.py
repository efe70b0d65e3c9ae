"""The differences from kvpress that have a name: how each is shown, and why it is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from parity_cases import (
    CHUNK,
    DECODE_PROMPT,
    MODELS,
    PROMPT,
    forced_tokens,
    our_decode,
    our_scores,
    policy_of,
    positions_of,
    prompt_ids,
    ranges,
    replays_of,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MODEL = "llama-9-3"
RECIPE = MODELS[MODEL]
TARGET, STEPS = 16, 40


class Difference(NamedTuple):
    """A difference with a name, and whether it was seen just now."""

    name: str
    seen: bool
    theirs: str
    ours: str
    why: str


class Known(NamedTuple):
    """What kvpress is asked in order to show a difference, and how the answer is read."""

    job: dict[str, Any]
    read: Callable[[PreTrainedModel, dict[str, Any]], Difference]


def known(folder: Path) -> list[Known]:
    """Return the differences that we know of; models lie in the folder."""
    prompt = prompt_ids(RECIPE, PROMPT)
    shared = {"model": str(folder / MODEL), "settings": {}, "ids": prompt}
    decode = {
        **shared,
        "kind": "decode",
        "ids": prompt_ids(RECIPE, DECODE_PROMPT),
        "target": TARGET,
        "tokens": forced_tokens(RECIPE, STEPS),
    }
    kvzip = {**shared, "kind": "kvzip", "method": "kvzip", "replays": None, "settings": {"chunk_size": CHUNK}}
    return [
        Known({**decode, "method": "streaming_llm"}, lost_sinks),
        Known({**decode, "method": "adakv_key_norm"}, growing_cache),
        Known({**decode, "method": "expected_attention"}, empty_statistics),
        Known({**shared, "kind": "prefill", "method": "key_norm", "ids": prompt[:100], "ratio": 0.9}, binary_ratio),
        Known({**shared, "kind": "prefill", "method": "tova", "ratio": 0.5}, forced_last),
        Known({**kvzip, "ratio": 0.9}, rounded_removal),
        Known({**kvzip, "ratio": 0.5}, own_wording),
    ]


def decoded(model: PreTrainedModel, method: str) -> list[Any]:
    """Return what our policy holds in each layer and KV head after the last step."""
    ids, tokens = prompt_ids(RECIPE, DECODE_PROMPT), forced_tokens(RECIPE, STEPS)
    return our_decode(model, ids, tokens, policy_of(method, TARGET))[-1]


def lost_sinks(model: PreTrainedModel, result: dict[str, Any]) -> Difference:
    """StreamingLLM while decoding."""
    theirs, mine = result["kept"][-1][0][0], decoded(model, "streaming_llm")[0][0]
    seen = DECODE_PROMPT + STEPS
    return Difference(
        "decode StreamingLLM loses its sinks",
        not set(range(4)) <= set(theirs) and mine == [0, 1, 2, 3, *range(seen - TARGET + 4, seen)],
        ranges(theirs),
        ranges(mine),
        "bug of theirs: kept entries are stored in score order, and the next call counts sinks and recent tokens by "
        "array index",
    )


def growing_cache(model: PreTrainedModel, result: dict[str, Any]) -> Difference:
    """AdaKV while decoding."""
    most = max(len(head) for layer in decoded(model, "key_norm") for head in layer)
    return Difference(
        "decode AdaKV removes nothing",
        result["length"] == DECODE_PROMPT + STEPS and most == TARGET,
        f"{result['length']} tokens cached under a target of {TARGET}",
        f"{most} tokens cached",
        "bug of theirs: AdaKV only masks, so under DecodingPress the cache grows by a token per step; ours removes",
    )


def empty_statistics(model: PreTrainedModel, result: dict[str, Any]) -> Difference:
    """ExpectedAttention while decoding."""
    return Difference(
        "decode ExpectedAttention scores NaN",
        bool(result["nan"]),
        "NaN scores, silently ranked",
        "prefill only; NaN scores stop the run",
        "bug of theirs: it drops the first 4 buffered queries as sinks; at interval 1 none is left",
    )


def binary_ratio(model: PreTrainedModel, result: dict[str, Any]) -> Difference:
    """The number kept at a ratio."""
    from inertia.eviction.budget import Ratio

    theirs, mine = len(result["kept"][0][0]), Ratio(0.9).tokens(100, 100)
    return Difference(
        "a ratio of 0.9 leaves one token less",
        (theirs, mine) == (9, 10),
        f"{theirs} of 100",
        f"{mine} of 100",
        "choice of ours: ratios are decimal; theirs is the integer part of 100 * (1 - 0.9) in binary",
    )


def forced_last(model: PreTrainedModel, result: dict[str, Any]) -> Difference:
    """The last token of TOVA."""
    import torch

    from inertia.prefill.methods import named

    ids = prompt_ids(RECIPE, PROMPT)
    scores = torch.stack(our_scores(model, ids, named("tova")))
    rank = int((scores[0, 0] > scores[0, 0, -1]).sum())
    raised = all(max(head) == head[-1] > 1 for layer in result["scores"] for head in layer)
    return Difference(
        "TOVA's last token always stays",
        raised and bool(scores.isfinite().all()),
        "its score is raised above all others",
        f"a candidate like any other (rank {rank} of {PROMPT} here); keep_last=True is theirs",
        "choice of ours: the authors' code does not protect it, as a comment in kvpress admits",
    )


def rounded_removal(model: PreTrainedModel, result: dict[str, Any]) -> Difference:
    """The number of pairs that KVzip keeps."""
    pairs = sum(len(head) for layer in result["kept"] for head in layer)
    heads = sum(len(layer) for layer in result["kept"])
    total = heads * PROMPT
    mine = heads * (PROMPT // 10)
    return Difference(
        "KVzip rounds what it removes, over all layers together",
        pairs == total - int(total * 0.9) and pairs != mine,
        f"{pairs} of {total} pairs at a ratio of 0.9",
        f"{mine}: {PROMPT // 10} per KV head on average",
        "choice of ours: the budget is an integer per KV head for every method",
    )


def own_wording(model: PreTrainedModel, result: dict[str, Any]) -> Difference:
    """KVzip with the requests that it is released with, taken from the installed package."""
    from inertia.prefill.kvzip import KVzip
    from inertia.prefill.replay import Wording

    ids = prompt_ids(RECIPE, PROMPT)
    released = KVzip(chunk=CHUNK, wording=Wording(*result["wording"], 8))
    same_replays = [
        [ids[replay.start : replay.end], list(replay.ids)] for replay in replays_of(released, ids)
    ] == result["replays"]
    kept = {
        wording: positions_of(compressor.keep(our_scores(model, ids, compressor), PROMPT // 2))
        for wording, compressor in (("theirs", released), ("ours", KVzip(chunk=CHUNK)))
    }
    shared = sum(
        len(set(a) & set(b))
        for layers in zip(kept["theirs"], kept["ours"], strict=True)
        for a, b in zip(*layers, strict=True)
    )
    pairs = sum(len(head) for layer in kept["ours"] for head in layer)
    return Difference(
        "KVzip's requests are worded differently",
        same_replays and kept["theirs"] == result["kept"],
        "with their wording: same replays, same sets",
        f"with ours {shared} of {pairs} kept pairs are the same",
        "choice of ours: the wording is a setting",
    )
