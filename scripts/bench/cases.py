"""The rows of the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.plain import FLOORS, GROWING, SLOTS_MATMUL, SLOTS_SDPA, STATIC
from bench.timing import LEAD
from inertia.eviction.aggregation import Decoupled
from inertia.eviction.policy import PER_HEAD, Policy
from inertia.eviction.scorers.learned import Learned
from inertia.methods import preset

PLAIN, OURS, KVPRESS = "plain", "ours", "kvpress"
FUSED, RECOMPUTE, KERNEL = "fused", "recompute", "kernel"
BATCHES = (4, 16, 32)
LAZY = 4

FULL_REFRESH, LAZY_4, SCORE_FREE = "ours, full refresh", "ours, Lazy-4", "ours, Score-Free"
TOVA, KEYDIFF, KNORM = "ours, TOVA per layer", "ours, KeyDiff per head", "ours, key norm per head"
KVPRESS_TOVA = "kvpress, TOVA"
PLAIN_NAMES = {
    GROWING: "transformers, growing cache",
    STATIC: "transformers, static cache",
    SLOTS_SDPA: "slots, torch's attention",
    SLOTS_MATMUL: "slots, two products",
}
SCORERS = ("vnorm", "entropy", "keydiff", "key_norm", "recency", "random")


@dataclass(frozen=True)
class Case:
    """One row.

    Attributes:
        name: of the row.
        side: "plain", "ours" or "kvpress".
        kind: of a plain row, its cache; of kvpress, its method.
        policies: of our rows.
        scoring: where our scores come from.
        rows: of the batch.
        period: steps of which one scores.
        same_as: name of the row that must choose the same tokens.
        main: whether the row is measured everywhere, or only where all are.
    """

    name: str
    side: str
    kind: str = ""
    policies: tuple[Policy, ...] = field(default=(), repr=False)
    scoring: str = FUSED
    rows: int = 1
    period: int = 1
    same_as: str | None = None
    main: bool = False

    @property
    def dear(self) -> int:
        """Index of the first timed step that scores: step 1 does, and every `period`-th after it."""
        return -LEAD % self.period

    @property
    def evicts(self) -> bool:
        """Tell whether tokens are evicted while decoding."""
        return self.side == KVPRESS or any(policy.evicts for policy in self.policies)


def plain(rows: int = 1) -> list[Case]:
    """Return the rows without policy: the growing cache, and the candidates for the floor."""
    of = "" if rows == 1 else f", {rows} rows"
    # A batch's floor is looked for among the slots alone, which never lose to the static cache's mask.
    kinds = (GROWING, *FLOORS) if rows == 1 else (SLOTS_SDPA, SLOTS_MATMUL)
    return [Case(PLAIN_NAMES[kind] + of, PLAIN, kind, rows=rows, main=rows == 1) for kind in kinds]


def ours(kept: int, learned: Path | None, with_kernel: bool = False) -> list[Case]:
    """Return our rows for one policy under a budget of `kept` tokens; see `cases`."""

    def one(name: str, method: str, main: bool = False, **settings: object) -> Case:
        return Case(name, OURS, policies=(preset(method, tokens=kept, **settings),), main=main)

    main = [
        one(FULL_REFRESH, "inertiakv", main=True),
        replace(one(LAZY_4, "inertiakv_lazy", main=True, interval=LAZY), period=LAZY),
        one(SCORE_FREE, "score_free", main=True),
    ]
    full, policy = main[0], main[0].policies[0]
    scorers = [one(f"ours, scorer {name}", f"inertiakv_{name}") for name in SCORERS]
    if learned is not None:
        scorers.append(Case("ours, scorer learned", OURS, policies=(replace(policy, scorer=Learned(str(learned))),)))
    per_head = replace(policy, aggregation=Decoupled(), scope=PER_HEAD)
    return [
        Case("ours, full cache", OURS, policies=(preset("full_cache"),), main=True),
        *main,
        replace(full, name=f"{FULL_REFRESH}, scores recomputed", scoring=RECOMPUTE, same_as=FULL_REFRESH),
        *scorers,
        # kvpress never evicts the newest token under TOVA.
        one(TOVA, "tova_decode", main=True, protect_newest=True),
        Case("ours, attention per head", OURS, policies=(per_head,)),
        one(KEYDIFF, "keydiff_decode"),
        one(KNORM, "key_norm_decode"),
        *(replace(case, name=f"{case.name}, kernel", scoring=KERNEL) for case in main if with_kernel),
    ]


def together(kept: int, rows: int) -> Case:
    """Return one batch of as many policies, all of full refresh, each with an alpha of its own."""
    policies = tuple(preset("inertiakv", alpha=at / rows, tokens=kept) for at in range(rows))
    return Case(f"ours, {rows} policies", OURS, policies=policies, rows=rows)


def kvpress() -> list[Case]:
    """Return kvpress's rows, compressing at every step."""
    return [
        Case(KVPRESS_TOVA, KVPRESS, "tova", same_as=TOVA, main=True),
        Case("kvpress, KeyDiff", KVPRESS, "keydiff", same_as=KEYDIFF),
        Case("kvpress, Knorm", KVPRESS, "key_norm", same_as=KNORM),
        # It masks and removes nothing, and its parts live on the rows of TOVA above.
        Case("kvpress, AdaKV over TOVA (masked)", KVPRESS, "adakv_tova"),
    ]


def cases(
    kept: int, *, everything: bool, with_kvpress: bool, with_kernel: bool = False, learned: Path | None = None
) -> list[Case]:
    """Return the rows for one number of kept tokens, in the order in which they are measured.

    Args:
        kept: tokens.
        everything: all rows, or the main ones only.
        with_kvpress: whether kvpress runs beside.
        with_kernel: whether our GPU kernel is there.
        learned: weights of a learned scorer for this model, or None.
    """
    found = [*plain(), *ours(kept, learned, with_kernel), *(kvpress() if with_kvpress else [])]
    for rows in BATCHES:
        found += [*plain(rows), together(kept, rows)]
    return [case for case in found if everything or case.main]


def named(found: Sequence[Case], name: str) -> Case:
    """Return the row of a name."""
    return next(case for case in found if case.name == name)
