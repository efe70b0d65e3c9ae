"""Prefill a prompt once, decode it under many policies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from inertia.eviction.attention import decoding_attention
from inertia.eviction.cache import PromptCache, Ring, SessionCache
from inertia.eviction.layers import Layers, layers_of
from inertia.eviction.policy import PER_HEAD, PER_LAYER, SHARED, Policy
from inertia.eviction.session import Cut, DecodeBatch, FirstStep, cut, unit_key
from inertia.eviction.units import Row

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Rows share a batch while the largest block is at most this many times the smallest: padded slots cost real time.
CAPACITY_SPREAD = 1.25

Kept = list[int] | list[list[int]] | list[list[list[int]]]


@dataclass(frozen=True)
class Generation:
    """What one policy made of one prompt.

    Attributes:
        tokens: generated ids, EOS included.
        stop: "eos" or "length".
        prompt_tokens: L0.
        budget_tokens: the budget after the last decode step, None for no limit.
        retained_tokens: tokens cached after the last decode step, mean over the eligible units.
        peak_tokens: most tokens that a unit held between two steps after the first cut (the prompt's before any).
        evictions: tokens evicted, mean over the eligible units.
        cache_bytes: bytes of the keys and values of all layers that this row's slots take.
        batch_rows: rows that decoded together with this one at the start.
        prefill_seconds: wall time of the prefill, shared by all policies.
        decode_seconds: wall time of step 1 and of the whole batch of this row.
        kept: with trace, per decode step the sorted true positions still cached after it: a list of positions
            (shared), [K] lists (per_layer) or [K][Hkv] lists (per_head).
        logits: with return_logits, fp32 logits that chose each token, [tokens, vocabulary].
    """

    tokens: list[int]
    stop: str
    prompt_tokens: int
    budget_tokens: int | None
    retained_tokens: float
    peak_tokens: int
    evictions: float
    cache_bytes: int
    batch_rows: int
    prefill_seconds: float
    decode_seconds: float
    kept: list[Kept] | None = None
    logits: Tensor | None = None


@dataclass
class Draft:
    """A generation while it grows."""

    policy: Policy
    tokens: list[int]
    logits: list[Tensor]
    kept: list[Kept] = field(default_factory=list)
    retained: float = 0.0
    peak: int = 0
    bytes: int = 0
    rows: int = 1
    seconds: float = 0.0


@dataclass(frozen=True)
class Request:
    """What the caller asked for, beside prompt and policies."""

    limit: int
    eos: frozenset[int]
    trace: bool
    forced: tuple[int, ...] | None
    return_logits: bool

    def next_token(self, draft: Draft, logits: Tensor, proposed: int) -> None:
        """Append the next token of a row: the forced one, or the proposed one."""
        index = len(draft.tokens)
        draft.tokens.append(proposed if self.forced is None else self.forced[index])
        if self.return_logits:
            draft.logits.append(logits.float().cpu())

    def note(self, draft: Draft, kept: Tensor) -> None:
        """Trace the positions that a row holds after a step, [UK, UH, C]."""
        if self.trace:
            draft.kept.append(as_lists(kept, draft.policy.scope if draft.policy.evicts else SHARED))

    def done(self, draft: Draft) -> bool:
        """Tell whether a row ends here."""
        ended = self.forced is None and draft.tokens[-1] in self.eos
        return ended or len(draft.tokens) >= self.limit


def generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    policies: Sequence[Policy],
    max_new_tokens: int,
    *,
    eos_token_id: int | Sequence[int] | None = None,
    trace: bool = False,
    seed: int = 0,
    forced_tokens: Sequence[int] | None = None,
    return_logits: bool = False,
) -> list[Generation]:
    """Decode one prompt greedily under several policies, with one prefill and one first decode step for all of them.

    The first token comes from the prefill, so n tokens take n - 1 decode steps. Step 1 sees the whole prompt under
    every policy; the cut to the budget comes after it. Each result equals that of running its policy alone, up to
    float rounding of the batched products.

    Args:
        model: a causal language model of transformers, in eval mode; its attention implementation is used for the
            prefill and restored afterwards.
        input_ids: LongTensor [1, L0].
        policies: at least one.
        max_new_tokens: most tokens to generate, at least 1.
        eos_token_id: one id, several, or None to run to the limit.
        trace: record the kept positions after every decode step.
        seed: seed of the example, for scorers that draw.
        forced_tokens: feed these instead of the model's own choice (teacher forcing); `max_new_tokens` of them count.
        return_logits: keep the logits that each token was chosen from.

    Returns:
        One Generation per policy, in their order.

    Raises:
        ValueError: bad shape, empty prompt, no policy, a limit below 1, forced tokens fewer than the limit, or a
            prompt that does not fit the model's window together with the new tokens.
        FloatingPointError: a scorer gave NaN or infinite scores.

    Example:
        >>> policy = Policy.named("inertiakv", alpha=0.8, compression_ratio=0.9)
        >>> generate(model, input_ids, [policy], max_new_tokens=32)[0].tokens
    """
    check_request(model, input_ids, policies, max_new_tokens, forced_tokens)
    eos = () if eos_token_id is None else (eos_token_id,) if isinstance(eos_token_id, int) else tuple(eos_token_id)
    forced = None if forced_tokens is None else tuple(forced_tokens)
    request = Request(max_new_tokens, frozenset(eos), trace, forced, return_logits)
    layers = layers_of(model.config)
    length = input_ids.shape[1]
    with torch.inference_mode():
        started = time.perf_counter()
        steps = max_new_tokens - 1
        extra = steps if any(not policy.evicts for policy in policies) else min(steps, 1)
        prompt = PromptCache(list(layers.windows), extra)
        positions = torch.arange(length, device=input_ids.device)[None]
        first = model(input_ids=input_ids, position_ids=positions, cache=prompt, use_cache=True, logits_to_keep=1)
        prefill_seconds = time.perf_counter() - started
        logits = first.logits[0, -1]
        drafts = [Draft(policy, [], []) for policy in policies]
        for draft in drafts:
            request.next_token(draft, logits, int(logits.argmax()))
            draft.retained, draft.peak = float(length), length
            draft.bytes = cache_bytes(prompt, length)
        if not request.done(drafts[0]):
            with decoding_attention(model):
                decode(model, layers, prompt, drafts, request, seed)
    return [finish(draft, request, length, prefill_seconds) for draft in drafts]


def check_request(
    model: PreTrainedModel,
    input_ids: Tensor,
    policies: Sequence[Policy],
    max_new_tokens: int,
    forced_tokens: Sequence[int] | None,
) -> None:
    """Refuse a call that cannot be carried out.

    Raises:
        ValueError: naming the value, what is allowed and the fix.
    """
    if input_ids.ndim != 2 or input_ids.shape[0] != 1 or input_ids.shape[1] < 1:
        raise ValueError(f"input_ids has shape {list(input_ids.shape)}; give one prompt as [1, L0] with L0 >= 1.")
    if not policies:
        raise ValueError("policies is empty; give at least one Policy, such as Policy.named('full_cache').")
    for policy in policies:
        if not isinstance(policy, Policy):
            raise ValueError(f"policies holds {policy!r}; give Policy values, such as Policy.named('inertiakv').")
        # A scorer that fits only some models says so by a method `check(config)`.
        if hasattr(policy.scorer, "check"):
            policy.scorer.check(model.config)
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens} is too small; give at least 1.")
    if forced_tokens is not None and len(forced_tokens) < max_new_tokens:
        raise ValueError(
            f"forced_tokens has {len(forced_tokens)} tokens but max_new_tokens={max_new_tokens}; "
            "give as many tokens as are to be forced."
        )
    window = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    needed = input_ids.shape[1] + max_new_tokens
    if window is not None and needed > window:
        raise ValueError(
            f"prompt of {input_ids.shape[1]} + {max_new_tokens} new tokens = {needed} exceeds the model's window of "
            f"{window} tokens; shorten the prompt or max_new_tokens."
        )


def decode(
    model: PreTrainedModel,
    layers: Layers,
    prompt: PromptCache,
    drafts: list[Draft],
    request: Request,
    seed: int,
) -> None:
    """Run all decode steps: step 1 once for all rows, then batches of rows of similar capacity."""
    started = time.perf_counter()
    scorers = list(dict.fromkeys(draft.policy.scorer for draft in drafts if draft.policy.evicts))
    step = FirstStep(layers, prompt, scorers, seed)
    logits = forward(model, step, [drafts[0].tokens[-1]], [prompt.length])[0]
    proposed = int(logits.argmax())
    steps = request.limit - 1
    cuts = [cut(step, Row(draft.policy, prompt.length, seed)) for draft in drafts]
    alive = []
    for draft, item in zip(drafts, cuts, strict=True):
        draft.peak = item.kept.shape[-1]
        draft.bytes = cache_bytes(prompt, item.row.capacity(steps))
        request.note(draft, item.kept)
        request.next_token(draft, logits, proposed)
        if request.done(draft):
            draft.retained = mean_count(item.kept)
        else:
            alive.append((draft, item))
    shared_seconds = time.perf_counter() - started
    for draft in drafts:
        draft.seconds = shared_seconds
    del scorers, step, cuts
    groups = by_capacity(alive, steps)
    # Batches are built before any of them runs on, since the full cache's batch takes the prompt's tensors over.
    batches = []
    for group in groups:
        adopt = len(group) == 1 and not group[0][0].policy.evicts
        batches.append(DecodeBatch(layers, prompt, [item for _, item in group], steps, adopt=adopt))
    prompt.layers.clear()
    for group in groups:
        run_batch(model, batches.pop(0), [draft for draft, _ in group], request)


def by_capacity(alive: list[tuple[Draft, Cut]], steps: int) -> list[list[tuple[Draft, Cut]]]:
    """Split rows into batches of similar capacity, rows of one kind side by side; full caches go alone."""
    evicting = [entry for entry in alive if entry[0].policy.evicts]
    groups: list[list[tuple[Draft, Cut]]] = []
    for entry in sorted(evicting, key=lambda entry: entry[1].row.capacity(steps)):
        smallest = groups[-1][0][1].row.capacity(steps) if groups else None
        if smallest is not None and entry[1].row.capacity(steps) <= CAPACITY_SPREAD * smallest:
            groups[-1].append(entry)
        else:
            groups.append([entry])
    for group in groups:
        group.sort(key=lambda entry: unit_key(entry[0].policy))
    return groups + [[entry] for entry in alive if not entry[0].policy.evicts]


def run_batch(model: PreTrainedModel, batch: DecodeBatch, drafts: list[Draft], request: Request) -> None:
    """Decode rows together until each has ended, dropping ended rows once they are half of the batch."""
    started = time.perf_counter()
    everyone = list(drafts)
    for draft in everyone:
        draft.rows = len(everyone)
    ended = [False] * len(drafts)
    step = 1
    while not all(ended):
        step += 1
        batch.place(step)
        positions = batch.newest.tolist()
        logits = forward(model, batch, [draft.tokens[-1] for draft in drafts], positions)
        batch.advance(step)
        proposed = logits.argmax(dim=-1).tolist()
        for row, draft in enumerate(drafts):
            if ended[row]:
                continue
            draft.peak = max(draft.peak, batch.filled(row))
            request.note(draft, batch.kept(row))
            request.next_token(draft, logits[row], proposed[row])
            ended[row] = request.done(draft)
            if ended[row]:
                draft.retained = mean_count(batch.kept(row))
        alive = [row for row, over in enumerate(ended) if not over]
        if 0 < len(alive) <= len(drafts) // 2:
            batch.check()
            batch.select(alive)
            drafts, ended = [drafts[row] for row in alive], [False] * len(alive)
    batch.check()
    for draft in everyone:
        draft.seconds += time.perf_counter() - started


def forward(
    model: PreTrainedModel, session: FirstStep | DecodeBatch, tokens: list[int], positions: list[int]
) -> Tensor:
    """Feed one token per row at its true position and return the logits, [R, vocabulary]."""
    device = model.get_input_embeddings().weight.device
    output = model(
        input_ids=torch.tensor(tokens, device=device)[:, None],
        position_ids=torch.tensor(positions, device=device)[:, None],
        cache=SessionCache(session),
        use_cache=True,
        session=session,
    )
    return output.logits[:, -1]


def mean_count(kept: Tensor) -> float:
    """Return how many slots of a row are filled, mean over units; positions are [UK, UH, C], -1 where free."""
    return float((kept >= 0).sum(-1).double().mean())


def as_lists(kept: Tensor, scope: str) -> Kept:
    """Return the positions of a row, [UK, UH, C] with -1 where free, as sorted lists nested as the scope asks."""
    lists = [[sorted(position for position in head if position >= 0) for head in layer] for layer in kept.tolist()]
    if scope == PER_HEAD:
        return lists
    return [layer[0] for layer in lists] if scope == PER_LAYER else lists[0][0]


def cache_bytes(prompt: PromptCache, capacity: int) -> int:
    """Return the bytes of keys and values of all layers with `capacity` slots in each full-attention layer."""
    return sum(
        layer.slots.slot_bytes * layer.window if isinstance(layer, Ring) else layer.slot_bytes * capacity
        for layer in prompt.layers
    )


def finish(draft: Draft, request: Request, prompt_tokens: int, prefill_seconds: float) -> Generation:
    """Freeze a draft."""
    steps = len(draft.tokens) - 1
    row = Row(draft.policy, prompt_tokens, 0)
    return Generation(
        tokens=draft.tokens,
        stop="eos" if request.forced is None and draft.tokens[-1] in request.eos else "length",
        prompt_tokens=prompt_tokens,
        budget_tokens=row.budget(max(steps, 1)),
        retained_tokens=draft.retained,
        peak_tokens=draft.peak,
        evictions=prompt_tokens + steps - draft.retained,
        cache_bytes=draft.bytes,
        batch_rows=draft.rows,
        prefill_seconds=prefill_seconds,
        decode_seconds=draft.seconds,
        kept=draft.kept if request.trace else None,
        logits=torch.stack(draft.logits) if request.return_logits else None,
    )
