"""What one example of a group asks of the model: calls of `generate`, and the batches that each decodes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inertia.eviction.execution import CAPACITY_SPREAD
from inertia.eviction.policy import Policy
from inertia.methods import full_cache

# Tokens behind the context (question, end of the template, answer prefix): they are read after a compression.
QUESTION = 64


@dataclass(frozen=True)
class Call:
    """One prompt decoded under some policies.

    Attributes:
        prompt: its tokens.
        policies: at least one; they share the prefill and the first decode step.
        limit: most new tokens, which slots are laid out for.
        made: new tokens that are expected of each policy.
    """

    prompt: int
    policies: tuple[Policy, ...]
    limit: int
    made: float

    @property
    def steps(self) -> int:
        """Most decode steps: the first token comes from the prefill."""
        return self.limit - 1

    @property
    def prefill(self) -> int:
        """Tokens read, once for all policies; a compressor that replays the context reads it again."""
        return self.prompt * (1 + len({repr(p.prefill.compressor) for p in self.policies if replays(p)}))

    @property
    def alone(self) -> int:
        """Tokens that would be read if every policy ran alone."""
        return sum(self.prompt * (1 + replays(policy)) for policy in self.policies)

    @property
    def decoded(self) -> float:
        """New tokens of all policies."""
        return len(self.policies) * self.made


@dataclass(frozen=True)
class Batch:
    """Rows that decode together.

    Attributes:
        rows: how many.
        capacity: slots of each in a full-attention layer.
        adopted: whether it goes on in the prompt's own tensors, as a plain full cache does.
    """

    rows: int
    capacity: int
    adopted: bool


@dataclass(frozen=True)
class Asked:
    """How the examples of one task are asked.

    Attributes:
        prompt: tokens of a prompt.
        limit: most new tokens.
        made: new tokens that are expected, at most `limit`.
        second: most new tokens of a second call, which every policy makes alone and without the context; 0 for none.
        fidelity: whether the full cache's answer and the reference are followed as well.
    """

    prompt: int
    limit: int
    made: float
    second: int = 0
    fidelity: bool = False

    def calls(self, policies: Sequence[Policy]) -> list[Call]:
        """Return the calls that answer one example under some policies."""
        found = [Call(self.prompt, tuple(policies), self.limit, self.made)]
        if self.second:
            # The second prompt holds the question and what the policy made of it.
            again = round(self.made) + QUESTION
            found += [Call(again, (policy,), self.second, min(self.made, self.second)) for policy in policies]
        if self.fidelity:
            full = full_cache()
            others = tuple(policy for policy in policies if not plain_full(policy))
            if self.second or len(others) == len(policies):
                found.append(Call(self.prompt, (full,), self.limit, self.made))
            found += 2 * [Call(self.prompt, (full, *others), self.limit, self.made)]
        return found


def replays(policy: Policy) -> bool:
    """Tell whether a policy's compressor lets the model read the context again."""
    return bool(getattr(policy.prefill.compressor, "replay", False))


def plain_full(policy: Policy) -> bool:
    """Tell whether a policy keeps the whole prompt and every later token."""
    return not policy.evicts and policy.prefill.compressor is None


def cached(policy: Policy, prompt: int) -> int:
    """Return the tokens per head that decoding starts from: of heads that keep unequal shares, the mean."""
    rule = policy.prefill
    if rule.compressor is None or not rule.compressor.removes:
        return prompt
    part = prompt if rule.question_visible else max(prompt - QUESTION, 1)
    return min(rule.budget.tokens(part, part), part) + prompt - part


def capacity(policy: Policy, prompt: int, steps: int) -> int:
    """Return the slots that a row needs for its decode steps, newcomer included."""
    longest = cached(policy, prompt) + steps
    budget = policy.budget.tokens(prompt, prompt + steps)
    return longest if budget is None else min(budget + 1, longest)


def batches(call: Call) -> list[Batch]:
    """Return the batches of a call; none where no token is decoded after the second."""
    if call.steps < 2:
        return []
    full = [Batch(1, call.prompt + call.steps, True) for policy in call.policies if plain_full(policy)]
    sizes = sorted(capacity(policy, call.prompt, call.steps) for policy in call.policies if not plain_full(policy))
    groups: list[list[int]] = []
    for size in sizes:
        if groups and size <= CAPACITY_SPREAD * groups[-1][0]:
            groups[-1].append(size)
        else:
            groups.append([size])
    # A batch is as wide as its widest row.
    return [*full, *(Batch(len(group), group[-1], False) for group in groups)]


def families(call: Call) -> dict[str, Policy]:
    """Return one policy for every different treatment of the prompt."""
    return {repr(policy.prefill): policy for policy in call.policies}
