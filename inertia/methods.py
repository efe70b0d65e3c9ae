"""Policies of the literature by name, each as its source ran it; `python -m inertia.methods` lists them.

A method is a function of its own settings; `preset` adds the budget, 90% removed unless `compression_ratio` or `tokens`
says otherwise. `configs/method/<name>.yaml` composes the same values for the command line; a test holds the two
together.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence

from inertia.eviction import checks
from inertia.eviction.adaptive import AdaptiveRefresh, ReactiveEMA, SelectedEMA
from inertia.eviction.aggregation import CoupledEMA, Cumulative, Decoupled, TimeEMA
from inertia.eviction.budget import Budget, Ratio, Tokens, Unlimited
from inertia.eviction.layer_view import Scorer
from inertia.eviction.policy import PER_HEAD, PER_LAYER, Policy
from inertia.eviction.prefill_rule import Prefill
from inertia.eviction.prefill_sums import PrefillSums
from inertia.eviction.protect import Protect
from inertia.eviction.refresh import Every, Once
from inertia.eviction.scorers.attention import Attention
from inertia.eviction.scorers.entropy import Entropy
from inertia.eviction.scorers.key_norm import KeyNorm
from inertia.eviction.scorers.keydiff import KeyDiff
from inertia.eviction.scorers.random import Random
from inertia.eviction.scorers.recency import Recency
from inertia.eviction.scorers.vnorm import VNorm
from inertia.prefill import methods as prefill

Method = Callable[..., Policy]


# ------------------------------------------------------------------------------------------ the paper's method


def full_cache() -> Policy:
    """Nothing is ever evicted."""
    return Policy(budget=Unlimited())


def inertiakv(alpha: float = 0.8) -> Policy:
    """Coupled EMA of attention, refreshed every step. Source: InertiaKV (arXiv 2609.03515)."""
    return Policy(aggregation=CoupledEMA(alpha))


def inertiakv_lazy(alpha: float = 0.8, interval: int = 4) -> Policy:
    """InertiaKV scored every `interval` steps (Lazy-r; 2, 4, 8, 16). Source: InertiaKV."""
    return Policy(aggregation=CoupledEMA(alpha), refresh=Every(interval))


def score_free(alpha: float = 0.8) -> Policy:
    """InertiaKV scored at step 1 only. Source: InertiaKV."""
    return Policy(aggregation=CoupledEMA(alpha), refresh=Once())


def single_step() -> Policy:
    """Attention of the current step, uniform over layers, no memory. Source: ours, the control for both axes."""
    return Policy(aggregation=Decoupled())


def h2o() -> Policy:
    """Attention summed over layers and decode steps, the paper's "H2O-style" rule. Source: InertiaKV.

    Deviations: from H2O itself (arXiv 2306.14048): one set for all layers, no prefill sums, no recent half.
    """
    return Policy(aggregation=Cumulative())


def scored_by(scorer: Scorer) -> Method:
    """Return the paper's ablation: InertiaKV with another scorer in its place."""

    def method(alpha: float = 0.8) -> Policy:
        return Policy(scorer=scorer, aggregation=CoupledEMA(alpha))

    method.__doc__ = f"InertiaKV with scorer {scorer.kind} in place of attention. Source: InertiaKV, scorer ablation."
    return method


def with_reserve(share: float = 0.25, alpha: float = 0.8) -> Policy:
    """InertiaKV with a static reserve: a share of the budget at equal distances of the prompt. Source: InertiaKV.

    Deviations: the paper does not give the size of its reserve; a quarter is ours.
    """
    return Policy(aggregation=CoupledEMA(alpha), protect=Protect(reserve=share))


def high_reserve(share: float = 0.5, alpha: float = 0.8) -> Policy:
    """As with_reserve, with half of the budget. Source: InertiaKV. Deviations: the size is ours."""
    return with_reserve(share, alpha)


def no_momentum() -> Policy:
    """InertiaKV at alpha = 0, the last layer alone. Source: InertiaKV, table 8.

    Deviations: the paper's two figures (53.61 here, 53.97 at alpha = 0) differ without a word; we take them for one.
    """
    return inertiakv(0.0)


