"""Prefill each prompt once, decode it under many policies."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from inertia.decoding.batches import batch_bytes, decode, forward
from inertia.decoding.checks import check
from inertia.decoding.choice import choose
from inertia.decoding.prefill import Prefilled, compress, prefill, read_on
from inertia.decoding.request import Observation, PromptFormat, Request, Stopping, TokensPrompt
from inertia.decoding.result import Generation
from inertia.decoding.row import GrowingRow, mean_count
from inertia.decoding.sampling import Sampling
from inertia.eviction.attention import attention_of, decoding_attention
from inertia.eviction.cut import first_cut
from inertia.eviction.execution import Execution
from inertia.eviction.keep_sets import Row
from inertia.eviction.layers import Layers, layers_of
from inertia.eviction.policy import Policy
from inertia.eviction.prompt import Prompt
from inertia.eviction.session import FirstStep

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def generate(
    model: PreTrainedModel,
    input_ids: Tensor | TokensPrompt | Sequence[Tensor | TokensPrompt],
    policies: Sequence[Policy],
    max_new_tokens: int | None = None,
    *,
    eos_token_id: int | Sequence[int] | None = None,
    trace: bool = False,
    stopping: Stopping | None = None,
    observe: Observation | None = None,
    prompt_format: PromptFormat | None = None,
    sampling: Sampling | None = None,
    execution: Execution | None = None,
) -> list[Generation] | list[list[Generation]]:
    """Decode prompts under several policies, with one prefill per prompt for all of them.

    The first token comes from the prefill, so n tokens take n - 1 decode steps. Step 1 sees the whole prompt under
    every policy; the cut to the budget comes after it. Policies that compress the prompt go through a first step of
    their own. After its cut a row holds nothing but the slots that it keeps, and rows of all prompts and policies go on
    together. Each result equals that of running its prompt and policy alone, up to float rounding of the batched
    products.

    Args:
        model: a causal language model of transformers; its attention implementation is used for the prefill. That, and
            its training mode, which is off meanwhile, are restored on any exit.
        input_ids: LongTensor [1, L0], or a `TokensPrompt` that says more about it; several prompts as a list.
        policies: at least one.
        max_new_tokens: most tokens to generate, at least 1; with `eos_token_id` short for a `stopping`.
        eos_token_id: one id, several, or None to run to the limit.
        trace: record the kept positions after every decode step; short for an `observe`.
        stopping: when answers end, in place of the two above.
        observe: what is kept of the steps beside the tokens.
        prompt_format: how the prompts were made, for stop strings and for compressors that word requests of their own.
        sampling: how tokens are drawn; None for greedy decoding.
        execution: how to compute it; None for the defaults.

    Returns:
        One Generation per policy, in their order, or one per sample of each; for a list of prompts, one such list per
        prompt.

    Raises:
        ValueError: a bad shape or dtype, ids outside the vocabulary, an empty prompt, no policy, a limit below 1,
            forced tokens fewer than the limit, a prompt that does not fit the model's window together with the new
            tokens, or a policy that this prompt or model does not allow; nothing has been decoded then.
        FloatingPointError: a scorer gave NaN or infinite scores.

    Example:
        >>> policy = preset("inertiakv", alpha=0.8, compression_ratio=0.9)
        >>> generate(model, input_ids, [policy], max_new_tokens=32)[0].tokens
    """
    if (stopping is None) == (max_new_tokens is None) or (stopping is not None and eos_token_id is not None):
        raise ValueError("give either max_new_tokens (and eos_token_id) or stopping, which says both.")
    if trace and observe is not None:
        raise ValueError("give either trace=True or observe, which says it.")
    single = isinstance(input_ids, Tensor | TokensPrompt)
    prompts = [
        each if isinstance(each, TokensPrompt) else TokensPrompt(each)
        for each in ([input_ids] if single else input_ids)
    ]
    request = Request(
        Stopping(max_new_tokens, eos_token_id) if stopping is None else stopping,
        Observation(trace) if observe is None else observe,
        prompt_format or PromptFormat(),
        execution or Execution(),
        sampling,
    )
    check(model, prompts, policies, request)
    with torch.inference_mode(), evaluating(model):
        found = together(model, request, prompts, policies)
    return found[0] if single else found


def together(
    model: PreTrainedModel,
    request: Request,
    prompts: Sequence[TokensPrompt],
    policies: Sequence[Policy],
    first: int = 0,
) -> list[list[Generation]]:
    """Return the generations per prompt and policy; where memory runs out, those of each half by itself.

    Args:
        model: the model.
        request: the call.
        prompts: its prompts, or some of them.
        policies: its policies.
        first: index of the first of these (prompt, policy, sample) in the call.
    """
    try:
        return in_one_go(model, request, prompts, policies, first)
    except torch.OutOfMemoryError as error:
        # Whoever looks on would see tokens twice.
        if len(prompts) == 1 or request.observe.on_logits is not None:
            raise
        half = len(prompts) // 2
        warnings.warn(
            f"memory ran out with {len(prompts)} prompts together ({error}); {half} at a time are decoded now. Give "
            "fewer prompts, or a smaller execution.batch_gib.",
            stacklevel=3,
        )
    # Outside the handler, which would keep the failed tensors alive.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    parts = (prompts[:half], first), (prompts[half:], first + half * len(policies) * request.samples)
    return [rows for part, start in parts for rows in together(model, request, part, policies, start)]


def in_one_go(
    model: PreTrainedModel, request: Request, prompts: Sequence[TokensPrompt], policies: Sequence[Policy], first: int
) -> list[list[Generation]]:
    """Return the generations per prompt and policy; see `together`.

    Prompts are taken in order, and their rows decode once another prompt's would not fit `execution.batch_gib`.
    """
    layers, most_bytes = layers_of(model.config), batch_bytes(model, request.execution)
    # Policies that mean the same are decoded once: two full caches could not both take the prompt's tensors over.
    same = [meaning(policy, number) for number, policy in enumerate(policies)]
    started, waiting = [], []
    for prompt in prompts:
        number = first + len(started) * len(policies) * request.samples
        rows = {
            (key, sample): GrowingRow(
                request,
                prompt,
                policies[same.index(key)],
                tuple(number + at * request.samples + sample for at, other in enumerate(same) if other == key),
                sample,
            )
            for key in dict.fromkeys(same)
            for sample in range(request.samples)
        }
        start(model, layers, list(rows.values()))
        started.append(rows)
        alive = [row for row in rows.values() if row.cut is not None]
        waiting += alive
        # The next prompt's rows are taken to be as large as this one's.
        if sum(row.cut.decode_bytes for row in [*waiting, *alive]) > most_bytes:
            decode(model, layers, waiting, most_bytes)
            waiting = []
    decode(model, layers, waiting, most_bytes)
    finished = [{key: row.finished() for key, row in rows.items()} for rows in started]
    return [[of_prompt[key, sample] for key in same for sample in range(request.samples)] for of_prompt in finished]


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Switch a model to eval mode inside the block: dropout would answer differently at each call."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def meaning(policy: Policy, number: int) -> str:
    """Return what a policy means, equal for equal ones; one that is no plain data is like no other."""
    try:
        return repr(policy.describe())
    except TypeError:
        return f"policy {number}"


def start(model: PreTrainedModel, layers: Layers, rows: Sequence[GrowingRow]) -> None:
    """Take the rows of one prompt through prefill, decode step 1 and first cut; the prompt's cache is free then."""
    policies = [row.policy for row in rows]
    request, prompt = rows[0].request, rows[0].prompt
    plain_full = any(not policy.evicts and policy.prefill.compressor is None for policy in policies)
    extra = request.steps if plain_full and request.samples == 1 else min(request.steps, 1)
    prefilled = prefill(model, layers, prompt, policies, extra, request)
    families: dict[str, list[GrowingRow]] = {}
    for row in rows:
        families.setdefault(repr(row.policy.prefill), []).append(row)
    # The plain prompt goes last: its first step adds a token to it, and compressors must not see that one.
    for family in sorted(families.values(), key=lambda members: members[0].policy.prefill.compressor is None):
        start_family(model, layers, prefilled, family)


