"""transformers' own `generate` under a decode policy: a cache that evicts, for the span of a `with` block."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from inertia.decoding.generation import evaluating
from inertia.eviction import checks
from inertia.eviction.attention import attending, attention_function
from inertia.eviction.cache import PromptCache, SessionCache
from inertia.eviction.cut import first_cut
from inertia.eviction.keep_sets import Row
from inertia.eviction.layers import layers_of
from inertia.eviction.policy import SHARED, Policy
from inertia.eviction.prefill_session import Observed
from inertia.eviction.prompt import Prompt
from inertia.eviction.session import DecodeBatch, FirstStep
from inertia.eviction.support import check_model
from inertia.prefill.compressor import prompt_layer
from inertia.prefill.rotary import rotary_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Attention functions are registered by name, for good: each block has its own, so that blocks may be nested.
_NUMBERS = count()


@contextmanager
def evicting(
    model: PreTrainedModel,
    policy: Policy,
    *,
    max_new_tokens: int = 1024,
    seed: int = 0,
    context_end: int | None = None,
) -> Iterator[SessionCache]:
    """Let a model's own `generate` decode one prompt under a policy; after the block the model is as before.

    Greedy tokens equal those of `inertia.generate`; streamers, pipelines, sampling and stopping criteria are
    transformers' own.

    Args:
        model: a causal language model of transformers.
        policy: a decode policy; one that compresses the prompt is refused.
        max_new_tokens: most tokens that will be generated: what grows with the answer is allocated for so many.
        seed: seed of the example, for scorers that draw.
        context_end: first position of the question, for policies that protect it.

    Yields:
        The cache to give to `generate`; it serves one prompt.

    Raises:
        ValueError: the model or policy does not allow it; inside the block: several prompts or beams, drafts of an
            assistant, a prompt in pieces or with padding, a second prompt, or more tokens than were announced.

    Example:
        >>> with inertia.evicting(model, inertia.preset("inertiakv", tokens=512)) as cache:
        ...     out = model.generate(**inputs, cache=cache, max_new_tokens=64, do_sample=False)
    """
    from transformers import AttentionMaskInterface

    check_model(model)
    checks.integer("max_new_tokens", max_new_tokens, low=1)
    layers = layers_of(model.config)
    if policy.prefill.compressor is not None:
        raise ValueError("inertia.evicting takes decode policies only; compress prompts with inertia.generate.")
    if layers.stateful:
        raise ValueError(
            f"model type {model.config.model_type!r} has layers with a state, which no cache of a `with` block can "
            "follow; use inertia.generate."
        )
    if policy.evicts:
        _ = policy.aggregation.linear(len(layers.eligible)) if policy.scope == SHARED else policy.aggregation.unit()
        if hasattr(policy.scorer, "check"):
            policy.scorer.check(model.config)
    name, before = f"inertia_evicting_{next(_NUMBERS)}", model.config._attn_implementation
    session = OnePrompt(model, policy, max_new_tokens - 1, seed, context_end)
    # Masks are built as the model's own attention wants them: the prompt is read by that.
    AttentionMaskInterface.register(name, AttentionMaskInterface()[before])
    with evaluating(model), attending(model, name, session.attention(before)):
        yield SessionCache(session)
        session.check()


class OnePrompt:
    """A session that finds out by itself where the model stands: prompt, decode step 1, first cut, later steps."""

    def __init__(self, model: PreTrainedModel, policy: Policy, steps: int, seed: int, context_end: int | None) -> None:
        """Wait for the prompt."""
        self.model, self.policy, self.steps, self.seed, self.context_end = model, policy, steps, seed, context_end
        self.layers = layers_of(model.config)
        self.states: dict[int, Any] = {}
        self.seen = 0
        self.step = 0
        self.cache = PromptCache(self.layers, steps if not policy.evicts else 1)
        self.starts: list[Tensor] = []
        self.prompt_tokens = 0
        self.now: FirstStep | DecodeBatch | None = None

    def write(self, layer_idx: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store what a layer read, and return what it attends to; with its first layer, a forward begins."""
        rows, tokens = keys.shape[0], keys.shape[2]
        if rows != 1:
            raise ValueError(
                f"inertia.evicting decodes one prompt with one answer, but the model was given {rows} rows; several "
                "prompts, beams and return sequences are refused. Use inertia.generate for several prompts."
            )
        if layer_idx == 0:
            self._begin(tokens)
        if self.now is None:
            return self.cache.write(layer_idx, keys, values)
        return self.now.write(layer_idx, keys, values)

    def attention(self, before: str) -> Any:
        """Return the attention function of the block; the prompt is read by the attention that the model had before."""
        from transformers import AttentionInterface

        known = AttentionInterface()

        def attend(
            module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
        ) -> tuple[Tensor, Any]:
            if self.now is not None:
                # Slots know by themselves which of them are filled; the model's mask would be of another length.
                return attention_function(module, query, key, value, None, session=self.now, **kwargs)
            if mask is not None and self._padded(mask):
                raise ValueError("inertia.evicting takes no padding; give the prompt alone, without a mask of zeros.")
            self._observe(module.layer_idx, query, key, value, kwargs.get("scaling"), kwargs.get("softcap"))
            # Eager attention is in no registry: each model's file has its own.
            own = known.get(before) or sys.modules[type(module).__module__].eager_attention_forward
            return own(module, query, key, value, mask, **kwargs)

        return attend

    def check(self) -> None:
        """Stop on NaN or infinite utilities."""
        if isinstance(self.now, DecodeBatch):
            self.now.check()

    def _begin(self, tokens: int) -> None:
        """Go on to the next forward: finish the step before, make room for this one."""
        if self.seen and tokens != 1:
            raise ValueError(
                f"inertia.evicting was given {tokens} tokens after the prompt; drafts of an assistant, prompts in "
                "pieces and a second prompt are refused. Open a block of its own for each prompt."
            )
        if not self.seen:
            self.seen = self.prompt_tokens = tokens
            Row(self.policy, tokens, self.seed, tokens, self.context_end).protection()
            return
        self.step += 1
        if self.step > self.steps:
            raise ValueError(
                f"max_new_tokens={self.steps + 1} of inertia.evicting is exhausted; announce as many tokens as "
                "generate may make."
            )
        self.seen += 1
        if self.now is None:
            self.now = self._first_step()
            return
        if self.step == 2:
            self.now.check()
            row = Row(self.policy, self.prompt_tokens, self.seed, self.prompt_tokens, self.context_end)
            starts = self.starts or None
            cut = first_cut(row, self.now.prompt, self.now.scores_of(self.policy), starts, self.steps)
            self.now = DecodeBatch(self.layers, [cut], self.steps)
        else:
            self.now.advance(self.step - 1)
        self.now.place(self.step)

    def _first_step(self) -> FirstStep:
        """Return decode step 1 over the prompt that was read."""
        cache = self.cache
        prompt = Prompt(cache.layers, self.prompt_tokens, cache.heads(self.layers), len(self.layers.eligible))
        del self.cache
        return FirstStep(self.layers, prompt, [self.policy.scorer] if self.policy.evicts else [], self.seed)

    def _observe(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, softcap: float | None
    ) -> None:
        """Show the prompt to what a policy starts from."""
        if self.policy.start is None or not self.policy.evicts or layer not in self.layers.eligible:
            return
        index = self.layers.eligible.index(layer)
        seen = Observed(query[0], key[0], value[0], scaling, softcap, layer, index)
        rotary = rotary_of(self.model, layer)
        made = self.policy.start.score(prompt_layer(seen, self.prompt_tokens, rotary, len(self.layers.eligible)))
        self.starts.append(made.to(next(iter(self.cache.layers.values())).keys.device))

    @staticmethod
    def _padded(mask: Tensor) -> bool:
        """Tell whether some token may not even see itself: padding hides it."""
        allowed = mask if mask.dtype == torch.bool else mask >= 0
        return not bool(allowed.diagonal(dim1=-2, dim2=-1).all())