def auxiliary(reserve: float = 0.25, rescue: float = 0.25, alpha: float = 0.8) -> Policy:
    """InertiaKV with static reserve and first-eviction rescue. Source: InertiaKV, appendix B.

    Deviations: both sizes and the rescue rule are ours; whether the paper's variant keeps its momentum is open, alpha
    is a setting.
    """
    return Policy(aggregation=CoupledEMA(alpha), protect=Protect(reserve=reserve, rescue=rescue))


def selected_alpha() -> Policy:
    """InertiaKV whose alpha is chosen from noise and drift of the first steps. Source: InertiaKV, appendix H."""
    return Policy(aggregation=SelectedEMA())


def reactive_alpha(alpha: float = 0.8, low: float = 0.3, threshold: float = 0.1) -> Policy:
    """InertiaKV whose alpha falls while raw and running ranking disagree. Source: InertiaKV, appendix H."""
    return Policy(aggregation=ReactiveEMA(alpha, low, threshold))


def adaptive_refresh(alpha: float = 0.8) -> Policy:
    """InertiaKV that refreshes less often while refreshing changes little. Source: ours."""
    return Policy(aggregation=CoupledEMA(alpha), refresh=AdaptiveRefresh())


# ------------------------------------------------------------------------------------------ every-step baselines


def every_step(scorer: Scorer, scope: str, about: str) -> Method:
    """Return a method that ranks by the current step alone and cuts at every step."""

    def method(protect_newest: bool = False) -> Policy:
        return Policy(scorer=scorer, aggregation=Decoupled(), scope=scope, protect=Protect(newest=protect_newest))

    method.__doc__ = about
    return method


def over_steps(scorer: Scorer, scope: str, about: str) -> Method:
    """Return a method that ranks by an EMA over steps in each unit."""

    def method(alpha: float = 0.8) -> Policy:
        return Policy(scorer=scorer, aggregation=Decoupled(time=TimeEMA(alpha)), scope=scope)

    method.__doc__ = about
    return method


def h2o_original() -> Policy:
    """Attention summed over prompt and decode steps, per KV head, half of the budget recent. Source: H2O (2306.14048).

    Deviations: with grouped heads one set per KV head, by the mean over its query heads; the cut comes after decode
    step 1, as for all decode policies here.
    """
    return Policy(aggregation=Cumulative(), scope=PER_HEAD, protect=Protect(recent_share=0.5), start=PrefillSums())


def streaming_llm_decode(sinks: int = 4) -> Policy:
    """The first tokens and the most recent ones. Source: StreamingLLM (arXiv 2309.17453).

    Deviations: keys keep their true rotary positions; the paper renumbers them inside the cache.
    """
    return Policy(scorer=Recency(), aggregation=Decoupled(), protect=Protect(sinks=sinks))


def random() -> Policy:
    """One uniform draw per token at its birth, shared by all layers and heads. Source: InertiaKV."""
    return Policy(scorer=Random(), aggregation=Decoupled())


def random_per_head() -> Policy:
    """Independent draws per layer and KV head. Source: Random Attention (arXiv 2609.03430), as a control."""
    return Policy(scorer=Random(per_head=True), aggregation=Decoupled(), scope=PER_HEAD)


def random_keep_question() -> Policy:
    """Random over the context, the question protected. Source: ours, after Random Attention (arXiv 2609.03430)."""
    return Policy(scorer=Random(), aggregation=Decoupled(), protect=Protect(question=True))


