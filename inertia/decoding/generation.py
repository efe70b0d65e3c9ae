"""Prefill a prompt once, decode it under many policies."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from inertia.decoding.prefill import Asking, Prefilled, compress, prefill, read_on
from inertia.eviction.attention import attention_of, decoding_attention
from inertia.eviction.cache import SessionCache
from inertia.eviction.cut import Cut, first_cut
from inertia.eviction.execution import CAPACITY_SPREAD, GIB, KERNEL, RECOMPUTE, Execution
from inertia.eviction.layers import Layers, layers_of
from inertia.eviction.policy import PER_HEAD, PER_LAYER, SHARED, Policy
from inertia.eviction.prompt import Prompt
from inertia.eviction.session import DecodeBatch, FirstStep, unit_key
from inertia.eviction.support import check_ids, check_length, check_model, check_observed, check_pieces, context_window
from inertia.eviction.units import Row

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Two best logits closer than this may change places in another batch: what fp32 rounding does to batched products.
LOGIT_ROUNDING = 1e-4

Kept = list[int] | list[list[int]] | list[list[list[int]]]


@dataclass(frozen=True)
class Generation:
    """What one policy made of one prompt.

    Attributes:
        tokens: generated ids, EOS included.
        stop: "eos", "string" or "length".
        prompt_tokens: L0.
        budget_tokens: the decode budget after the last decode step, None for no limit.
        prefill_budget_tokens: what of the compressed part of the prompt could stay, per KV head; None without
            compression.
        prefill_retained_tokens: what of it did stay, mean over KV heads and eligible layers.
        retained_tokens: tokens cached after the last decode step, mean over the eligible units.
        peak_tokens: most tokens that a unit held between two steps after the first cut (the prompt's before any).
        evictions: tokens evicted, mean over the eligible units.
        cache_bytes: bytes of the keys and values of all layers that this row's slots take when it decodes alone; beside
            wider rows, a batch pads it to the widest.
        batch_rows: rows that decoded together with this one at the start.
        prefill_seconds: wall time of the prefill, shared by all policies.
        decode_seconds: wall time of step 1 and of the whole batch of this row.
        near_ties: choices of a token or a victim that were within rounding of another one while this row shared its
            batch; without any, its tokens are those of running alone.
        kept: with trace, per decode step the sorted true positions still cached after it: a list of positions
            (shared), [K] lists (per_layer) or [K][Hkv] lists (per_head, and every scope once a prompt was compressed).
        logits: with return_logits, fp32 logits that chose each token, [tokens, vocabulary].
    """

    tokens: list[int]
    stop: str
    prompt_tokens: int
    budget_tokens: int | None
    prefill_budget_tokens: int | None
    prefill_retained_tokens: float | None
    retained_tokens: float
    peak_tokens: int
    evictions: float
    cache_bytes: int
    batch_rows: int
    prefill_seconds: float
    decode_seconds: float
    near_ties: int = 0
    kept: list[Kept] | None = None
    logits: Tensor | None = None


@dataclass
class Draft:
    """A generation while it grows."""

    policy: Policy
    numbers: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    prefill_budget: int | None = None
    prefill_retained: float | None = None
    prefill_seconds: float = 0.0
    retained: float = 0.0
    peak: int = 0
    bytes: int = 0
    rows: int = 1
    seconds: float = 0.0
    near_ties: int = 0
    stop: str = "length"


@dataclass(frozen=True)
class Request:
    """What the caller asked for, beside prompt and policies."""

    limit: int
    eos: frozenset[int]
    trace: bool
    forced: tuple[int, ...] | None
    return_logits: bool
    stop_strings: tuple[str, ...] = ()
    min_new_tokens: int = 0
    tokenizer: Any = None
    on_logits: Callable[[int, int, Tensor], None] | None = None
    execution: Execution = Execution()

    def propose(self, logits: Tensor, made: int) -> Tensor:
        """Return the greedy choice of each row, [R]; EOS is out of the question below the least number of tokens.

        Args:
            logits: [R, vocabulary].
            made: tokens generated so far.
        """
        if made < self.min_new_tokens and self.eos:
            logits = logits.index_fill(-1, torch.tensor(sorted(self.eos), device=logits.device), float("-inf"))
        return logits.argmax(dim=-1)

    def next_token(self, draft: Draft, logits: Tensor, proposed: int) -> None:
        """Append the next token of a row: the forced one, or the proposed one."""
        index = len(draft.tokens)
        draft.tokens.append(proposed if self.forced is None else self.forced[index])
        if self.return_logits:
            draft.logits.append(logits.float().cpu())
        if self.on_logits is not None:
            for number in draft.numbers:
                self.on_logits(number, index, logits)

    def note(self, draft: Draft, kept: Tensor, scope: str) -> None:
        """Trace the positions that a row holds after a step, [UK, UH, C], nested as the scope of its units asks."""
        if self.trace:
            draft.kept.append(as_lists(kept, scope))

    def done(self, draft: Draft) -> bool:
        """Tell whether a row ends here, and note why."""
        if self.forced is None and draft.tokens[-1] in self.eos:
            draft.stop = "eos"
        elif self.forced is None and self.stop_strings and self._stopped(draft):
            draft.stop = "string"
        else:
            return len(draft.tokens) >= self.limit
        return True

    def _stopped(self, draft: Draft) -> bool:
        """Tell whether the decoded answer holds a stop string; the prompt plays no part."""
        text = self.tokenizer.decode(draft.tokens, skip_special_tokens=True)
        return before_stop(text, self.stop_strings) != text


def before_stop(text: str, stop_strings: Sequence[str]) -> str:
    """Return a text up to its earliest stop string; the whole text where there is none."""
    ends = [at for stop in stop_strings if (at := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text


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
    context_end: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    chat_template: bool = True,
    template_arguments: Mapping[str, Any] | None = None,
    stop_strings: Sequence[str] = (),
    min_new_tokens: int = 0,
    on_logits: Callable[[int, int, Tensor], None] | None = None,
    execution: Execution | None = None,
) -> list[Generation]:
    """Decode one prompt greedily under several policies, with one prefill and one first decode step for all of them.

    The first token comes from the prefill, so n tokens take n - 1 decode steps. Step 1 sees the whole prompt under
    every policy; the cut to the budget comes after it. Policies that compress the prompt go through a first step of
    their own. Each result equals that of running its policy alone, up to float rounding of the batched products.

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
        context_end: first position of the question, for policies that compress the context alone or protect the
            question.
        tokenizer: for compressors that word requests of their own (KVzip).
        chat_template: whether the prompt was rendered with the tokenizer's chat template, for the same.
        template_arguments: variables that it was rendered with, for the same.
        stop_strings: end a row once its decoded answer holds one; `tokens` still hold it. Needs a tokenizer.
        min_new_tokens: no EOS before this many tokens.
        on_logits: called as on_logits(policy, token, logits) with what each token was chosen from, for callers that
            reduce logits too large to keep: the policy's index, the token's index, logits [vocabulary] as the model
            gave them. From token 2 on the plain full cache comes before all others. Whoever keeps logits copies them.
        execution: how to compute it; None for the defaults.

    Returns:
        One Generation per policy, in their order.

    Raises:
        ValueError: bad shape, empty prompt, no policy, a limit below 1, forced tokens fewer than the limit, a prompt
            that does not fit the model's window together with the new tokens, or a policy that this prompt or model
            does not allow; nothing has been decoded then.
        FloatingPointError: a scorer gave NaN or infinite scores.

    Example:
        >>> policy = preset("inertiakv", alpha=0.8, compression_ratio=0.9)
        >>> generate(model, input_ids, [policy], max_new_tokens=32)[0].tokens
    """
    execution = Execution() if execution is None else execution
    check_request(model, input_ids, policies, max_new_tokens, forced_tokens, context_end, tokenizer)
    check_execution(model, input_ids, policies, execution)
    first = min(execution.prefill_chunk or input_ids.shape[1], input_ids.shape[1])
    check_length(model.config, input_ids.shape[1], max_new_tokens, first)
    eos = () if eos_token_id is None else (eos_token_id,) if isinstance(eos_token_id, int) else tuple(eos_token_id)
    forced = None if forced_tokens is None else tuple(forced_tokens)
    if stop_strings and (tokenizer is None or not all(stop_strings)):
        raise ValueError(
            f"stop_strings={list(stop_strings)} need a tokenizer and may not be empty; "
            "give tokenizer=... and no empty string."
        )
    request = Request(
        max_new_tokens,
        frozenset(eos),
        trace,
        forced,
        return_logits,
        tuple(stop_strings),
        min_new_tokens,
        tokenizer,
        on_logits,
        execution,
    )
    attention = attention_of(execution.scoring)
    layers = layers_of(model.config)
    length = input_ids.shape[1]
    steps = max_new_tokens - 1
    plain_full = any(not policy.evicts and policy.prefill.compressor is None for policy in policies)
    # Policies that mean the same are decoded once: two full caches could not both take the prompt's tensors over.
    same = [meaning(policy, number) for number, policy in enumerate(policies)]
    drafts = [
        Draft(policies[same.index(key)], tuple(number for number, other in enumerate(same) if other == key))
        for key in dict.fromkeys(same)
    ]
    families: dict[str, list[Draft]] = {}
    for draft in drafts:
        families.setdefault(repr(draft.policy.prefill), []).append(draft)
    alive: list[tuple[Draft, Cut]] = []
    with torch.inference_mode():
        prefilled = prefill(
            model,
            layers,
            input_ids,
            policies,
            steps if plain_full else min(steps, 1),
            context_end,
            Asking(tokenizer, chat_template, template_arguments),
            execution.prefill_chunk,
        )
        # The plain prompt goes last: its first step adds a token to it, and compressors must not see that one.
        for family in sorted(families.values(), key=lambda members: members[0].policy.prefill.compressor is None):
            alive += start_family(model, layers, prefilled, family, request, steps, seed)
        # Batches are built before any of them runs on, since the full cache's batch takes the prompt's tensors over.
        groups = by_capacity(alive, steps, execution.batch_bytes)
        batches = [
            DecodeBatch(
                layers,
                [item for _, item in group],
                steps,
                adopt=len(group) == 1 and adopts(group[0][1]),
                attention=attention,
            )
            for group in groups
        ]
        del alive, prefilled
        members = [[draft for draft, _ in group] for group in groups]
        del groups
        with decoding_attention(model):
            for group in members:
                run_batch(model, batches.pop(0), group, request)
    finished = {same[draft.numbers[0]]: finish(draft, request, length) for draft in drafts}
    return [finished[key] for key in same]


def meaning(policy: Policy, number: int) -> str:
    """Return what a policy means, equal for equal ones; one that is no plain data is like no other."""
    try:
        return repr(policy.describe())
    except TypeError:
        return f"policy {number}"


def check_request(
    model: PreTrainedModel,
    input_ids: Tensor,
    policies: Sequence[Policy],
    max_new_tokens: int,
    forced_tokens: Sequence[int] | None,
    context_end: int | None,
    tokenizer: Any,
) -> None:
    """Refuse a call that cannot be carried out.

    Raises:
        ValueError: naming the value, what is allowed and the fix.
    """
    if input_ids.ndim != 2 or input_ids.shape[0] != 1 or input_ids.shape[1] < 1:
        raise ValueError(f"input_ids has shape {list(input_ids.shape)}; give one prompt as [1, L0] with L0 >= 1.")
    length = input_ids.shape[1]
    if not policies:
        raise ValueError("policies is empty; give at least one Policy, such as inertia.preset('full_cache').")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens} is too small; give at least 1.")
    if forced_tokens is not None and len(forced_tokens) < max_new_tokens:
        raise ValueError(
            f"forced_tokens has {len(forced_tokens)} tokens but max_new_tokens={max_new_tokens}; "
            "give as many tokens as are to be forced."
        )
    check_model(model)
    check_ids(model, input_ids)
    if forced_tokens is not None:
        check_ids(model, torch.tensor(list(forced_tokens)))
    window = context_window(model.config)
    if window is not None and length + max_new_tokens > window:
        raise ValueError(
            f"prompt of {length} + {max_new_tokens} new tokens = {length + max_new_tokens} exceeds the model's window "
            f"of {window} tokens; shorten the prompt or max_new_tokens."
        )
    for policy in policies:
        if not isinstance(policy, Policy):
            raise ValueError(f"policies holds {policy!r}; give Policy values, such as inertia.preset('inertiakv').")
        check_policy(model, policy, length, context_end, tokenizer)


def check_execution(
    model: PreTrainedModel, input_ids: Tensor, policies: Sequence[Policy], execution: Execution
) -> None:
    """Refuse ways of computing that this model, device or policy does not allow.

    Raises:
        ValueError: naming the value, what is allowed and the fix.
    """
    capped = getattr(model.config.get_text_config(), "attn_logit_softcapping", None)
    if execution.scoring == RECOMPUTE and capped is not None:
        raise ValueError(
            "execution.scoring='recompute' uses the library's attention, which cannot cap its logits as this model "
            f"does (at {capped}); set execution.scoring=fused."
        )
    if execution.scoring == KERNEL:
        from inertia.eviction.kernels import available

        if not available(input_ids.device):
            raise ValueError(
                f"execution.scoring='kernel' needs a CUDA device and triton, but the prompt lies on "
                f"{input_ids.device}; install the extra 'gpu' and set backbone.device=cuda, or set "
                "execution.scoring=fused."
            )
    chunk = execution.prefill_chunk
    if chunk is None or chunk >= input_ids.shape[1]:
        return
    check_pieces(model.config, chunk)
    for policy in policies:
        observer = policy.prefill.compressor or (policy.start if policy.evicts else None)
        if observer is not None:
            raise ValueError(
                f"execution.prefill_chunk={chunk} reads the prompt in pieces, but {observer.kind!r} of a policy must "
                "observe it whole; set execution.prefill_chunk=null."
            )


def check_policy(model: PreTrainedModel, policy: Policy, length: int, context_end: int | None, tokenizer: Any) -> None:
    """Refuse a policy that this prompt or model does not allow.

    Raises:
        ValueError: naming the value, what is allowed and the fix.
    """
    layers = layers_of(model.config)
    Row(policy, length, 0, length, context_end).protection()
    if policy.evicts:
        if hasattr(policy.scorer, "check"):
            policy.scorer.check(model.config)
        rule = policy.aggregation
        _ = rule.linear(len(layers.eligible)) if policy.scope == SHARED else rule.unit()
    compressor = policy.prefill.compressor
    prefills = model.config._attn_implementation
    if (compressor is not None or (policy.evicts and policy.start is not None)) and prefills != "sdpa":
        raise ValueError(
            f"the model prefills with attention {prefills!r}, but prompts are observed with 'sdpa' only; set "
            "backbone.prefill_attention=sdpa, or take a policy that neither compresses nor starts from the prompt."
        )
    if compressor is None and policy.evicts and policy.start is not None:
        check_observed(model.config, whole=True, again=False)
    if compressor is not None:
        part = policy.prefill.part(length, context_end)
        check_observed(model.config, whole=part == length, again=compressor.replay)
        compressor.check(part, policy.prefill.budget.tokens(part, part))
        if compressor.replay and tokenizer is None:
            raise ValueError(
                f"prefill={compressor.kind} words requests of its own and needs a tokenizer; give tokenizer=..., "
                "or take another compressor."
            )


def start_family(
    model: PreTrainedModel,
    layers: Layers,
    prefilled: Prefilled,
    family: list[Draft],
    request: Request,
    steps: int,
    seed: int,
) -> list[tuple[Draft, Cut]]:
    """Take policies that share a prompt through its first token and decode step 1, and return those that go on."""
    started = time.perf_counter()
    rule = family[0].policy.prefill
    prompt, logits = prefilled.plain, prefilled.logits
    if rule.compressor is not None:
        prompt, budget = compress(layers, prefilled, rule, room=prefilled.room(rule, steps))
        retained = float(prompt.counts().double().mean())
        if not rule.question_visible:
            logits = read_on(model, layers, prompt, prefilled.input_ids[:, prompt.length :])
        for draft in family:
            draft.prefill_budget, draft.prefill_retained = budget, retained
    before = time.perf_counter() - started
    proposed = int(request.propose(logits[None], 0))
    for draft in family:
        draft.prefill_seconds = prefilled.seconds + before
        request.next_token(draft, logits, proposed)
        draft.retained = float(prompt.counts().double().mean())
        draft.peak = prompt.longest()
        draft.bytes = prompt_bytes(prompt, draft.policy, steps)
    if any([request.done(draft) for draft in family]):
        return []
    scorers = list(dict.fromkeys(draft.policy.scorer for draft in family if draft.policy.evicts))
    cached = prompt.longest() if rule.compressor is None or rule.compressor.removes else prompt.length
    step = FirstStep(layers, prompt, scorers, seed, attention_of(request.execution.scoring))
    with decoding_attention(model):
        logits = forward(model, step, [family[0].tokens[-1]], [step.seen])[0]
    step.check()
    proposed = int(request.propose(logits[None], 1))
    alive = []
    for draft in family:
        row = Row(draft.policy, prefilled.input_ids.shape[1], seed, cached, prefilled.context_end)
        starts = prefilled.observed.get(repr((draft.policy.start, row.prompt_tokens)))
        item = first_cut(row, prompt, step.scores_of(draft.policy), starts)
        draft.peak = int((item.positions >= 0).sum(-1).max())
        draft.retained = mean_count(item.positions)
        draft.bytes = slot_bytes(prompt, row, steps)
        request.note(draft, item.positions, scope_of(item))
        request.next_token(draft, logits, proposed)
        draft.seconds = time.perf_counter() - started - before
        if not request.done(draft):
            alive.append((draft, item))
    return alive


def scope_of(item: Cut) -> str:
    """Return the scope of a row's units: heads where the prompt was compressed, shared where nothing is evicted."""
    if item.prompt.ragged:
        return PER_HEAD
    return item.row.policy.scope if item.row.policy.evicts else SHARED


def adopts(item: Cut) -> bool:
    """Tell whether a row is the plain full cache, which may go on in the prompt's own tensors."""
    return not item.row.policy.evicts and not item.prompt.ragged


def by_capacity(
    alive: list[tuple[Draft, Cut]], steps: int, most_bytes: float = float("inf")
) -> list[list[tuple[Draft, Cut]]]:
    """Split rows into batches of similar capacity, rows of one kind side by side; a plain full cache goes alone.

    It goes first: the prompt's tensors, which it takes over, are then free before the others run.

    Args:
        alive: the rows.
        steps: decode steps in all.
        most_bytes: of slots and tables in one batch; a row that is bigger by itself goes alone.
    """
    groups: list[list[tuple[Draft, Cut]]] = []
    split = False
    rows = [entry for entry in alive if not adopts(entry[1])]
    for entry in sorted(rows, key=lambda entry: entry[1].row.capacity(steps)):
        smallest = groups[-1][0][1].row.capacity(steps) if groups else None
        alike = smallest is not None and entry[1].row.capacity(steps) <= CAPACITY_SPREAD * smallest
        # Every row is padded to the widest, which is this one.
        fits = alike and (len(groups[-1]) + 1) * decode_bytes(entry[1], steps) <= most_bytes
        split = split or (alike and not fits)
        if fits:
            groups[-1].append(entry)
        else:
            groups.append([entry])
    if split:
        warnings.warn(
            f"policies are decoded in more batches than one to stay below execution.batch_gib={most_bytes / GIB:g}; "
            "raise it where memory allows.",
            stacklevel=2,
        )
    for group in groups:
        group.sort(key=lambda entry: unit_key(entry[1]))
    full = [[entry] for entry in alive if adopts(entry[1])]
    # At most one: policies that mean the same are one row.
    return full + groups


def decode_bytes(item: Cut, steps: int) -> int:
    """Return the bytes that a row takes while it decodes: slots of all layers, utilities, positions and scores."""
    row, prompt = item.row, item.prompt
    units = item.positions.shape[0] * item.positions.shape[1]
    tables = units * (4 + 8) + prompt.depth * item.positions.shape[1] * 4
    return slot_bytes(prompt, row, steps) + tables * row.capacity(steps)


def run_batch(model: PreTrainedModel, batch: DecodeBatch, drafts: list[Draft], request: Request) -> None:
    """Decode rows together until each has ended, dropping ended rows once they are half of the batch."""
    started = time.perf_counter()
    everyone = list(drafts)
    for draft in everyone:
        draft.rows = len(everyone)
    ended = [False] * len(drafts)
    ties = torch.zeros(len(drafts), dtype=torch.long, device=batch.device)
    step = 1
    while not all(ended):
        step += 1
        batch.place(step)
        positions = batch.newest.tolist()
        tokens = [draft.tokens[-1] for draft in drafts]
        logits = forward(model, batch, tokens, positions, compiled=request.execution.compiled)
        batch.advance(step)
        if len(drafts) > 1:
            ties += near_choices(logits).to(ties.device)
        proposed = request.propose(logits, step).tolist()
        for row, draft in enumerate(drafts):
            if ended[row]:
                continue
            draft.peak = max(draft.peak, batch.filled(row))
            request.note(draft, batch.kept(row), batch.scope(row))
            request.next_token(draft, logits[row], proposed[row])
            ended[row] = request.done(draft)
            if ended[row]:
                draft.retained = mean_count(batch.kept(row))
                draft.near_ties = int(ties[row]) + batch.near_ties(row)
        alive = [row for row, over in enumerate(ended) if not over]
        if 0 < len(alive) <= len(drafts) // 2:
            batch.check()
            batch.select(alive)
            ties = ties[alive]
            drafts, ended = [drafts[row] for row in alive], [False] * len(alive)
    batch.check()
    for draft in everyone:
        draft.seconds += time.perf_counter() - started


def near_choices(logits: Tensor) -> Tensor:
    """Return per row 1 where a second token was within rounding of the best, else 0; logits are [R, vocabulary]."""
    logits = logits.float()
    within = logits >= logits.amax(dim=-1, keepdim=True) - LOGIT_ROUNDING
    return (within.sum(-1) > 1).long()


def forward(
    model: PreTrainedModel,
    session: FirstStep | DecodeBatch,
    tokens: list[int],
    positions: list[int],
    *,
    compiled: bool = False,
) -> Tensor:
    """Feed one token per row at its true position and return the logits, [R, vocabulary]."""
    device = model.get_input_embeddings().weight.device
    ids = torch.tensor(tokens, device=device)[:, None]
    position_ids = torch.tensor(positions, device=device)[:, None]
    if not compiled:
        return decode_step(model, session, ids, position_ids)
    # Compiled code is kept by torch with the function; wrapping it anew costs nothing. Shapes change with the prompt.
    with torch._dynamo.config.patch(recompile_limit=64):
        return torch.compile(decode_step)(model, session, ids, position_ids)


def decode_step(
    model: PreTrainedModel, session: FirstStep | DecodeBatch, input_ids: Tensor, position_ids: Tensor
) -> Tensor:
    """Take one token per row, [R, 1], through the model and the session; return the logits, [R, vocabulary]."""
    output = model(
        input_ids=input_ids,
        position_ids=position_ids,
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


def slot_bytes(prompt: Prompt, row: Row, steps: int) -> int:
    """Return the bytes of keys and values of all layers that a row's slots take after the first cut."""
    return prompt.row_bytes(row.capacity(steps))


def prompt_bytes(prompt: Prompt, policy: Policy, steps: int) -> int:
    """Return the bytes that a prompt takes before the first cut, with the room that this policy alone asks for."""
    if prompt.ragged:
        return prompt.row_bytes()
    return prompt.row_bytes(prompt.length + (min(steps, 1) if policy.evicts else steps))


def finish(draft: Draft, request: Request, prompt_tokens: int) -> Generation:
    """Freeze a draft."""
    steps = len(draft.tokens) - 1
    return Generation(
        tokens=draft.tokens,
        stop=draft.stop,
        prompt_tokens=prompt_tokens,
        budget_tokens=draft.policy.budget.tokens(prompt_tokens, prompt_tokens + max(steps, 1)),
        prefill_budget_tokens=draft.prefill_budget,
        prefill_retained_tokens=draft.prefill_retained,
        retained_tokens=draft.retained,
        peak_tokens=draft.peak,
        evictions=prompt_tokens + steps - draft.retained,
        cache_bytes=draft.bytes,
        batch_rows=draft.rows,
        prefill_seconds=draft.prefill_seconds,
        decode_seconds=draft.seconds,
        near_ties=draft.near_ties,
        kept=draft.kept if request.trace else None,
        logits=torch.stack(draft.logits) if request.return_logits else None,
    )
