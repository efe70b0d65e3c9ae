"""From a prompt's ids to its cache: the shared prefill, what compressors observe in it, and what they leave."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from inertia.decoding.request import PromptFormat, Request, TokensPrompt
from inertia.eviction.attention import decoding_attention
from inertia.eviction.cache import PromptCache, SessionCache
from inertia.eviction.layers import Layers
from inertia.eviction.policy import Policy
from inertia.eviction.prefill_rule import Prefill
from inertia.eviction.prefill_session import ContinuationSession, Observed, PrefillSession
from inertia.eviction.prompt import Prompt, compressed
from inertia.prefill.compressor import prompt_layer
from inertia.prefill.replay import replay_layer
from inertia.prefill.rotary import rotary_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass
class Prefilled:
    """A prompt that was read once, for every policy.

    Attributes:
        prompt: what was read.
        plain: its cache.
        earlier: sliding windows as they stood at the end of the context, by layer.
        logits: that choose the first token, [vocabulary].
        observed: scores by (observer, part), per eligible layer [Hkv, part].
        seconds: wall time of the prefill, observers and replays included.
    """

    prompt: TokensPrompt
    plain: Prompt
    earlier: dict[int, Any]
    logits: Tensor
    observed: dict[str, list[Tensor]]
    seconds: float


def prefill(
    model: PreTrainedModel,
    layers: Layers,
    prompt: TokensPrompt,
    policies: Sequence[Policy],
    extra: int,
    request: Request,
) -> Prefilled:
    """Read a prompt once and collect the scores that the policies' compressors and starts need.

    The keys and values of a context do not depend on the question behind it, so compression before the question is
    read needs no prefill of its own: it uses the first `context_end` tokens of this one.

    Args:
        model: the model.
        layers: its layers.
        prompt: what is read.
        policies: whose compressors observe.
        extra: slots to leave for tokens that the plain prompt will gain.
        request: the call; where nothing observes the prompt, its `prefill_chunk` tokens are read at a time.
    """
    started = time.perf_counter()
    input_ids, context_end, chunk = prompt.ids, prompt.context_end, request.execution.prefill_chunk
    length = input_ids.shape[1]
    wanted = observers(policies, length, context_end)
    early = any(part < length for _, part in wanted.values())
    first = length if chunk is None or wanted else min(chunk, length)
    cache = PromptCache(layers, length - first + extra, context_end if early else None)
    scores: dict[str, list[Tensor]] = {key: [] for key in wanted}
    arguments = {
        "input_ids": input_ids[:, :first],
        "position_ids": torch.arange(first, device=input_ids.device)[None],
        "use_cache": True,
        "logits_to_keep": 1,
    }
    scoring = {key: pair for key, pair in wanted.items() if not getattr(pair[0], "replay", False)}
    if scoring:

        def observe(seen: Observed) -> None:
            rotary = rotary_of(model, seen.number)
            for key, (observer, part) in scoring.items():
                scores[key].append(observer.score(prompt_layer(seen, part, rotary, len(layers.eligible))))

        session = PrefillSession(layers, cache, observe)
        with decoding_attention(model):
            output = model(cache=SessionCache(session), session=session, **arguments)
    else:
        output = model(cache=SessionCache(cache), **arguments)
    plain = Prompt(cache.layers, first, cache.heads(layers), len(layers.eligible), states=cache.states)
    logits = output.logits[0, -1]
    for start in range(first, length, first):
        logits = read_on(model, layers, plain, input_ids[:, start : start + first])
    for key, (observer, part) in wanted.items():
        if key not in scoring:
            held = {**plain.layers, **cache.earlier} if part < length else plain.layers
            context = Prompt(held, part, plain.heads, plain.depth)
            scores[key] = replayed(model, layers, context, observer, input_ids[:, :part], request.prompt_format)
    # Layers may lie on several devices; compressors rank over all of them.
    observed = {key: [score.to(plain.device) for score in found] for key, found in scores.items()}
    return Prefilled(prompt, plain, cache.earlier, logits, observed, time.perf_counter() - started)


def observers(policies: Sequence[Policy], length: int, context_end: int | None) -> dict[str, tuple[Any, int]]:
    """Return what observes the prefill, by its key in `Prefilled.observed`, with how many tokens it looks at."""
    found: dict[str, tuple[Any, int]] = {}
    for policy in policies:
        if policy.prefill.compressor is not None:
            part = policy.prefill.part(length, context_end)
            found[repr((policy.prefill.compressor, part))] = (policy.prefill.compressor, part)
        if policy.start is not None and policy.evicts:
            found[repr((policy.start, length))] = (policy.start, length)
    return found


def replayed(
    model: PreTrainedModel,
    layers: Layers,
    context: Prompt,
    compressor: Any,
    part: Tensor,
    prompt_format: PromptFormat,
) -> list[Tensor]:
    """Return the scores of a compressor that lets the model read the prompt again, [Hkv, part] per eligible layer.

    Args:
        model: the model.
        layers: its layers.
        context: the part as it is cached; its sliding windows as they stood at its end.
        compressor: which one.
        part: ids of the compressed part, [1, part].
        prompt_format: for the compressor's requests.
    """
    scores: list[Tensor] = []
    for replay in compressor.replays(
        prompt_format.tokenizer,
        part[0].tolist(),
        chat_template=prompt_format.chat_template,
        template_arguments=prompt_format.template_variables,
    ):
        found: list[Tensor] = []

        def observe(seen: Observed, replay: Any = replay, found: list[Tensor] = found) -> None:
            found.append(compressor.score_replay(replay_layer(seen, replay, len(layers.eligible))))

        reading = ContinuationSession(layers, context, len(replay.ids), store=False, observer=observe)
        run_reading(model, reading, torch.tensor([replay.ids], device=part.device))
        scores = [torch.maximum(*pair) for pair in zip(scores, found, strict=True)] if scores else found
    return scores


def compress(layers: Layers, prefilled: Prefilled, rule: Prefill, steps: int) -> tuple[Prompt, int]:
    """Return what a compressor leaves of the prompt, with room for question and answer, and its budget in tokens."""
    length, context_end = prefilled.prompt.ids.shape[1], prefilled.prompt.context_end
    part = rule.part(length, context_end)
    budget = min(rule.budget.tokens(part, part), part)
    keep = rule.compressor.keep(prefilled.observed[repr((rule.compressor, part))], budget)
    windows = prefilled.plain.layers if part == length else prefilled.earlier
    room = length - part + steps
    return compressed(prefilled.plain, windows, layers, keep, room, rule.compressor.removes), budget


def read_on(model: PreTrainedModel, layers: Layers, prompt: Prompt, ids: Tensor) -> Tensor:
    """Read ids [1, N] after a cached prompt, store them there, and return the last logits, [vocabulary]."""
    reading = ContinuationSession(layers, prompt, ids.shape[1], store=True)
    logits = run_reading(model, reading, ids)
    reading.finish()
    return logits


def run_reading(model: PreTrainedModel, reading: ContinuationSession, ids: Tensor) -> Tensor:
    """Feed ids [1, N] through a reading session and return the last logits, [vocabulary]."""
    positions = torch.arange(reading.seen, reading.seen + ids.shape[1], device=ids.device)[None]
    with decoding_attention(model):
        output = model(
            input_ids=ids,
            position_ids=positions,
            cache=SessionCache(reading),
            session=reading,
            use_cache=True,
            logits_to_keep=1,
        )
    return output.logits[0, -1]
