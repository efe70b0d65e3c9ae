"""Slow scores: one token at a time, Python floats, straight from the definitions.

Each takes what one layer showed for the last query (`oracle.Seen`), the policy and the positions that each KV
head holds, and returns {kv head: {position: score}}.
"""

from __future__ import annotations

import itertools
import math

from oracle import attention_score


def norm(vector):
    return math.sqrt(sum(x * x for x in vector))


def vnorm_score(seen, policy, positions):
    attention = attention_score(seen, policy, positions)
    scores = {}
    for head, held in positions.items():
        norms = {p: norm(seen.values[head, p].tolist()) for p in held}
        mean = sum(norms.values()) / len(norms)
        scores[head] = {p: attention[head][p] * (norms[p] / mean if mean > 0 else 1.0) for p in held}
    return scores


def entropy_score(seen, policy, positions):
    attention = attention_score(seen, policy, positions)
    tokens = sorted({p for held in positions.values() for p in held})
    entropy = 0.0
    for p in tokens:
        share = sum(attention[head].get(p, 0.0) for head in attention) / len(attention)
        if share > 0:
            entropy -= share * math.log(share)
    scale = entropy / math.log(len(tokens)) if len(tokens) > 1 else 1.0
    return {head: {p: value * scale for p, value in of_head.items()} for head, of_head in attention.items()}


def keydiff_score(seen, policy, positions):
    scores = {}
    for head, held in positions.items():
        unit = {}
        for p in held:
            key = seen.keys[head, p].tolist()
            length = norm(key)
            unit[p] = [x / length if length > 0 else 0.0 for x in key]
        anchor = [sum(column) / len(held) for column in zip(*unit.values(), strict=True)]
        size = norm(anchor)
        scores[head] = {}
        for p in held:
            dot = sum(x * y for x, y in zip(unit[p], anchor, strict=True))
            scores[head][p] = -dot / size if size > 0 else 0.0
    return scores


def key_norm_score(seen, policy, positions):
    return {head: {p: -norm(seen.keys[head, p].tolist()) for p in held} for head, held in positions.items()}


def recency_score(seen, policy, positions):
    return {head: {p: float(p) for p in held} for head, held in positions.items()}


def hashed(words):
    """The hash of `Random` on Python integers."""
    state = 0
    for index, word in enumerate(words):
        state = scrambled(state) ^ word if index else word
    return (scrambled(scrambled(state)) >> 8) / 2**24


def scrambled(word):
    word = (word + 0x9E3779B9) % 2**32
    for _ in range(2):
        word = (word ^ word >> 16) * 0x45D9F3B % 2**32
    return word ^ word >> 16


def draw(seed, position, unit):
    """The number of one token; `unit` counts (layer, KV head) pairs, None for the draw that all share."""
    words = [seed % 2**32, (seed >> 32) % 2**32] + ([] if unit is None else [unit + 1]) + [position]
    return hashed(words)


def random_score(seed, layers):
    """The random score of an example; the oracle asks layer by layer, in their order."""
    turn = itertools.cycle(range(layers))

    def score(seen, policy, positions):
        first = next(turn) * len(positions)
        return {
            head: {p: draw(seed, p, first + head if policy.scorer.per_head else None) for p in held}
            for head, held in positions.items()
        }

    return score


def learned_score(seen, policy, positions):
    """Per KV head its share of (W_k k).(W_q q) / sqrt(rank), times the heads: the mean is the whole score."""
    from safetensors.torch import load_file

    weights = load_file(policy.scorer.weights)
    query_weight, key_weight = weights["query.weight"].double(), weights["key.weight"].double()
    rank, heads = query_weight.shape[0], len(positions)
    query = seen.query.flatten().double()
    size = seen.keys.shape[-1]
    scores = {}
    for head, held in positions.items():
        scores[head] = {}
        for p in held:
            key = seen.keys[head, p].double()
            total = 0.0
            for row in range(rank):
                part = float(key_weight[row, head * size : (head + 1) * size] @ key)
                total += part * float(query_weight[row] @ query)
            scores[head][p] = heads * total / math.sqrt(rank)
    return scores


def scores(seed=0, layers=1):
    """All scores, as `oracle.run` takes them."""
    return {
        "attention": attention_score,
        "vnorm": vnorm_score,
        "entropy": entropy_score,
        "keydiff": keydiff_score,
        "key_norm": key_norm_score,
        "recency": recency_score,
        "random": random_score(seed, layers),
        "learned": learned_score,
    }
