"""Measure the rows of one shape and one number of kept tokens, interleaved, each checked in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bench import masked, plain
from bench.bandwidth import read_speed, token_bytes
from bench.cases import KVPRESS, PLAIN, Case
from bench.figures import typical
from bench.kvpress_client import KVPress
from bench.prompt import CachedPrompt, Replayed
from bench.timing import LEAD, Mark, Run, peak_while_decoding, timed
from inertia import Execution, Generation, Observation, Policy, generate

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# How far below the reference's best logit a chosen token's may lie there: twice what rounding does to a logit.
TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 0.25, torch.float16: 0.05}
# Forwards whose kept sets are traced and compared with the masked cache; the reference needs all sets in memory.
TRACED = 5
# Tokens of the prompt beyond the budget: what step 1 sees and the first cut removes.
EXCESS = 64
Tick = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """What the rows of one table share.

    Attributes:
        model: the model.
        prompt: the longest cached prompt; rows use its first tokens.
        kept: tokens.
        steps: timed steps of one repeat.
        device: of the model.
        kvpress: its side, or None.
        most_bytes: of keys and values that one row of the table may take.
    """

    model: PreTrainedModel
    prompt: CachedPrompt
    kept: int
    steps: int
    device: str
    kvpress: KVPress | None = None
    most_bytes: float = float("inf")

    def length(self, case: Case) -> int:
        """Return how many tokens a row has cached before its first step."""
        if case.evicts:
            return self.kept + EXCESS
        return plain.start(case.kind or plain.GROWING, self.kept, self.steps)


@dataclass
class Measured:
    """What was measured of one row.

    Attributes:
        case: the row.
        left_out: why there is nothing; None where there is.
        failed: whether that is because it raised.
        seconds: per repeat, of each timed step.
        checks: what was compared, and whether it was equal.
        held: bytes of keys and values.
        peak: most bytes of tensors alive while decoding, beyond weights; None where not measured.
        live: tokens that attention could see at the end, mean over rows.
        tokens: chosen, per batch row.
    """

    case: Case
    left_out: str | None = None
    failed: bool = False
    seconds: list[list[float]] = field(default_factory=list)
    checks: dict[str, bool] = field(default_factory=dict)
    held: int = 0
    peak: int | None = None
    live: float = 0.0
    tokens: tuple[tuple[int, ...], ...] = ()

    def cost(self, share: float = 0.5) -> float:
        """Return the seconds of a step over all repeats, the median or another quantile."""
        return typical(self.seconds, self.case.period, self.case.dear, share)

    def costs(self) -> list[float]:
        """Return the seconds of a step, per repeat."""
        return [typical([seconds], self.case.period, self.case.dear) for seconds in self.seconds]

    def fail(self, problem: Exception) -> None:
        """Leave the row out, in words; the other rows go on."""
        self.left_out, self.failed = f"{type(problem).__name__}: {problem}", True


def decoded(
    setting: Setting, case: Case, policies: Sequence[Policy], forwards: int, **observed: Any
) -> list[Generation]:
    """Decode a row's prompt under policies, as rows of one batch, through the public `generate`."""
    prompt = setting.prompt.first(setting.length(case))
    execution = Execution(scoring=case.scoring)
    # The first token comes from the prefill.
    return generate(
        Replayed(setting.model, prompt), prompt.ids[:, :-1], policies, forwards + 1, execution=execution, **observed
    )


def decode(case: Case, setting: Setting, mark: Mark) -> Run:
    """Decode a plain row or one of ours, calling `mark` after every step."""
    if case.side == PLAIN:
        return plain.run(case.kind, setting.model, setting.prompt, setting.kept, setting.steps, mark, case.rows)

    def stepped(policy: int, token: int, logits: Tensor) -> None:
        if policy == 0 and token > 0:
            mark()

    found = decoded(setting, case, case.policies, setting.steps + LEAD, observe=Observation(on_logits=stepped))
    return Run(
        tuple(tuple(one.tokens[1:]) for one in found),
        sum(one.cache_bytes for one in found),
        tuple(one.retained_tokens for one in found),
    )


def by_kvpress(command: str, case: Case, setting: Setting, interval: int = 1) -> tuple[dict[str, Any], Run]:
    """Return kvpress's answer to "run" or "count", and what it decoded."""
    sizes = {"kept": setting.kept, "length": setting.length(case), "steps": setting.steps}
    found = setting.kvpress.ask(command, method=case.kind, interval=interval, **sizes)
    return found, Run((tuple(found["tokens"]),), found["held"], (found["live"],))


def once(case: Case, setting: Setting, interval: int = 1) -> tuple[list[float], Run]:
    """Decode once and return the seconds of each timed step, and what was decoded; `interval` is for kvpress."""
    if case.side == KVPRESS:
        found, run = by_kvpress("run", case, setting, interval)
        return found["seconds"], run
    with torch.inference_mode():
        return timed(lambda mark: decode(case, setting, mark), setting.device)


def counted(case: Case, setting: Setting) -> tuple[Run, int]:
    """Decode once, untimed, and return what was decoded and the most bytes that were alive meanwhile."""
    if case.side == KVPRESS:
        found, run = by_kvpress("count", case, setting)
        return run, found["peak"]
    with torch.inference_mode():
        return peak_while_decoding(lambda mark: decode(case, setting, mark), setting.device)


