"""From a prompt's ids to its cache: the shared prefill, what compressors observe in it, and what they leave."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from inertia.eviction.attention import decoding_attention
from inertia.eviction.cache import PromptCache, SessionCache
from inertia.eviction.layers import Layers
from inertia.eviction.policy import Policy
from inertia.eviction.prefill_rule import Prefill
from inertia.eviction.prompt import Prompt, compressed
from inertia.eviction.reading import Observed, PromptReading, Reading

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Asking:
    """What a compressor needs to word requests of its own.

    Attributes:
        tokenizer: of the backbone, or None.
        chat_template: whether the prompt was rendered with its chat template.
        template_arguments: variables that it was rendered with.
    """

    tokenizer: Any
    chat_template: bool
    template_arguments: Mapping[str, Any] | None


@dataclass
class Prefilled:
    """A prompt that was read once, for every policy.

    Attributes:
        input_ids: [1, L0].
        plain: its cache.
        earlier: sliding windows as they stood at the end of the context, by layer.
        logits: that choose the first token, [vocabulary].
        context_end: first position of the question, or None.
        observed: scores by (observer, part), per eligible layer [Hkv, part].
        seconds: wall time of the prefill, observers and replays included.
    """

    input_ids: Tensor
    plain: Prompt
    earlier: dict[int, Any]
    logits: Tensor
    context_end: int | None
    observed: dict[str, list[Tensor]]
    seconds: float

    def room(self, rule: Prefill, steps: int) -> int:
        """Return the slots that a compressed prompt needs for the question and the answer."""
        length = self.input_ids.shape[1]
        return length - rule.part(length, self.context_end) + steps


def prefill(
    model: PreTrainedModel,
    layers: Layers,
    input_ids: Tensor,
    policies: Sequence[Policy],
    extra: int,
    context_end: int | None,
    asking: Asking,
    chunk: int | None = None,
) -> Prefilled:
    """Read a prompt once and collect the scores that the policies' compressors and starts need.

    The keys and values of a context do not depend on the question behind it, so compression before the question is
    read needs no prefill of its own: it uses the first `context_end` tokens of this one.

    Args:
        model: the model.
        layers: its layers.
        input_ids: [1, L0].
        policies: whose compressors observe.
        extra: slots to leave for tokens that the plain prompt will gain.
        context_end: first position of the question, or None.
        asking: for compressors that replay.
        chunk: read so many tokens at a time, where nothing observes the prompt; None for all at once.
    """
    started = time.perf_counter()
    length = input_ids.shape[1]
    wanted = observers(policies, length, context_end)
    early = any(part < length for _, part in wanted.values())
    first = length if chunk is None or wanted else min(chunk, length)
    cache = PromptCache(layers, length - first + extra, context_end if early else None)
    observed: dict[str, list[Tensor]] = {key: [] for key in wanted}
    arguments = {
        "input_ids": input_ids[:, :first],
        "position_ids": torch.arange(first, device=input_ids.device)[None],
        "use_cache": True,
        "logits_to_keep": 1,
    }
    scoring = {key: pair for key, pair in wanted.items() if not getattr(pair[0], "replay", False)}
    if scoring:
        observe = Scoring(model, layers, scoring, observed)
        session = PromptReading(layers, cache, observe)
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
            observed[key] = replayed(model, layers, plain, cache.earlier, observer, input_ids, part, asking)
    # Layers may lie on several devices; compressors rank over all of them.
    observed = {key: [score.to(plain.device) for score in scores] for key, scores in observed.items()}
    seconds = time.perf_counter() - started
    return Prefilled(input_ids, plain, cache.earlier, logits, context_end, observed, seconds)


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


class Scoring:
    """Shows each eligible layer of a prefill to the compressors, each cut to the part that it may see."""

    def __init__(
        self,
        model: PreTrainedModel,
        layers: Layers,
        wanted: dict[str, tuple[Any, int]],
        observed: dict[str, list[Tensor]],
    ) -> None:
        self.model, self.layers = model, layers
        self.wanted, self.observed = wanted, observed

    def __call__(self, seen: Observed) -> None:
        """Append every observer's scores of one layer."""
        from inertia.prefill.compressor import PromptLayer
        from inertia.prefill.rotary import rotary_of

        rotary = rotary_of(self.model, seen.number)
        for key, (observer, part) in self.wanted.items():
            cos, sin = rotary(torch.arange(part, device=seen.keys.device))
            self.observed[key].append(
                observer.score(
                    PromptLayer(
                        query=seen.query[:, :part],
                        keys=seen.keys[:, :part],
                        values=seen.values[:, :part],
                        scaling=seen.scaling,
                        cos=cos,
                        sin=sin,
                        rotary=rotary,
                        layer=seen.index,
                        layers=len(self.layers.eligible),
                        softcap=seen.softcap,
                    )
                )
            )


def replayed(
    model: PreTrainedModel,
    layers: Layers,
    plain: Prompt,
    earlier: dict[int, Any],
    compressor: Any,
    input_ids: Tensor,
    part: int,
    asking: Asking,
) -> list[Tensor]:
    """Return the scores of a compressor that lets the model read the prompt again, [Hkv, part] per eligible layer."""
    from inertia.prefill.replay import ReplayLayer

    length = input_ids.shape[1]
    held = plain.layers if part == length else {**plain.layers, **earlier}
    context = Prompt(held, part, plain.heads, plain.depth)
    scores: list[Tensor] = []
    for replay in compressor.replays(
        asking.tokenizer,
        input_ids[0, :part].tolist(),
        chat_template=asking.chat_template,
        template_arguments=asking.template_arguments,
    ):
        found: list[Tensor] = []

        def observe(seen: Observed, replay: Any = replay, found: list[Tensor] = found) -> None:
            found.append(
                compressor.score_replay(
                    ReplayLayer(
                        query=seen.query,
                        keys=seen.keys,
                        scaling=seen.scaling,
                        replay=replay,
                        layer=seen.index,
                        layers=len(layers.eligible),
                        softcap=seen.softcap,
                    )
                )
            )

        reading = Reading(layers, context, len(replay.ids), store=False, observer=observe)
        run_reading(model, reading, torch.tensor([replay.ids], device=input_ids.device))
        scores = [torch.maximum(*pair) for pair in zip(scores, found, strict=True)] if scores else found
    return scores


def compress(layers: Layers, prefilled: Prefilled, rule: Prefill, room: int) -> tuple[Prompt, int]:
    """Return what a compressor leaves of the prompt, with room for later tokens, and its budget in tokens."""
    length = prefilled.input_ids.shape[1]
    part = rule.part(length, prefilled.context_end)
    budget = min(rule.budget.tokens(part, part), part)
    keep = rule.compressor.keep(prefilled.observed[repr((rule.compressor, part))], budget)
    windows = prefilled.plain.layers if part == length else prefilled.earlier
    return compressed(prefilled.plain, windows, layers, keep, room, rule.compressor.removes), budget


def read_on(model: PreTrainedModel, layers: Layers, prompt: Prompt, ids: Tensor) -> Tensor:
    """Read ids [1, N] after a cached prompt, store them there, and return the last logits, [vocabulary]."""
    reading = Reading(layers, prompt, ids.shape[1], store=True)
    logits = run_reading(model, reading, ids)
    reading.finish()
    return logits


def run_reading(model: PreTrainedModel, reading: Reading, ids: Tensor) -> Tensor:
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
