"""Run kvpress on given models and prompts and answer what it keeps; started by parity.py in kvpress's environment.

Of this project only what needs nothing but torch is imported: kvpress pins another transformers. Positions are found
by comparing cached keys, bit by bit, with the keys before a compression.
"""

from __future__ import annotations

import ast
import inspect
import logging
import textwrap
from functools import cache
from typing import Any

import kvpress
import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils.logging import disable_progress_bar

from bench.kvpress_worker import serve

BASES = {
    "key_norm": kvpress.KnormPress,
    "keydiff": kvpress.KeyDiffPress,
    "tova": kvpress.TOVAPress,
    "snapkv": kvpress.SnapKVPress,
    "streaming_llm": kvpress.StreamingLLMPress,
    "expected_attention": kvpress.ExpectedAttentionPress,
}


@cache
def load(folder: str) -> Any:
    """Return a model of the folder, in fp32 with SDPA."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    return model.eval()


def base_press(method: str, settings: dict[str, Any]) -> Any:
    """Return a scoring press, and AdaKV around it where the method's name begins so."""
    if method.startswith("adakv_"):
        return kvpress.AdaKVPress(BASES[method.removeprefix("adakv_")](**settings))
    return BASES[method](**settings)


def rows_of(after: torch.Tensor, before: torch.Tensor) -> list[list[int]]:
    """Return per KV head where each kept key stood, in the cache's order (that of scores); keys are [Hkv, S, D].

    Raises:
        RuntimeError: a key cannot be told from another.
    """
    found = []
    for kept, all_keys in zip(after, before, strict=True):
        equal = (kept[:, None] == all_keys[None]).all(-1)
        if not bool((equal.sum(-1) == 1).all()):
            raise RuntimeError("cached keys are not unique, so kept positions cannot be read off them.")
        found.append(equal.int().argmax(-1).tolist())
    return found


def unmasked(module: Any, heads: int, tokens: int) -> list[list[int]]:
    """Return per KV head the positions that an attention module does not mask."""
    gone: list[set[int]] = [set() for _ in range(heads)]
    _, head_indices, positions = module.masked_key_indices
    for head, position in zip(head_indices.tolist(), positions.tolist(), strict=True):
        gone[head].add(position)
    return [[p for p in range(tokens) if p not in gone[head]] for head in range(heads)]


def listen(press: Any, scores: dict[int, Any]) -> None:
    """Record, per layer, the scores that a press gives."""
    original = press.score

    def score(module: Any, *arguments: Any) -> torch.Tensor:
        found = original(module, *arguments)
        scores[module.layer_idx] = found[0].tolist()
        return found

    press.score = score


def read(model: Any, press: Any, ids: list[int]) -> None:
    """Let a model read a prompt under a press."""
    with press(model):
        model.model(input_ids=torch.tensor([ids]), past_key_values=DynamicCache())


def prefill(model: str, method: str, ids: list[int], ratio: float, settings: dict[str, Any]) -> dict[str, Any]:
    """Compress a prompt once; return kept positions and scores, per layer and KV head."""
    press = base_press(method, {**settings, "compression_ratio": ratio})
    masks = isinstance(press, kvpress.AdaKVPress)
    scores: dict[int, Any] = {}
    kept: dict[int, Any] = {}
    listen(press.press if masks else press, scores)
    original = press.compress

    def compress(module: Any, hidden: Any, keys: torch.Tensor, values: Any, *rest: Any) -> Any:
        before = keys.clone()
        found = original(module, hidden, keys, values, *rest)
        if masks:
            kept[module.layer_idx] = unmasked(module, before.shape[1], len(ids))
        else:
            kept[module.layer_idx] = [sorted(rows) for rows in rows_of(found[0][0], before[0])]
        return found

    press.compress = compress
    read(load(model), press, ids)
    return {"kept": in_order(kept), "scores": in_order(scores)}


def kvzip(
    model: str, ids: list[int], ratio: float, settings: dict[str, Any], replays: list[Any] | None
) -> dict[str, Any]:
    """Compress a prompt with KVzip, with the given replays or, where there are none, with its own."""
    loaded = load(model)
    press = kvpress.KVzipPress(compression_ratio=ratio, **settings)
    prepare, compress_post = press.prepare, press.compress_post
    seen: dict[str, Any] = {}

    def prepared(*arguments: Any, **options: Any) -> Any:
        pairs = prepare(*arguments, **options)
        if replays is not None:
            pairs = [(torch.tensor([chunk]), torch.tensor([request])) for chunk, request in replays]
        seen["replays"] = [[chunk[0].tolist(), request[0].tolist()] for chunk, request in pairs]
        return pairs

    def finish(model: Any) -> None:
        seen["scores"] = press.score_val[:, 0].tolist()
        compress_post(model)

    press.prepare, press.compress_post = prepared, finish
    read(loaded, press, ids)
    heads = loaded.config.num_key_value_heads
    kept = [unmasked(layer.self_attn, heads, len(ids)) for layer in loaded.model.layers]
    return {"kept": kept, "scores": seen["scores"], "replays": seen["replays"], "wording": wording()}


def wording() -> list[str]:
    """Return the requests that the installed KVzip makes: for the first chunk, and for later ones."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kvpress.KVzipPress.prepare)))
    return [
        node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]


def decode(
    model: str, method: str, ids: list[int], tokens: list[int], target: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """Decode given tokens at interval 1; return per step what each layer and KV head holds.

    Also: the physical length of the cache after the last step, and whether a score was ever NaN.
    """
    loaded, position = load(model), len(ids)
    base = base_press(method, settings)
    press = kvpress.DecodingPress(base, compression_interval=1, target_size=target)
    heads = range(loaded.config.num_key_value_heads)
    held = {layer: [list(range(position)) for _ in heads] for layer in range(len(loaded.model.layers))}
    scores: dict[int, Any] = {}
    nan = False
    listen(base.press if isinstance(base, kvpress.AdaKVPress) else base, scores)
    original = press.compress

    def compress(module: Any, hidden: Any, keys: torch.Tensor, values: Any, *rest: Any) -> Any:
        before = keys.clone()
        found = original(module, hidden, keys, values, *rest)
        tables = [[*table, position] for table in held[module.layer_idx]]
        if not isinstance(base, kvpress.AdaKVPress):
            rows = rows_of(found[0][0], before[0])
            tables = [[table[row] for row in of_head] for table, of_head in zip(tables, rows, strict=True)]
        held[module.layer_idx] = tables
        return found

    press.compress = compress
    cache, steps = DynamicCache(), []
    with press(loaded):
        loaded(input_ids=torch.tensor([ids]), past_key_values=cache)
        for token in tokens:
            at = torch.tensor([[position]])
            loaded(input_ids=torch.tensor([[token]]), position_ids=at, past_key_values=cache)
            position += 1
            steps.append([[sorted(table) for table in held[layer]] for layer in sorted(held)])
            nan |= any(x != x for layer in scores.values() for head in layer for x in head)
    return {"kept": steps, "length": cache.layers[0].keys.shape[2], "nan": nan}


def in_order(by_layer: dict[int, Any]) -> list[Any]:
    """Return the values, first layer first."""
    return [by_layer[layer] for layer in sorted(by_layer)]


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    disable_progress_bar()
    with torch.no_grad():
        serve({"prefill": prefill, "kvzip": kvzip, "decode": decode})