def within_rounding(setting: Setting, case: Case, chosen: Sequence[int], seen: Sequence[masked.Seen]) -> bool:
    """Tell whether each chosen token is the best one under the masked reference, up to rounding."""
    prompt = setting.prompt.first(setting.length(case))
    with torch.inference_mode():
        logits = masked.reference(setting.model, prompt, [int(prompt.ids[0, -1]), *chosen[:-1]], seen)
    return masked.gap(logits, chosen) <= TOLERANCE[setting.model.dtype]


def check_plain(case: Case, setting: Setting, run: Run) -> dict[str, bool]:
    """Compare a plain row with transformers' own `generate`, or with the masked cache."""
    checks = {}
    if case.kind == plain.GROWING:
        with torch.inference_mode():
            prompt = setting.prompt.first(setting.length(case))
            answer = plain.expected(setting.model, prompt, setting.steps + LEAD)
        checks["generate"] = list(run.tokens[0]) == answer
    else:
        seen = plain.seen(case.kind, setting.kept, setting.steps)
        checks["masked cache"] = within_rounding(setting, case, run.tokens[0], seen)
    if case.rows > 1:
        checks["rows alike"] = all(tokens == run.tokens[0] for tokens in run.tokens)
    return checks


def check_ours(case: Case, setting: Setting, run: Run) -> dict[str, bool]:
    """Compare a row of ours with the masked cache and its budget, and a batch with each policy alone."""
    length, forwards = setting.length(case), min(TRACED, setting.steps + LEAD)
    # One policy after the other, alone: a batch must give what each gives alone.
    ends = dict.fromkeys((0, len(case.policies) - 1))
    alone = {at: decoded(setting, case, [case.policies[at]], forwards, trace=True)[0] for at in ends}
    seen = {
        at: [range(length + 1), *(masked.with_newcomer(kept, length + n) for n, kept in enumerate(one.kept[:-1], 1))]
        for at, one in alone.items()
    }
    checks = {
        "masked cache": all(within_rounding(setting, case, alone[at].tokens[1:], seen[at]) for at in ends),
        "as alone" if case.rows > 1 else "same tokens traced": all(
            list(run.tokens[at][:forwards]) == alone[at].tokens[1:] for at in ends
        ),
    }
    if case.evicts:
        sizes = {masked.sizes(kept) for one in alone.values() for kept in one.kept}
        checks["budget"] = sizes == {(setting.kept, setting.kept)} and set(run.live) == {float(setting.kept)}
    return checks


def warm_up(case: Case, setting: Setting) -> Measured:
    """Decode a row once, untimed; check what it decodes and see what memory it takes."""
    found = Measured(case)
    needed = 2 * case.rows * token_bytes(setting.model) * (setting.kept + EXCESS)
    if needed > setting.most_bytes:
        found.left_out = f"needs {needed / 2**30:.1f} GiB, allowed are {setting.most_bytes / 2**30:.1f}"
        return found
    try:
        run, found.peak = counted(case, setting)
        found.held, found.live, found.tokens = run.held, sum(run.live) / len(run.live), run.tokens
        if case.side == KVPRESS:
            found.checks["budget"] = run.live[0] == setting.kept
        else:
            found.checks |= (check_plain if case.side == PLAIN else check_ours)(case, setting, run)
    except Exception as problem:
        found.fail(problem)
    return found


def measure(
    found: list[Measured],
    speeds: list[float],
    cases: Sequence[Case],
    setting: Setting,
    repeats: int,
    buffer: Tensor,
    tick: Tick = lambda name: None,
) -> None:
    """Measure all rows: warm-up and checks first, then every row once per repeat, in turn.

    Args:
        found: gets the rows while they are measured, so that an interrupt loses nothing.
        speeds: likewise gets the memory's speed, bytes per second, one per repeat.
        cases: the rows.
        setting: what they share.
        repeats: how often each is measured.
        buffer: whose reading, in its turn of every repeat, gives the memory's speed.
        tick: told the name of each row that is done, `repeats` + 1 times.
    """
    for case in cases:
        found.append(warm_up(case, setting))
        tick(case.name)
    compare(found)
    for _ in range(repeats):
        speeds.append(read_speed(buffer))
        for row in found:
            if row.left_out is None:
                repeat(row, setting)
            tick(row.case.name)


def repeat(row: Measured, setting: Setting) -> None:
    """Measure a row once more."""
    try:
        seconds, run = once(row.case, setting)
    except Exception as problem:
        row.fail(problem)
        return
    row.seconds.append(seconds)
    row.checks["repeats alike"] = row.checks.get("repeats alike", True) and run.tokens == row.tokens


def compare(found: Sequence[Measured]) -> None:
    """Compare the rows that must choose the same tokens."""
    tokens = {row.case.name: row.tokens for row in found if row.left_out is None}
    for row in found:
        if row.left_out is None and row.case.same_as in tokens:
            row.checks[f"as {row.case.same_as}"] = row.tokens == tokens[row.case.same_as]