DECODING: Mapping[str, Method] = {
    "full_cache": full_cache,
    "inertiakv": inertiakv,
    "inertiakv_lazy": inertiakv_lazy,
    "score_free": score_free,
    "single_step": single_step,
    "h2o": h2o,
    "inertiakv_vnorm": scored_by(VNorm()),
    "inertiakv_entropy": scored_by(Entropy()),
    "inertiakv_keydiff": scored_by(KeyDiff()),
    "inertiakv_key_norm": scored_by(KeyNorm()),
    "inertiakv_recency": scored_by(Recency()),
    "inertiakv_random": scored_by(Random()),
    "with_reserve": with_reserve,
    "high_reserve": high_reserve,
    "no_momentum": no_momentum,
    "auxiliary": auxiliary,
    "selected_alpha": selected_alpha,
    "reactive_alpha": reactive_alpha,
    "adaptive_refresh": adaptive_refresh,
    "tova_decode": every_step(
        Attention(),
        PER_LAYER,
        "Attention of the current step, one set per layer, cut at every step. Source: TOVA (arXiv 2401.06104).\n\n"
        "Deviations: none known; its authors do not force the newest token, kvpress does (`protect_newest`).",
    ),
    "tova_ema": over_steps(
        Attention(), PER_LAYER, "TOVA with an EMA over steps in each layer. Source: InertiaKV, table 11."
    ),
    "keydiff_decode": every_step(
        KeyDiff(),
        PER_HEAD,
        "Keys unlike the mean key stay, per KV head, cut at every step. Source: KeyDiff (arXiv 2504.15364).\n\n"
        "Deviations: its paper evicts block by block during the prefill; here the prompt is read whole.",
    ),
    "keydiff_ema": over_steps(
        KeyDiff(),
        PER_HEAD,
        "KeyDiff with an EMA over steps in each head. Source: InertiaKV, table 11; its alpha is not given.",
    ),
    "key_norm_decode": every_step(
        KeyNorm(),
        PER_HEAD,
        "Keys of small norm stay, per KV head, cut at every step. Source: L2 norm (arXiv 2406.11430).\n\n"
        "Deviations: its paper leaves the first two layers alone; kvpress and the paper's table 11 do not, nor do we.",
    ),
    "key_norm_ema": over_steps(
        KeyNorm(),
        PER_HEAD,
        "Key norm with an EMA over steps in each head. Source: InertiaKV, table 11; its alpha is not given.",
    ),
    "h2o_original": h2o_original,
    "streaming_llm_decode": streaming_llm_decode,
    "random": random,
    "random_per_head": random_per_head,
    "random_keep_question": random_keep_question,
}


# ------------------------------------------------------------------------------------------ prefill compressors


COMPRESSING: Mapping[str, str] = {
    "tova": "TOVA (arXiv 2401.06104), at the end of the prompt",
    "snapkv": "SnapKV (arXiv 2404.14469)",
    "adakv_expected_attention": "AdaKV (arXiv 2407.11550) over Expected Attention (arXiv 2510.00636)",
    "adakv_snapkv": "AdaKV (arXiv 2407.11550) over SnapKV (arXiv 2404.14469)",
    "expected_attention": "Expected Attention (arXiv 2510.00636)",
    "kvzip": "KVzip (arXiv 2505.23416)",
    "keydiff": "KeyDiff (arXiv 2504.15364)",
    "key_norm": "L2 norm (arXiv 2406.11430)",
    "streaming_llm": "StreamingLLM (arXiv 2309.17453)",
}

METHODS: tuple[str, ...] = (*DECODING, *COMPRESSING)


def preset(
    name: str, *, compression_ratio: float | None = None, tokens: int | None = None, **settings: object
) -> Policy:
    """Return the method `name` with some of its settings replaced.

    Args:
        name: one of `METHODS`.
        compression_ratio: fraction removed, of the whole cache or, by a compressor, of what it compresses.
        tokens: tokens that may stay, in place of a ratio.
        **settings: the method's own; a compressor has `question_visible` (default False) beside them.

    Raises:
        ValueError: unknown name or setting (the message lists the known ones), or a value out of range.
    """
    checks.choice("method", name, METHODS)
    sized = {"compression_ratio": compression_ratio, "tokens": tokens}
    given = {**settings, **{key: value for key, value in sized.items() if value is not None}}
    checks.known_settings(f"method {name!r}", given, settings_of(name))
    if name == "full_cache":
        return full_cache()
    if name in DECODING:
        return DECODING[name](**settings).with_budget(budget(compression_ratio, tokens))
    visible = settings.pop("question_visible", False)
    rule = Prefill(prefill.named(name, **settings), budget(compression_ratio, tokens), visible)
    return Policy(budget=Unlimited(), prefill=rule)


