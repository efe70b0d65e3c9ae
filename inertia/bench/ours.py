"""Decoding under policies, through the public `generate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from inertia.bench.masked import Seen, with_newcomer
from inertia.bench.prompt import CachedPrompt, Replayed
from inertia.bench.runs import LEAD, Run

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from inertia.eviction.policy import Policy

# Tokens of the prompt beyond the budget: what step 1 sees and the first cut removes.
EXCESS = 64


class Traced(NamedTuple):
    """A short decoding that says what it kept.

    Attributes:
        tokens: per policy, what was chosen after each forward.
        seen: per policy and forward, the positions that its token saw.
        kept: per policy and forward, fewest and most tokens of any unit after it.
    """

    tokens: tuple[tuple[int, ...], ...]
    seen: tuple[tuple[Seen, ...], ...]
    kept: tuple[tuple[tuple[int, int], ...], ...]


def run(
    model: PreTrainedModel,
    prompt: CachedPrompt,
    policies: Sequence[Policy],
    scoring: str,
    steps: int,
    mark: Callable[[], None],
) -> Run:
    """Decode one prompt under policies, as rows of one batch.

    Args:
        model: the model.
        prompt: what every policy starts from.
        policies: one per row.
        scoring: where scores come from, see `Execution`.
        steps: timed steps; LEAD more come before.
        mark: called after every step.
    """
    from inertia import Execution, Observation, generate

    front = Replayed(model, prompt)

    def stepped(policy: int, token: int, logits: Tensor) -> None:
        # Token 0 comes from the prefill.
        if policy == 0 and token > 0:
            mark()

    observe, execution = Observation(on_logits=stepped), Execution(scoring=scoring)
    found = generate(front, front.ids, policies, steps + LEAD + 1, observe=observe, execution=execution)
    return Run(
        tuple(tuple(one.tokens[1:]) for one in found),
        sum(one.cache_bytes for one in found),
        tuple(one.retained_tokens for one in found),
    )


def traced(
    model: PreTrainedModel, prompt: CachedPrompt, policies: Sequence[Policy], scoring: str, forwards: int
) -> Traced:
    """Decode a few tokens, untimed, and say what was kept at every step."""
    from inertia import Execution, generate

    front = Replayed(model, prompt)
    found = generate(front, front.ids, policies, forwards + 1, trace=True, execution=Execution(scoring=scoring))
    length = prompt.length
    return Traced(
        tuple(tuple(one.tokens[1:]) for one in found),
        tuple(
            (range(length + 1), *(with_newcomer(kept, length + 1 + at) for at, kept in enumerate(one.kept[:-1])))
            for one in found
        ),
        tuple(tuple(sizes(kept) for kept in one.kept) for one in found),
    )


def sizes(kept: Seen) -> tuple[int, int]:
    """Return the fewest and the most positions in any of some nested sets."""
    if not kept or not isinstance(kept[0], Sequence):
        return len(kept), len(kept)
    fewest, most = zip(*map(sizes, kept), strict=True)
    return min(fewest), max(most)
