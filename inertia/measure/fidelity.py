"""How far a policy is from the full cache: next-token distributions along the full cache's own answer.

The full cache's greedy answer is fed token by token through the decode path under every policy (teacher forcing), and
so is the reference answer. At every token the policy's next-token distribution is held against the full cache's. This
says something on any prompt, also where a small model's answers are all wrong.

Tokens are counted from 0. The distributions of tokens 0 and 1 come from the prefill and from the first decode step,
which see the whole prompt under every policy that acts while decoding; they are equal by construction. They are left
out of every number, also for policies that compress the prompt and differ there already, so that all policies are
compared over the same tokens; what they show is in the telemetry, apart. An answer of one or two tokens leaves nothing
to compare: its numbers are None, and its count of tokens is 0.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from inertia.eviction.policy import Policy
from inertia.methods import full_cache

if TYPE_CHECKING:
    from torch import Tensor

    from inertia.benchmarks.example import Example
    from inertia.benchmarks.render import Prompt
    from inertia.measure.answers import Answer, TaskRunner

EQUAL = 2
"""Tokens whose distributions are equal by construction."""

DIGITS = 7
"""Significant digits of the per-token numbers in the telemetry; totals are summed before rounding."""


@dataclass
class Followed:
    """What one policy's distributions showed along a forced text, token by token.

    Attributes:
        kl: KL(full cache || policy), in nats.
        agree: 1 where both would choose the same token, else 0.
        nll: negative log-likelihood of the forced token under the policy, in nats.
    """

    kl: list[float] = field(default_factory=list)
    agree: list[int] = field(default_factory=list)
    nll: list[float] = field(default_factory=list)


@dataclass
class Comparison:
    """Compares logits with the full cache's as they come (row 0 is the full cache), so that none need to be kept.

    Only the full cache's stay, [tokens, vocabulary], and those that come before the full cache's own.
    """

    tokens: Sequence[int]
    rows: list[Followed]
    full: list[Tensor] = field(default_factory=list)
    waiting: list[tuple[int, int, Tensor]] = field(default_factory=list)

    def __call__(self, row: int, token: int, logits: Tensor) -> None:
        """Take the logits [vocabulary] of one row's token."""
        if row == 0:
            self.full.append(logits.clone())
        if token < len(self.full):
            self.compare(row, token, logits)
        else:
            self.waiting.append((row, token, logits.clone()))
        if row == 0:
            ready = [item for item in self.waiting if item[1] == token]
            self.waiting = [item for item in self.waiting if item[1] != token]
            for item in ready:
                self.compare(*item)

    def compare(self, row: int, token: int, logits: Tensor) -> None:
        """Append what one token's logits show, in fp64.

        Raises:
            FloatingPointError: the logits are NaN or infinite.
        """
        full = self.full[token]
        ours, theirs = logits.double().log_softmax(-1), full.double().log_softmax(-1)
        # Rounding can leave a sum of next to nothing below zero, where no divergence is.
        kl = max(float((theirs.exp() * (theirs - ours)).sum()), 0.0)
        nll = -float(ours[self.tokens[token]])
        if not (math.isfinite(kl) and math.isfinite(nll)):
            raise FloatingPointError(
                f"token {token} of row {row}: KL {kl} and NLL {nll} are not finite; the model's logits are NaN or "
                "infinite, try a wider dtype."
            )
        found = self.rows[row]
        found.kl.append(kl)
        found.agree.append(int(logits.argmax() == full.argmax()))
        found.nll.append(nll)


def with_fidelity(
    runner: TaskRunner, example: Example, policies: Sequence[Policy], answers: Sequence[Answer], seed: int
) -> list[Answer]:
    """Return the answers with each policy's fidelity to the full cache among their metrics and telemetry.

    Metrics, in nats and per example:
        fidelity_kl, fidelity_kl_total: KL(full cache || policy) along the full cache's answer, mean over its counted
            tokens and their sum.
        fidelity_agreement: share of the counted tokens at which both would choose the same token.
        fidelity_tokens: counted tokens of that answer.
        reference_nll, reference_nll_total: negative log-likelihood of the reference answer, likewise.
        reference_nll_rise: reference_nll minus that of the full cache on the same tokens.
        reference_tokens: counted tokens of the reference answer.

    Telemetry "fidelity" holds the same per token ("answer": kl, agree; "reference": nll), the tokens that are left out
    ("first"), and "followed", which is equal for two rows if and only if they followed the same answer to the same
    prompt.

    Protocols: a forced choice follows the forced sentence; of two calls the first is followed, which has the document.

    Args:
        runner: what answered the example.
        example: the example.
        policies: what it was answered under.
        answers: their answers; the full cache's is followed if there is one, else it is decoded here.
        seed: seed of the example, for scorers that draw.

    Returns:
        New answers, in the same order.

    Deviations: the reference answer is ended after as many tokens as the answer may have ("reference_cut").
    """
    leader = followed_answer(runner, example, policies, answers, seed)
    path = leader.generation.tokens
    others = [policy for policy in policies if not is_full_cache(policy)]
    along = follow(runner, leader.prompt, path, others, seed)
    told = reference_ids(runner, example, leader.prompt)
    limit = max(example.max_new_tokens, len(path))
    reference = follow(runner, leader.prompt, told[:limit], others, seed)
    about = {
        "followed": digest(leader.prompt.sha256, path),
        "answer_tokens": len(path),
        "reference_tokens": len(told[:limit]),
        "reference_cut": len(told) > limit,
    }
    numbers = count(1)
    rows = [0 if is_full_cache(policy) else next(numbers) for policy in policies]
    return [
        replace(
            answer,
            metrics={**answer.metrics, **metrics(along[row], reference[row], reference[0])},
            telemetry={**answer.telemetry, "fidelity": {**about, **per_token(along[row], reference[row])}},
        )
        for answer, row in zip(answers, rows, strict=True)
    ]