def budget(compression_ratio: float | None, tokens: int | None) -> Budget:
    """Return the budget of the one setting that is given; 0.9 removed when none is.

    Raises:
        ValueError: both are given.
    """
    if tokens is not None and compression_ratio is not None:
        raise ValueError(
            f"compression_ratio={compression_ratio!r} and tokens={tokens!r} are both given; give one of them."
        )
    if tokens is not None:
        return Tokens(tokens)
    return Ratio(0.9 if compression_ratio is None else compression_ratio)


def settings_of(name: str) -> list[str]:
    """Return the settings that a method takes, the budget's and a prefill compressor's own included."""
    if name == "full_cache":
        return []
    if name in DECODING:
        return [*inspect.signature(DECODING[name]).parameters, "compression_ratio", "tokens"]
    return ["compression_ratio", "tokens", "question_visible", *prefill.settings_of(name)]


def about(name: str) -> str:
    """Return what a method does, its source, and where it departs from it."""
    if name in DECODING:
        return inspect.cleandoc(DECODING[name].__doc__)
    return (
        f"The prompt is compressed by {name} before decoding, the question unseen or seen; nothing goes later. "
        f"Source: {COMPRESSING[name]}; settings and deviations stand in `inertia.prefill`."
    )


# What a scorer reads at a scored step, beyond the attention that is done anyway.
READS: Mapping[str, str] = {"vnorm": "values", "keydiff": "keys", "key_norm": "keys", "learned": "keys"}


def cost(policy: Policy) -> str:
    """Return what a policy costs while decoding, in words."""
    if policy.prefill.compressor is not None:
        again = ", and reads the prompt again" if policy.prefill.compressor.replay else ""
        return f"scores the prompt once{again}; no work per step, the cache grows with the answer"
    if not policy.evicts:
        return "no work; the cache grows with every token"
    when = {"every": "every step", "once": "at step 1 only", "adaptive": "at steps that it chooses"}[
        policy.refresh.kind
    ]
    if getattr(policy.refresh, "interval", 1) not in (1,) and policy.refresh.kind == "every":
        when = f"every {policy.refresh.interval}th step"
    reads = READS.get(policy.scorer.kind)
    extra = f"one more read of the {reads}" if reads else "nothing beyond the attention that is done anyway"
    return f"scored {when}: {extra}; B + 1 slots"


def main(arguments: Sequence[str] | None = None) -> int:
    """List every method, or say all about those that are named; return the exit code, 2 for an unknown one."""
    import argparse

    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser(prog="python -m inertia.methods", description="Methods of the literature by name.")
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="all about these; by default, a line for each")
    chosen = parser.parse_args(arguments).methods
    if unknown := [name for name in chosen if name not in METHODS]:
        print(f"error: no method {', '.join(unknown)}; there are {', '.join(METHODS)}", file=sys.stderr)
        return 2
    console = Console()
    for name in chosen:
        policy = preset(name)
        scope = "the prompt, once" if policy.prefill.compressor is not None else policy.scope if policy.evicts else "-"
        facts = {"scope": scope, "cost": cost(policy), "settings": ", ".join(settings_of(name)) or "-"}
        console.print(f"{name}: {about(name)}", highlight=False, soft_wrap=True)
        for key, value in facts.items():
            console.print(f"  {key}: {value}", highlight=False, soft_wrap=True)
    if chosen:
        return 0
    table = Table(title="methods (method=NAME, or preset(NAME, ...))", title_justify="left", box=None)
    table.add_column("method", no_wrap=True)
    table.add_column("what it does, source")
    table.add_column("settings")
    for name in METHODS:
        table.add_row(name, " ".join(about(name).split()), ", ".join(settings_of(name)) or "-")
    console.print(table)
    console.print("Scope and cost of one: python -m inertia.methods METHOD", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