def start_family(model: PreTrainedModel, layers: Layers, prefilled: Prefilled, family: Sequence[GrowingRow]) -> None:
    """Take rows that share what is left of their prompt through its first token, decode step 1 and the first cut."""
    started = time.perf_counter()
    request, source = family[0].request, family[0].prompt
    rule, steps = family[0].policy.prefill, family[0].request.steps
    prompt, logits = prefilled.plain, prefilled.logits
    if rule.compressor is not None:
        prompt, budget = compress(layers, prefilled, rule, steps)
        retained = float(prompt.counts().double().mean())
        if not rule.question_visible:
            logits = read_on(model, layers, prompt, source.ids[:, prompt.length :])
        for row in family:
            row.prefill_budget, row.prefill_retained = budget, retained
    before = time.perf_counter() - started
    chosen, _ = choose(family, logits.expand(len(family), -1))
    alive: dict[int, list[GrowingRow]] = {}
    for row, token in zip(family, chosen, strict=True):
        row.prefill_seconds = prefilled.seconds + before
        row.retained = float(prompt.counts().double().mean())
        row.peak = prompt.longest()
        row.cache_bytes = prompt_bytes(prompt, row.policy, steps)
        if not row.take(logits, token):
            alive.setdefault(row.tokens[0], []).append(row)
    cached = prompt.longest() if rule.compressor is None or rule.compressor.removes else prompt.length
    for members in alive.values():
        branch = prompt.branch() if len(alive) > 1 else prompt
        first_step(model, layers, prefilled, branch, cached, members, adopt=request.samples == 1)
        for row in members:
            row.decode_seconds = time.perf_counter() - started - before


