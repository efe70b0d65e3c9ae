"""The differences from kvpress that have a name: how each is shown, and why it is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from inertia.eviction.budget import Ratio
from inertia.prefill.kvzip import KVzip
from inertia.prefill.methods import named
from inertia.prefill.replay import Wording
from parity_cases import CHUNK, DECODE_PROMPT, PROMPT, fed, our_decode, our_scores, positions_of, ranges, replays_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MODEL, TARGET, STEPS = "llama-9-3", 16, 40
# Whether a difference was seen just now, what kvpress did, and what we did.
Seen = tuple[bool, str, str]


class Known(NamedTuple):
    """A difference with a name.

    Attributes:
        name: in one line.
        command: what kvpress is asked in order to show it: "prefill", "kvzip" or "decode".
        asked: its arguments, beside model, ids and settings.
        show: reads kvpress's answer and does the same with our model.
        why: it is there.
    """

    name: str
    command: str
    asked: dict[str, Any]
    show: Callable[[PreTrainedModel, dict[str, Any]], Seen]
    why: str

    def job(self) -> dict[str, Any]:
        """Return the whole command for kvpress, but for the model."""
        given = fed(MODEL, DECODE_PROMPT, STEPS) if self.command == "decode" else fed(MODEL, PROMPT)
        decoding = {"target": TARGET, "tokens": given.tokens} if self.command == "decode" else {}
        return {"settings": {}, "ids": given.ids, **decoding, **self.asked}


def decoded(model: PreTrainedModel, method: str) -> list[Any]:
    """Return what our policy holds in each layer and KV head after the last step."""
    return our_decode(model, fed(MODEL, DECODE_PROMPT, STEPS), method, TARGET)[-1]


def lost_sinks(model: PreTrainedModel, result: dict[str, Any]) -> Seen:
    """StreamingLLM while decoding."""
    theirs, mine = result["kept"][-1][0][0], decoded(model, "streaming_llm")[0][0]
    seen = DECODE_PROMPT + STEPS
    right = [0, 1, 2, 3, *range(seen - TARGET + 4, seen)]
    return not set(range(4)) <= set(theirs) and mine == right, ranges(theirs), ranges(mine)


def growing_cache(model: PreTrainedModel, result: dict[str, Any]) -> Seen:
    """AdaKV while decoding."""
    most, length = max(len(head) for layer in decoded(model, "key_norm") for head in layer), result["length"]
    seen = length == DECODE_PROMPT + STEPS and most == TARGET
    return seen, f"{length} tokens cached under a target of {TARGET}", f"{most} tokens cached"


def empty_statistics(model: PreTrainedModel, result: dict[str, Any]) -> Seen:
    """ExpectedAttention while decoding."""
    return bool(result["nan"]), "NaN scores, silently ranked", "prefill only; NaN scores stop the run"


def binary_ratio(model: PreTrainedModel, result: dict[str, Any]) -> Seen:
    """The number kept at a ratio."""
    theirs, mine = len(result["kept"][0][0]), Ratio(0.9).tokens(100, 100)
    return (theirs, mine) == (9, 10), f"{theirs} of 100", f"{mine} of 100"


def forced_last(model: PreTrainedModel, result: dict[str, Any]) -> Seen:
    """The last token of TOVA."""
    scores = torch.stack(our_scores(model, fed(MODEL, PROMPT).ids, named("tova")))
    rank = int((scores[0, 0] > scores[0, 0, -1]).sum())
    raised = all(max(head) == head[-1] > 1 for layer in result["scores"] for head in layer)
    mine = f"a candidate like any other (rank {rank} of {PROMPT} here); keep_last=True is theirs"
    return raised and bool(scores.isfinite().all()), "its score is raised above all others", mine


def rounded_removal(model: PreTrainedModel, result: dict[str, Any]) -> Seen:
    """The number of pairs that KVzip keeps."""
    heads = [head for layer in result["kept"] for head in layer]
    pairs, total, mine = sum(map(len, heads)), len(heads) * PROMPT, len(heads) * (PROMPT // 10)
    return (
        pairs == total - int(total * 0.9) and pairs != mine,
        f"{pairs} of {total} pairs at a ratio of 0.9",
        f"{mine}: {PROMPT // 10} per KV head on average",
    )


def own_wording(model: PreTrainedModel, result: dict[str, Any]) -> Seen:
    """KVzip with the requests that it is released with, taken from the installed package."""
    ids = fed(MODEL, PROMPT).ids
    released = KVzip(chunk=CHUNK, wording=Wording(*result["wording"], 8))
    replays = [[ids[replay.start : replay.end], list(replay.ids)] for replay in replays_of(released, ids)]
    theirs, mine = (
        positions_of(compressor.keep(our_scores(model, ids, compressor), PROMPT // 2))
        for compressor in (released, KVzip(chunk=CHUNK))
    )
    pairs = [
        (set(a), set(b)) for layers in zip(theirs, mine, strict=True) for a, b in zip(*layers, strict=True)
    ]
    shared, kept = sum(len(a & b) for a, b in pairs), sum(len(b) for _, b in pairs)
    return (
        replays == result["replays"] and theirs == result["kept"],
        "with their wording: same replays, same sets",
        f"with ours {shared} of {kept} kept pairs are the same",
    )


KVZIP = {"replays": None, "settings": {"chunk_size": CHUNK}}
KNOWN = (
    Known(
        "decode StreamingLLM loses its sinks",
        "decode",
        {"method": "streaming_llm"},
        lost_sinks,
        "bug of theirs: kept entries are stored in score order, and the next call counts sinks and recent tokens by "
        "array index",
    ),
    Known(
        "decode AdaKV removes nothing",
        "decode",
        {"method": "adakv_key_norm"},
        growing_cache,
        "bug of theirs: AdaKV only masks, so under DecodingPress the cache grows by a token per step; ours removes",
    ),
    Known(
        "decode ExpectedAttention scores NaN",
        "decode",
        {"method": "expected_attention"},
        empty_statistics,
        "bug of theirs: it drops the first 4 buffered queries as sinks; at interval 1 none is left",
    ),
    Known(
        "a ratio of 0.9 leaves one token less",
        "prefill",
        {"method": "key_norm", "ids": fed(MODEL, 100).ids, "ratio": 0.9},
        binary_ratio,
        "choice of ours: ratios are decimal; theirs is the integer part of 100 * (1 - 0.9) in binary",
    ),
    Known(
        "TOVA's last token always stays",
        "prefill",
        {"method": "tova", "ratio": 0.5},
        forced_last,
        "choice of ours: the authors' code does not protect it, as a comment in kvpress admits",
    ),
    Known(
        "KVzip rounds what it removes, over all layers together",
        "kvzip",
        {**KVZIP, "ratio": 0.9},
        rounded_removal,
        "choice of ours: the budget is an integer per KV head for every method",
    ),
    Known(
        "KVzip's requests are worded differently",
        "kvzip",
        {**KVZIP, "ratio": 0.5},
        own_wording,
        "choice of ours: the wording is a setting",
    ),
)
