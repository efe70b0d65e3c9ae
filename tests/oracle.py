"""A slow, obvious decoder: no cache, no slots, no batch. Every step runs the whole sequence again under masks.

What a policy evicted is a token that later queries may not see. Scores are taken from the attention weights of the
last query and combined by literal loops over layers and tokens, in Python floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import torch

from inertia.eviction.aggregation import CoupledEMA, Cumulative, Decoupled
from inertia.eviction.attention import attending
from inertia.eviction.cache import SessionCache
from inertia.eviction.layers import layers_of
from inertia.eviction.support import attends_by_name


@dataclass
class Seen:
    """What one layer showed for the last query: weights [Hq, T], query [Hq, D], keys and values [Hkv, T, D]."""

    weights: torch.Tensor
    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


def oracle_attention(
    module, query, key, value, attention_mask, scaling, oracle=None, softcap=None, s_aux=None, bias=None, **kwargs
):
    """Plain attention with repeated keys and one boolean mask [Hq, Q, T] per layer; remembers the last query.

    Learned sinks are one more key whose weight is thrown away.
    """
    groups = query.shape[1] // key.shape[1]
    logits = query @ key.repeat_interleave(groups, dim=1).transpose(-1, -2) * scaling
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if bias is not None:
        logits = logits + bias[:, :, None]
    logits = logits.masked_fill(~oracle["masks"][module.layer_idx][None], float("-inf"))
    if s_aux is None:
        weights = logits.float().softmax(-1)
    else:
        sink = s_aux[None, :, None, None].expand(*logits.shape[:-1], 1)
        weights = torch.cat([logits, sink], dim=-1).float().softmax(-1)[..., :-1]
    output = weights.to(value.dtype) @ value.repeat_interleave(groups, dim=1)
    oracle["seen"][module.layer_idx] = Seen(weights[0, :, -1], query[0, :, -1], key[0], value[0])
    return output.transpose(1, 2).contiguous(), None


class Whole:
    """What a wrapped attention finds behind its cache: the whole sequence, attended to under the oracle's masks."""

    seen = 0

    def __init__(self, state):
        self.oracle = state

    def write(self, layer_idx, keys, values):
        return keys, values

    def attend(self, layer_idx, query, keys, values, logits):
        layer = SimpleNamespace(layer_idx=layer_idx)
        return oracle_attention(layer, query, keys, values, None, logits[0], self.oracle, *logits[1:])[0]


def causal(length, window):
    """Boolean [T, T] mask of a layer before any eviction."""
    rows, columns = torch.arange(length)[:, None], torch.arange(length)[None, :]
    mask = columns <= rows
    return mask if window is None else mask & (rows - columns < window)


def forward(model, ids, hidden, layers):
    """Run all of `ids`; `hidden[layer][head]` maps a query position to the key positions that it may not see."""
    length = len(ids)
    heads = model.config.num_attention_heads
    masks = {}
    for layer, window in enumerate(layers.windows):
        mask = causal(length, window).repeat(heads, 1, 1)
        for head in range(heads):
            for query, gone in hidden.get((layer, head), {}).items():
                mask[head, query, sorted(gone)] = False
        masks[layer] = mask
    state = {"masks": masks, "seen": {}}
    by_name = attends_by_name(type(model))
    how = {"use_cache": False, "oracle": state} if by_name else {"use_cache": True, "cache": SessionCache(Whole(state))}
    with torch.inference_mode(), attending(model, "oracle", oracle_attention):
        logits = model(input_ids=torch.tensor([ids]), position_ids=torch.arange(length)[None], **how).logits[0, -1]
    return logits, state["seen"]


def attention_score(seen, policy, positions):
    """Scores of one layer, {KV head: {position: value}}: mean weight of the query heads of each cached KV head."""
    groups = seen.weights.shape[0] // len(positions)
    return {
        head: {p: sum(float(seen.weights[head * groups + g, p]) for g in range(groups)) / groups for p in held}
        for head, held in positions.items()
    }


def cached_heads(config):
    """KV heads that a layer caches: MLA has one latent for all of them."""
    if getattr(config, "kv_lora_rank", None):
        return 1
    return getattr(config, "num_key_value_heads", None) or config.num_attention_heads


SCORES = {"attention": attention_score}


def aggregate(policy, old, scores):
    """The literal recurrence for one token: `old` utility and the K layer scores, first layer first."""
    rule = policy.aggregation
    if isinstance(rule, CoupledEMA):
        m = old
        for s in scores:
            m = rule.alpha * m + (1 - rule.alpha) * s
        return m
    if isinstance(rule, Cumulative):
        m = old
        for s in scores:
            m = m + s
        return m
    assert isinstance(rule, Decoupled)
    weights = rule.layers.weights(len(scores))
    step = sum(w * s for w, s in zip(weights, scores, strict=True))
    kind = rule.time.kind
    if kind == "none":
        return step
    if kind == "cumulative":
        return old + step
    return rule.time.alpha * old + (1 - rule.time.alpha) * step


