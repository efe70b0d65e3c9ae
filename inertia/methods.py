"""Policies of the literature by name, each as its source ran it; `python -m inertia.methods` lists them.

`configs/method/<name>.yaml` composes the same values for the command line; a test holds the two together.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence

from inertia.eviction import checks
from inertia.eviction.adaptive import AdaptiveRefresh, ReactiveEMA, SelectedEMA
from inertia.eviction.aggregation import CoupledEMA, Cumulative, Decoupled, TimeEMA
from inertia.eviction.budget import Budget, Ratio, Tokens, Unlimited
from inertia.eviction.policy import PER_HEAD, PER_LAYER, Policy
from inertia.eviction.prefill_rule import Prefill
from inertia.eviction.prefill_sums import PrefillSums
from inertia.eviction.protect import Protect
from inertia.eviction.refresh import Every, Once
from inertia.eviction.scorers.entropy import Entropy
from inertia.eviction.scorers.key_norm import KeyNorm
from inertia.eviction.scorers.keydiff import KeyDiff
from inertia.eviction.scorers.random import Random
from inertia.eviction.scorers.recency import Recency
from inertia.eviction.scorers.vnorm import VNorm

INERTIA = "InertiaKV (arXiv 2609.03515)"


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


# ------------------------------------------------------------------------------------------ the paper's method


def full_cache() -> Policy:
    """Nothing is ever evicted."""
    return Policy(budget=Unlimited())


def inertiakv(alpha: float = 0.8, compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
    """Coupled EMA of attention, refreshed every step. Source: InertiaKV."""
    return Policy(aggregation=CoupledEMA(alpha), budget=budget(compression_ratio, tokens))


def inertiakv_lazy(
    alpha: float = 0.8, interval: int = 4, compression_ratio: float | None = None, tokens: int | None = None
) -> Policy:
    """InertiaKV scored every `interval` steps (Lazy-r; 2, 4, 8, 16). Source: InertiaKV."""
    return Policy(aggregation=CoupledEMA(alpha), refresh=Every(interval), budget=budget(compression_ratio, tokens))


def score_free(alpha: float = 0.8, compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
    """InertiaKV scored at step 1 only. Source: InertiaKV."""
    return Policy(aggregation=CoupledEMA(alpha), refresh=Once(), budget=budget(compression_ratio, tokens))


def single_step(compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
    """Attention of the current step, uniform over layers, no memory. Source: ours, the control for both axes."""
    return Policy(aggregation=Decoupled(), budget=budget(compression_ratio, tokens))


def h2o(compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
    """Attention summed over layers and decode steps, the paper's "H2O-style" rule. Source: InertiaKV.

    Deviations: from H2O itself (arXiv 2306.14048): one set for all layers, no prefill sums, no recent half.
    """
    return Policy(aggregation=Cumulative(), budget=budget(compression_ratio, tokens))


def scored_by(scorer: object) -> Callable[..., Policy]:
    """Return the paper's ablation: InertiaKV with another scorer in its place."""

    def method(alpha: float = 0.8, compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
        return Policy(scorer=scorer, aggregation=CoupledEMA(alpha), budget=budget(compression_ratio, tokens))

    method.__doc__ = f"InertiaKV with scorer {scorer.kind} in place of attention. Source: InertiaKV, scorer ablation."
    return method


def with_reserve(
    share: float = 0.25, alpha: float = 0.8, compression_ratio: float | None = None, tokens: int | None = None
) -> Policy:
    """InertiaKV with a static reserve: a share of the budget at equal distances of the prompt. Source: InertiaKV.

    Deviations: the paper does not give the size of its reserve; a quarter is ours.
    """
    return Policy(
        aggregation=CoupledEMA(alpha), budget=budget(compression_ratio, tokens), protect=Protect(reserve=share)
    )


def high_reserve(
    share: float = 0.5, alpha: float = 0.8, compression_ratio: float | None = None, tokens: int | None = None
) -> Policy:
    """As with_reserve, with half of the budget. Source: InertiaKV. Deviations: the size is ours."""
    return with_reserve(share, alpha, compression_ratio, tokens)


def no_momentum(compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
    """InertiaKV at alpha = 0, the last layer alone. Source: InertiaKV, table 8.

    Deviations: the paper's two figures (53.61 here, 53.97 at alpha = 0) differ without a word; we take them for one.
    """
    return inertiakv(0.0, compression_ratio, tokens)


def auxiliary(
    reserve: float = 0.25,
    rescue: float = 0.25,
    alpha: float = 0.8,
    compression_ratio: float | None = None,
    tokens: int | None = None,
) -> Policy:
    """InertiaKV with static reserve and first-eviction rescue. Source: InertiaKV, appendix B.

    Deviations: both sizes and the rescue rule are ours; whether the paper's variant keeps its momentum is open, alpha
    is a setting.
    """
    return Policy(
        aggregation=CoupledEMA(alpha),
        budget=budget(compression_ratio, tokens),
        protect=Protect(reserve=reserve, rescue=rescue),
    )


def selected_alpha(compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
    """InertiaKV whose alpha is chosen from noise and drift of the first steps. Source: InertiaKV, appendix H."""
    return Policy(aggregation=SelectedEMA(), budget=budget(compression_ratio, tokens))


def reactive_alpha(
    alpha: float = 0.8,
    low: float = 0.3,
    threshold: float = 0.1,
    compression_ratio: float | None = None,
    tokens: int | None = None,
) -> Policy:
    """InertiaKV whose alpha falls while raw and running ranking disagree. Source: InertiaKV, appendix H."""
    return Policy(aggregation=ReactiveEMA(alpha, low, threshold), budget=budget(compression_ratio, tokens))


def adaptive_refresh(alpha: float = 0.8, compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
    """InertiaKV that refreshes less often while refreshing changes little. Source: ours."""
    return Policy(aggregation=CoupledEMA(alpha), refresh=AdaptiveRefresh(), budget=budget(compression_ratio, tokens))


# ------------------------------------------------------------------------------------------ every-step baselines


def tova_decode(
    protect_newest: bool = False, compression_ratio: float | None = None, tokens: int | None = None
) -> Policy:
    """Attention of the current step, one set per layer, cut at every step. Source: TOVA (arXiv 2401.06104).

    Deviations: none known; its authors do not force the newest token, kvpress does (`protect_newest`).
    """
    return Policy(
        aggregation=Decoupled(),
        scope=PER_LAYER,
        budget=budget(compression_ratio, tokens),
        protect=Protect(newest=protect_newest),
    )


def tova_ema(alpha: float = 0.8, compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
    """TOVA with an EMA over steps in each layer. Source: InertiaKV, table 11."""
    return Policy(aggregation=Decoupled(time=TimeEMA(alpha)), scope=PER_LAYER, budget=budget(compression_ratio, tokens))


def keydiff_decode(
    protect_newest: bool = False, compression_ratio: float | None = None, tokens: int | None = None
) -> Policy:
    """Keys unlike the mean key stay, per KV head, cut at every step. Source: KeyDiff (arXiv 2504.15364).

    Deviations: its paper evicts block by block during the prefill; here the prompt is read whole.
    """
    return Policy(
        scorer=KeyDiff(),
        aggregation=Decoupled(),
        scope=PER_HEAD,
        budget=budget(compression_ratio, tokens),
        protect=Protect(newest=protect_newest),
    )


def keydiff_ema(alpha: float = 0.8, compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
    """KeyDiff with an EMA over steps in each head. Source: InertiaKV, table 11; its alpha is not given."""
    return Policy(
        scorer=KeyDiff(),
        aggregation=Decoupled(time=TimeEMA(alpha)),
        scope=PER_HEAD,
        budget=budget(compression_ratio, tokens),
    )


def key_norm_decode(
    protect_newest: bool = False, compression_ratio: float | None = None, tokens: int | None = None
) -> Policy:
    """Keys of small norm stay, per KV head, cut at every step. Source: L2 norm (arXiv 2406.11430).

    Deviations: its paper leaves the first two layers alone; kvpress and the paper's table 11 do not, nor do we.
    """
    return Policy(
        scorer=KeyNorm(),
        aggregation=Decoupled(),
        scope=PER_HEAD,
        budget=budget(compression_ratio, tokens),
        protect=Protect(newest=protect_newest),
    )


def key_norm_ema(alpha: float = 0.8, compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
    """Key norm with an EMA over steps in each head. Source: InertiaKV, table 11; its alpha is not given."""
    return Policy(
        scorer=KeyNorm(),
        aggregation=Decoupled(time=TimeEMA(alpha)),
        scope=PER_HEAD,
        budget=budget(compression_ratio, tokens),
    )


def h2o_original(compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
    """Attention summed over prompt and decode steps, per KV head, half of the budget recent. Source: H2O (2306.14048).

    Deviations: with grouped heads one set per KV head, by the mean over its query heads; the cut comes after decode
    step 1, as for all decode policies here.
    """
    return Policy(
        aggregation=Cumulative(),
        scope=PER_HEAD,
        budget=budget(compression_ratio, tokens),
        protect=Protect(recent_share=0.5),
        start=PrefillSums(),
    )


def streaming_llm_decode(sinks: int = 4, compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
    """The first tokens and the most recent ones. Source: StreamingLLM (arXiv 2309.17453).

    Deviations: keys keep their true rotary positions; the paper renumbers them inside the cache.
    """
    return Policy(
        scorer=Recency(),
        aggregation=Decoupled(),
        budget=budget(compression_ratio, tokens),
        protect=Protect(sinks=sinks),
    )


def random(compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
    """One uniform draw per token at its birth, shared by all layers and heads. Source: InertiaKV."""
    return Policy(scorer=Random(), aggregation=Decoupled(), budget=budget(compression_ratio, tokens))


def random_per_head(compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
    """Independent draws per layer and KV head. Source: Random Attention (arXiv 2609.03430), as a control."""
    return Policy(
        scorer=Random(per_head=True), aggregation=Decoupled(), scope=PER_HEAD, budget=budget(compression_ratio, tokens)
    )


def random_keep_question(compression_ratio: float | None = None, tokens: int | None = None) -> Policy:
    """Random over the context, the question protected. Source: ours, after Random Attention (arXiv 2609.03430)."""
    return Policy(
        scorer=Random(),
        aggregation=Decoupled(),
        budget=budget(compression_ratio, tokens),
        protect=Protect(question=True),
    )


# ------------------------------------------------------------------------------------------ prefill compressors


COMPRESSOR_SOURCES: Mapping[str, str] = {
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


def compressing(name: str) -> Callable[..., Policy]:
    """Return a method that compresses the prompt before decoding and evicts nothing afterwards."""

    def method(
        compression_ratio: float | None = None,
        tokens: int | None = None,
        question_visible: bool = False,
        **settings: object,
    ) -> Policy:
        from inertia.prefill import methods

        rule = Prefill(methods.named(name, **settings), budget(compression_ratio, tokens), question_visible)
        return Policy(budget=Unlimited(), prefill=rule)

    method.__doc__ = (
        f"The prompt is compressed by {name} before decoding, the question unseen or seen; nothing goes later. "
        f"Source: {COMPRESSOR_SOURCES[name]}; settings and deviations stand in `inertia.prefill`."
    )
    return method


METHODS: Mapping[str, Callable[..., Policy]] = {
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
    "tova_decode": tova_decode,
    "tova_ema": tova_ema,
    "keydiff_decode": keydiff_decode,
    "keydiff_ema": keydiff_ema,
    "key_norm_decode": key_norm_decode,
    "key_norm_ema": key_norm_ema,
    "h2o_original": h2o_original,
    "streaming_llm_decode": streaming_llm_decode,
    "random": random,
    "random_per_head": random_per_head,
    "random_keep_question": random_keep_question,
    "tova": compressing("tova"),
    "snapkv": compressing("snapkv"),
    "adakv_expected_attention": compressing("adakv_expected_attention"),
    "adakv_snapkv": compressing("adakv_snapkv"),
    "expected_attention": compressing("expected_attention"),
    "kvzip": compressing("kvzip"),
    "keydiff": compressing("keydiff"),
    "key_norm": compressing("key_norm"),
    "streaming_llm": compressing("streaming_llm"),
}


def preset(name: str, **settings: object) -> Policy:
    """Return the method `name` with some of its settings replaced.

    Raises:
        ValueError: unknown name or setting (the message lists the known ones), or a value out of range.
    """
    if name not in METHODS:
        raise ValueError(
            f"method {name!r} is unknown; give one of {', '.join(sorted(METHODS))}.{checks.nearest(name, METHODS)}"
        )
    allowed = settings_of(name)
    unknown = [key for key in settings if key not in allowed]
    if unknown:
        raise ValueError(
            f"method {name!r} has no setting {', '.join(map(repr, unknown))}; it has {', '.join(allowed) or 'none'}."
        )
    return METHODS[name](**settings)


def settings_of(name: str) -> list[str]:
    """Return the settings that a method takes, a prefill compressor's own included."""
    parameters = inspect.signature(METHODS[name]).parameters
    own = [key for key, parameter in parameters.items() if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    if len(own) < len(parameters):
        from inertia.prefill.methods import COMPRESSORS

        own += list(inspect.signature(COMPRESSORS[name]).parameters)
    return own


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

    parser = argparse.ArgumentParser(
        prog="python -m inertia.methods", description="Methods of the literature by name."
    )
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="all about these; by default, a line for each")
    chosen = parser.parse_args(arguments).methods
    if unknown := [name for name in chosen if name not in METHODS]:
        print(f"error: no method {', '.join(unknown)}; there are {', '.join(METHODS)}", file=sys.stderr)
        return 2
    console = Console()
    for name in chosen:
        policy = METHODS[name]()
        scope = "the prompt, once" if policy.prefill.compressor is not None else policy.scope if policy.evicts else "-"
        about = {"scope": scope, "cost": cost(policy), "settings": ", ".join(settings_of(name)) or "-"}
        console.print(f"{name}: {inspect.cleandoc(METHODS[name].__doc__)}", highlight=False, soft_wrap=True)
        for key, value in about.items():
            console.print(f"  {key}: {value}", highlight=False, soft_wrap=True)
    if chosen:
        return 0
    table = Table(title="methods (method=NAME, or preset(NAME, ...))", title_justify="left", box=None)
    table.add_column("method", no_wrap=True)
    table.add_column("what it does, source")
    table.add_column("settings")
    for name, make in METHODS.items():
        table.add_row(name, " ".join(inspect.cleandoc(make.__doc__).split()), ", ".join(settings_of(name)) or "-")
    console.print(table)
    console.print("Scope and cost of one: python -m inertia.methods METHOD", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
