"""A policy is a value: scorer x aggregation x refresh x budget, with scope, selection, protection and new tokens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from inertia.eviction import checks
from inertia.eviction.aggregation import Aggregation, CoupledEMA
from inertia.eviction.budget import Budget, Ratio, Unlimited
from inertia.eviction.describe import describe
from inertia.eviction.layer_view import Scorer
from inertia.eviction.new_token import NewToken
from inertia.eviction.prefill_rule import Prefill
from inertia.eviction.protect import Protect
from inertia.eviction.refresh import Every, Refresh
from inertia.eviction.scorers.attention import Attention
from inertia.eviction.selection import Selection, TopK

SHARED, PER_LAYER, PER_HEAD = "shared", "per_layer", "per_head"
SCOPES = (SHARED, PER_LAYER, PER_HEAD)


@dataclass(frozen=True)
class Policy:
    """Which cached tokens a decoder keeps.

    Attributes:
        scorer: what a token is worth at one step in one layer.
        aggregation: how layers and steps are combined into one utility.
        refresh: which steps are scored.
        budget: how many tokens may stay.
        scope: "shared" (one set for all layers and heads), "per_layer" or "per_head" (per KV head).
        selection: how survivors are chosen from utilities.
        protect: tokens that are never candidates.
        new_token: what a newcomer starts with.
        prefill: what happens to the prompt before decoding; nothing by default.
        start: utilities that the prompt's tokens start with, an object with `score(layer) -> [Hkv, T]` as compressors
            have it; None for zero. Needs a scope other than shared.

    Example:
        >>> Policy(budget=Tokens(512), refresh=Every(4))
    """

    scorer: Scorer = field(default_factory=Attention)
    aggregation: Aggregation = field(default_factory=CoupledEMA)
    refresh: Refresh = field(default_factory=Every)
    budget: Budget = field(default_factory=Ratio)
    scope: str = SHARED
    selection: Selection = field(default_factory=TopK)
    protect: Protect = field(default_factory=Protect)
    new_token: NewToken = field(default_factory=NewToken)
    prefill: Prefill = field(default_factory=Prefill)
    start: Any = None

    def __post_init__(self) -> None:
        checks.choice("scope", self.scope, SCOPES)
        checks.has("scorer", self.scorer, ("score",), "Attention()")
        checks.has("aggregation", self.aggregation, ("linear", "unit"), "CoupledEMA(0.8)")
        checks.has("refresh", self.refresh, ("due",), "Every(1)")
        checks.has("budget", self.budget, ("tokens",), "Ratio(0.9)")
        checks.has("selection", self.selection, ("keep", "victim"), "TopK()")
        checks.has("protect", self.protect, ("resolve",), "Protect()")
        checks.has("new_token", self.new_token, ("resolved",), "NewToken()")
        checks.has("prefill", self.prefill, ("part",), "Prefill()")
        if not hasattr(self.scorer, "signed"):
            raise ValueError(f"scorer={self.scorer!r} does not say whether its scores may be negative; set `signed`.")
        if self.prefill.compressor is not None and hasattr(self.aggregation, "watcher"):
            raise ValueError(
                f"aggregation={self.aggregation.kind} watches one keep-set and cannot follow a prompt that was "
                "compressed head by head; use another aggregation, or prefill=none."
            )
        object.__setattr__(self, "new_token", self.new_token.resolved(self.scorer.signed))
        if self.scope != SHARED and not isinstance(self.budget, Unlimited):
            self.aggregation.unit()
        if self.start is not None and self.scope == SHARED:
            raise ValueError(
                f"start={self.start!r} needs one utility per layer or head; set scope=per_layer or per_head."
            )
        fixed = getattr(self.budget, "count", None)
        if fixed is not None and not self.protect.question:
            # Prompt length does not matter for what is refused here, so a long one stands for all.
            self.protect.resolve(2**31, fixed, None)

    @property
    def evicts(self) -> bool:
        """Tell whether this policy can ever evict."""
        return not isinstance(self.budget, Unlimited)

    def with_budget(self, budget: Budget) -> Policy:
        """Return the same policy under another budget."""
        return replace(self, budget=budget)

    def describe(self) -> dict[str, Any]:
        """Return what identifies this policy, JSON-able; settings that cannot matter are left out.

        A policy without a limit never scores, so only its budget counts, and the prompt's compression where there is
        one.
        """
        before = {} if self.prefill.compressor is None else {"prefill": describe(self.prefill)}
        if not self.evicts:
            return {"budget": describe(self.budget), **before}
        if self.start is not None:
            before["start"] = describe(self.start)
        return {
            **before,
            "scorer": describe(self.scorer),
            "aggregation": describe(self.aggregation),
            "refresh": describe(self.refresh),
            "budget": describe(self.budget),
            "scope": self.scope,
            "selection": describe(self.selection),
            "protect": describe(self.protect),
            "new_token": describe(self.new_token),
        }
