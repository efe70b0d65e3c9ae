"""What a caller of `generate` says: the prompts, when answers end, and what is observed on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inertia.decoding.sampling import Sampling
from inertia.eviction import checks
from inertia.eviction.execution import Execution

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TokensPrompt:
    """One prompt as token ids.

    Attributes:
        ids: LongTensor [1, L0].
        context_end: first position of the question, for policies that compress the context alone or protect the
            question.
        seed: seed of the example, for scorers and samplers that draw.
        forced_tokens: feed these instead of the model's own choice (teacher forcing); as many as the limit count.
    """

    ids: Tensor
    context_end: int | None = None
    seed: int = 0
    forced_tokens: Sequence[int] | None = None


@dataclass(frozen=True)
class Stopping:
    """When an answer ends.

    Attributes:
        max_new_tokens: most tokens to generate, at least 1.
        eos_token_id: one id, several, or None to run to the limit.
        stop_strings: end a row once its decoded answer holds one; `tokens` still hold it. Needs a tokenizer.
        min_new_tokens: no EOS before this many tokens.
    """

    max_new_tokens: int
    eos_token_id: int | Sequence[int] | None = None
    stop_strings: Sequence[str] = ()
    min_new_tokens: int = 0

    def __post_init__(self) -> None:
        checks.integer("max_new_tokens", self.max_new_tokens, low=1)
        checks.integer("min_new_tokens", self.min_new_tokens, low=0)
        for each in self.eos:
            checks.integer("eos_token_id", each, low=0)

    @property
    def eos(self) -> frozenset[int]:
        """The ids that end an answer."""
        given = self.eos_token_id
        return frozenset(() if given is None else given if isinstance(given, Iterable) else (given,))


def before_stop(text: str, stop_strings: Sequence[str]) -> str:
    """Return a text up to its earliest stop string; the whole text where there is none."""
    ends = [at for stop in stop_strings if (at := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text


@dataclass(frozen=True)
class Observation:
    """What is kept or shown of the decode steps, beside the tokens.

    Attributes:
        trace: record the kept positions after every decode step.
        logits: keep the logits that each token was chosen from.
        on_logits: called as on_logits(row, token, logits) with what each token was chosen from, for callers that
            reduce logits too large to keep: the policy's index (counted over prompts, policies and samples, in this
            order of loops, where there are several),
            the token's index, logits [vocabulary] as the model gave them. From token 2 on plain full caches come
            before all others. Whoever keeps logits copies them.
    """

    trace: bool = False
    logits: bool = False
    on_logits: Callable[[int, int, Tensor], None] | None = None


@dataclass(frozen=True)
class PromptFormat:
    """How the prompts' ids were made, for stop strings and for compressors that word requests of their own (KVzip).

    Attributes:
        tokenizer: the backbone's.
        chat_template: whether prompts were rendered with its chat template.
        template_variables: variables that they were rendered with.
    """

    tokenizer: PreTrainedTokenizerBase | None = None
    chat_template: bool = True
    template_variables: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Request:
    """One call of `generate`, beside its model, prompts and policies; see the attributes' types."""

    stopping: Stopping
    observe: Observation = field(default_factory=Observation)
    prompt_format: PromptFormat = field(default_factory=PromptFormat)
    execution: Execution = field(default_factory=Execution)
    sampling: Sampling | None = None

    @property
    def samples(self) -> int:
        """Answers per prompt and policy."""
        return 1 if self.sampling is None else self.sampling.samples

    @property
    def steps(self) -> int:
        """Most decode steps: the first token comes from the prefill."""
        return self.stopping.max_new_tokens - 1
