"""Measure the rows of one shape and one number of kept tokens, interleaved, each checked in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from inertia.bench import masked, ours, plain
from inertia.bench.bandwidth import Reader, token_bytes
from inertia.bench.cases import KVPRESS, PLAIN, Case
from inertia.bench.figures import typical
from inertia.bench.kvpress_side import KVPressSide
from inertia.bench.memory import peak_while_decoding
from inertia.bench.prompt import CachedPrompt
from inertia.bench.runs import LEAD, Clock, Run, Work

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# How far below the reference's best logit a chosen token's may lie there: twice what rounding does to a logit.
TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 0.25, torch.float16: 0.05}
# Forwards whose kept sets are traced and compared with the masked cache; the reference needs all sets in memory.
TRACED = 5


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
    kvpress: KVPressSide | None = None
    most_bytes: float = float("inf")

    def length(self, case: Case) -> int:
        """Return how many tokens a row has cached before its first step."""
        if case.evicts:
            return self.kept + ours.EXCESS
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


def work_of(case: Case, setting: Setting) -> Work:
    """Return one decoding of a plain row or of ours."""
    if case.side == PLAIN:
        return lambda mark: plain.run(
            case.kind, setting.model, setting.prompt, setting.kept, setting.steps, mark, rows=case.rows
        )
    prompt = setting.prompt.first(setting.length(case))
    return lambda mark: ours.run(setting.model, prompt, case.policies, case.scoring, setting.steps, mark)


def once(case: Case, setting: Setting) -> tuple[list[float], Run]:
    """Decode once and return the seconds of each timed step, and what was decoded."""
    if case.side == KVPRESS:
        return setting.kvpress.run(case.kind, setting.kept, setting.length(case), setting.steps)
    clock = Clock(setting.device)
    with torch.inference_mode():
        run = work_of(case, setting)(clock)
    return clock.seconds(), run


def counted(case: Case, setting: Setting) -> tuple[Run, int]:
    """Decode once, untimed, and return what was decoded and the most bytes that were alive meanwhile."""
    if case.side == KVPRESS:
        return setting.kvpress.counted(case.kind, setting.kept, setting.length(case), setting.steps)
    with torch.inference_mode():
        return peak_while_decoding(work_of(case, setting), setting.device, LEAD)


def within_rounding(setting: Setting, prompt: CachedPrompt, chosen: Sequence[int], seen: Sequence) -> bool:
    """Tell whether each chosen token is the best one under the masked reference, up to rounding."""
    fed = [int(prompt.ids[0, -1]), *chosen[:-1]]
    with torch.inference_mode():
        logits = masked.reference(setting.model, prompt, fed, seen)
    return masked.gap(logits, chosen) <= TOLERANCE[setting.model.dtype]


def check_plain(case: Case, setting: Setting, run: Run) -> dict[str, bool]:
    """Compare a plain row with transformers' own `generate`, or with the masked cache."""
    length = setting.length(case)
    prompt = setting.prompt.first(length)
    checks = {}
    if case.kind == plain.GROWING:
        with torch.inference_mode():
            answer = plain.expected(setting.model, prompt, setting.steps + LEAD)
        checks["generate"] = list(run.tokens[0]) == answer
    else:
        seen = plain.seen(case.kind, setting.kept, setting.steps)
        checks["masked cache"] = within_rounding(setting, prompt, run.tokens[0], seen)
    if case.rows > 1:
        checks["rows alike"] = all(tokens == run.tokens[0] for tokens in run.tokens)
    return checks


def check_ours(case: Case, setting: Setting, run: Run) -> dict[str, bool]:
    """Compare a row of ours with the masked cache and its budget, and a batch with each policy alone."""
    prompt = setting.prompt.first(setting.length(case))
    forwards = min(TRACED, setting.steps + LEAD)
    # One policy after the other, alone: a batch must give what each gives alone.
    alone = [
        ours.traced(setting.model, prompt, [policy], case.scoring, forwards)
        for policy in {id(policy): policy for policy in (case.policies[0], case.policies[-1])}.values()
    ]
    checks = {
        "masked cache": all(within_rounding(setting, prompt, found.tokens[0], found.seen[0]) for found in alone),
        "same tokens traced": all(
            tokens[:forwards] == found.tokens[0]
            for tokens, found in zip((run.tokens[0], run.tokens[-1]), (alone[0], alone[-1]), strict=True)
        ),
    }
    if case.rows > 1:
        checks["as alone"] = checks.pop("same tokens traced")
    if case.evicts:
        sizes = {size for found in alone for size in found.kept[0]}
        checks["budget"] = sizes == {(setting.kept, setting.kept)} and set(run.live) == {float(setting.kept)}
    return checks


def warm_up(case: Case, setting: Setting) -> Measured:
    """Decode a row once, untimed; check what it decodes and see what memory it takes."""
    needed = 2 * case.rows * token_bytes(setting.model) * (setting.kept + ours.EXCESS)
    if needed > setting.most_bytes:
        return Measured(case, left_out=f"needs {needed / 2**30:.1f} GiB, allowed are {setting.most_bytes / 2**30:.1f}")
    try:
        run, peak = counted(case, setting)
        live = sum(run.live) / len(run.live)
        found = Measured(case, held=run.held, peak=peak, live=live, tokens=run.tokens)
        if case.side == KVPRESS:
            found.checks["budget"] = run.live[0] == setting.kept
        else:
            found.checks |= (check_plain if case.side == PLAIN else check_ours)(case, setting, run)
    except Exception as problem:
        return Measured(case, left_out=failure(problem), failed=True)
    return found


def failure(problem: Exception) -> str:
    """Return a row's failure in words; the other rows go on."""
    return f"{type(problem).__name__}: {problem}"


@dataclass
class Block:
    """The rows of one shape and one number of kept tokens, filled while they are measured.

    Attributes:
        found: per row, what was measured so far.
        speeds: of the memory, bytes per second, one per repeat.
    """

    found: list[Measured] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)


def measure(
    block: Block,
    cases: Sequence[Case],
    setting: Setting,
    repeats: int,
    reader: Reader,
    tick: Callable[[str], None] = lambda name: None,
) -> None:
    """Measure all rows: warm-up and checks first, then every row once per repeat, in turn.

    Args:
        block: gets what is measured, so that an interrupt loses nothing.
        cases: the rows.
        setting: what they share.
        repeats: how often each is measured.
        reader: of the memory's speed, which takes its turn in every repeat.
        tick: told the name of each row that is done, `repeats` + 1 times.
    """
    for case in cases:
        block.found.append(warm_up(case, setting))
        tick(case.name)
    compare(block.found)
    for _ in range(repeats):
        block.speeds.append(reader.measure())
        for row in block.found:
            if row.left_out is None:
                repeat(row, setting)
            tick(row.case.name)


def repeat(row: Measured, setting: Setting) -> None:
    """Measure a row once more."""
    try:
        seconds, run = once(row.case, setting)
    except Exception as problem:
        row.left_out, row.failed = failure(problem), True
        return
    row.seconds.append(seconds)
    row.checks["repeats alike"] = row.checks.get("repeats alike", True) and run.tokens == row.tokens


def compare(found: Sequence[Measured]) -> None:
    """Compare the rows that must choose the same tokens."""
    tokens = {row.case.name: row.tokens for row in found if row.left_out is None}
    for row in found:
        if row.left_out is None and row.case.same_as in tokens:
            row.checks[f"as {row.case.same_as}"] = row.tokens == tokens[row.case.same_as]