def first_step(
    model: PreTrainedModel,
    layers: Layers,
    prefilled: Prefilled,
    prompt: Prompt,
    cached: int,
    rows: Sequence[GrowingRow],
    *,
    adopt: bool,
) -> None:
    """Take rows with the same first token through decode step 1 and the first cut.

    Args:
        model: the model.
        layers: its layers.
        prefilled: the prompt as it was read.
        prompt: what is left of it, with room for the token.
        cached: tokens cached when decoding starts, in the fullest head.
        rows: the rows.
        adopt: whether a full cache may take the prompt's tensors over.
    """
    request, source = rows[0].request, rows[0].prompt
    scorers = list(dict.fromkeys(row.policy.scorer for row in rows if row.policy.evicts))
    step = FirstStep(layers, prompt, scorers, source.seed, attention_of(request.execution.scoring))
    with decoding_attention(model):
        logits = forward(model, step, [rows[0].tokens[-1]], [step.seen])[0]
    step.check()
    chosen, _ = choose(rows, logits.expand(len(rows), -1))
    for row, token in zip(rows, chosen, strict=True):
        sequence = Row(row.policy, source.ids.shape[1], source.seed, cached, source.context_end)
        starts = prefilled.observed.get(repr((row.policy.start, source.ids.shape[1])))
        cut = first_cut(sequence, prompt, step.scores_of(row.policy), starts, request.steps, adopt=adopt)
        row.peak = int((cut.positions >= 0).sum(-1).max())
        row.retained = mean_count(cut.positions)
        row.cache_bytes = cut.row_bytes
        row.note(cut.positions, cut.scope)
        row.cut = None if row.take(logits, token) else cut


def prompt_bytes(prompt: Prompt, policy: Policy, steps: int) -> int:
    """Return the bytes that a prompt takes before the first cut, with the room that this policy alone asks for."""
    if prompt.ragged:
        return prompt.row_bytes()
    return prompt.row_bytes(prompt.length + (min(steps, 1) if policy.evicts else steps))