def is_full_cache(policy: Policy) -> bool:
    """Tell whether a policy leaves the whole prompt and every later token in the cache."""
    return not policy.evicts and policy.prefill.compressor is None


def followed_answer(
    runner: TaskRunner, example: Example, policies: Sequence[Policy], answers: Sequence[Answer], seed: int
) -> Answer:
    """Return the full cache's answer to the prompt that holds the context."""
    if runner.benchmark.protocol(example.task) == "two_calls":
        # What is there is the answer to the second prompt, which has no document.
        return runner.free(example, [full_cache()], seed)[0]
    for policy, answer in zip(policies, answers, strict=True):
        if is_full_cache(policy):
            return answer
    return runner.answers(example, [full_cache()], seed)[0]


def follow(
    runner: TaskRunner, prompt: Prompt, tokens: Sequence[int], policies: Sequence[Policy], seed: int
) -> list[Followed]:
    """Force a text under the full cache and some policies and compare them, the full cache first.

    Args:
        runner: what decodes.
        prompt: what comes before the text.
        tokens: the text; nothing is run for an empty one.
        policies: beside the full cache.
        seed: seed of the example.
    """
    from inertia.decoding.request import Observation

    rows = [Followed() for _ in range(1 + len(policies))]
    if tokens:
        comparison = Comparison(tokens, rows)
        stopping, observe = runner.stopping(len(tokens)), Observation(on_logits=comparison)
        runner.generate(prompt, [full_cache(), *policies], seed, stopping, observe, forced_tokens=tokens)
    return rows


def reference_ids(runner: TaskRunner, example: Example, prompt: Prompt) -> list[int]:
    """Return the ids of the reference answer as it would go on after a prompt.

    It is encoded by itself, after a blank where the prompt does not end in white space, as tokenizers split words.
    """
    from inertia.benchmarks.render import sanitise

    text = sanitise(runner.benchmark.reference_answer(example))
    if not text.strip():
        return []
    blank = " " if prompt.text and not prompt.text[-1].isspace() else ""
    return runner.backbone.tokenizer(blank + text.strip(), add_special_tokens=False, verbose=False)["input_ids"]


def metrics(along: Followed, reference: Followed, full: Followed) -> dict[str, Any]:
    """Return one policy's numbers of one example, None where no token counts.

    Args:
        along: the policy along the full cache's answer.
        reference: the policy along the reference answer.
        full: the full cache along the reference answer.
    """
    kl, agree = along.kl[EQUAL:], along.agree[EQUAL:]
    nll, base = reference.nll[EQUAL:], full.nll[EQUAL:]
    return {
        "fidelity_kl": mean(kl),
        "fidelity_kl_total": math.fsum(kl) if kl else None,
        "fidelity_agreement": mean(agree),
        "fidelity_tokens": len(kl),
        "reference_nll": mean(nll),
        "reference_nll_total": math.fsum(nll) if nll else None,
        "reference_nll_rise": mean([ours - theirs for ours, theirs in zip(nll, base, strict=True)]),
        "reference_tokens": len(nll),
    }


def per_token(along: Followed, reference: Followed) -> dict[str, Any]:
    """Return one policy's numbers token by token, those that are left out apart."""
    kl, nll = rounded(along.kl), rounded(reference.nll)
    return {
        "first": {"kl": kl[:EQUAL], "agree": along.agree[:EQUAL], "nll": nll[:EQUAL]},
        "answer": {"kl": kl[EQUAL:], "agree": along.agree[EQUAL:]},
        "reference": {"nll": nll[EQUAL:]},
    }


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, None for no values."""
    return math.fsum(values) / len(values) if values else None


def rounded(values: Sequence[float]) -> list[float]:
    """Return values with `DIGITS` significant digits."""
    return [float(f"{value:.{DIGITS}g}") for value in values]


def digest(prompt_sha256: str, tokens: Sequence[int]) -> str:
    """Return what names an answer to a prompt."""
    return "a" + hashlib.sha256(f"{prompt_sha256}/{','.join(map(str, tokens))}".encode()).hexdigest()[:15]