def run(
    model,
    ids,
    policy,
    max_new_tokens,
    forced=None,
    scores=SCORES,
    seed=0,
    stay=None,
    part=None,
    context_end=None,
    m0=None,
):
    """Decode under a policy; returns tokens, kept sets per step (nested as the public API) and logits per token.

    A compressed prompt: `stay[(layer, head)]` is what is left of the first `part` tokens, and tokens from `part` on
    never see the rest. `m0[(layer, head)]` are initial utilities (per_head scope).
    """
    layers = layers_of(model.config)
    eligible = layers.eligible
    query_heads = model.config.num_attention_heads
    kv_heads = cached_heads(model.config)
    groups = query_heads // kv_heads
    ids = list(ids)
    prompt = len(ids)
    # The set of tokens that each (eligible layer, KV head) still holds, and the utility of each unit's tokens.
    alive = {(layer, head): set(range(prompt)) for layer in eligible for head in range(kv_heads)}
    utility = {} if m0 is None else {unit: dict(values) for unit, values in m0.items()}
    hidden = {}
    if stay is not None:
        for (layer, head), left in stay.items():
            gone = set(range(part)) - left
            alive[(layer, head)] -= gone
            for g in range(groups):
                hidden[(layer, head * groups + g)] = {query: gone for query in range(part, prompt)}
    logits, _ = forward(model, ids, hidden, layers)
    out_logits, tokens, kept = [logits], [], []
    tokens.append(forced[0] if forced is not None else int(logits.argmax()))
    for step in range(1, max_new_tokens):
        ids.append(tokens[-1])
        newest = len(ids) - 1
        for unit in alive:
            alive[unit].add(newest)
        for (layer, head), tokens_left in alive.items():
            gone = set(range(newest)) - tokens_left
            for g in range(groups):
                hidden.setdefault((layer, head * groups + g), {})[newest] = gone
        logits, seen = forward(model, ids, hidden, layers)
        due = policy.evicts and policy.refresh.due(step)
        layer_scores = {
            layer: scores[policy.scorer.kind](
                seen[layer], policy, {h: sorted(alive[(layer, h)]) for h in range(kv_heads)}
            )
            for layer in (eligible if due else ())
        }
        budget = policy.budget.tokens(prompt, prompt + step)
        for unit, members in units(policy, eligible, kv_heads):
            held = set().union(*(alive[member] for member in members))
            m = utility.setdefault(unit, dict.fromkeys(range(prompt), 0.0))
            means = [[m[p] for p in alive[member] if p != newest] for member in members]
            mean = sum(sum(values) / len(values) for values in means) / len(means)
            m[newest] = 0.0 if due and policy.new_token.on_refresh == "zero" else mean
            if due:
                for p in held:
                    per_layer = [
                        sum(layer_scores[layer][h].get(p, 0.0) for h in heads) / len(heads)
                        for layer, heads in by_layer(members).items()
                    ]
                    m[p] = aggregate(policy, m[p], per_layer)
            if budget is None:
                continue
            guard = policy.protect
            spared = {newest} if not due and policy.new_token.when_frozen == "protect" else set()
            spared |= {newest} if guard.newest else set()
            recent = max(guard.recent, int(guard.recent_share * budget))
            reserve = int(guard.reserve * budget)
            spread = {i * (prompt - 1) // (reserve - 1) for i in range(reserve)} if reserve > 1 else set(range(reserve))
            fixed = len({p for p in range(prompt) if p < guard.sinks} | spread)
            room = max(0, budget - fixed - max(recent, int(guard.newest)))
            question = set(range(max(context_end, prompt - room), prompt)) if guard.question else set()
            spared |= {p for p in held if p < guard.sinks or p > newest - recent or p in spread or p in question}
            if step == 1 and guard.rescue:
                best = {
                    p: max(
                        sum(layer_scores[layer][h].get(p, 0.0) for h in heads) / len(heads)
                        for layer, heads in by_layer(members).items()
                    )
                    for p in held - spared
                }
                count = min(
                    int(guard.rescue * budget), budget - len(spared | set(range(newest, newest + bool(recent))))
                )
                spared |= set(sorted(best, key=lambda p: (-best[p], p))[:count])
            for member in members:
                while len(alive[member]) > budget:
                    candidates = [p for p in alive[member] if p not in spared]
                    alive[member].discard(min(candidates, key=lambda p: (m[p], -p)))
        kept.append(nest(policy, alive, eligible, kv_heads, stay is not None))
        out_logits.append(logits)
        tokens.append(forced[step] if forced is not None else int(logits.argmax()))
    return tokens, kept, torch.stack(out_logits)


def units(policy, eligible, kv_heads):
    """The units of a scope: (name, its (layer, head) members)."""
    if policy.scope == "shared":
        return [("all", [(layer, h) for layer in eligible for h in range(kv_heads)])]
    if policy.scope == "per_layer":
        return [((layer,), [(layer, h) for h in range(kv_heads)]) for layer in eligible]
    return [((layer, h), [(layer, h)]) for layer in eligible for h in range(kv_heads)]


def by_layer(members):
    """Group (layer, head) members by layer, in order."""
    grouped = {}
    for layer, head in members:
        grouped.setdefault(layer, []).append(head)
    return grouped


def nest(policy, alive, eligible, kv_heads, compressed=False):
    """Kept positions nested as `Generation.kept`."""
    if compressed:
        return [[sorted(alive[(layer, h)]) for h in range(kv_heads)] for layer in eligible]
    if policy.scope == "shared" or not policy.evicts:
        return sorted(alive[(eligible[0], 0)])
    if policy.scope == "per_layer":
        return [sorted(alive[(layer, 0)]) for layer in eligible]
    return [[sorted(alive[(layer, h)]) for h in range(kv_heads)] for layer in eligible]
