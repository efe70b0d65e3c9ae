"""The cases of the comparison with kvpress, and our side of them: which models, prompts, methods and budgets.

Nothing here needs kvpress, so the ordinary tests do the same against stored results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from inertia.eviction.policy import Policy
    from inertia.prefill.compressor import Compressor
    from inertia.prefill.replay import Replay

# The arguments of inertia.backbones.tiny.tiny_model.
MODELS: dict[str, dict[str, Any]] = {
    "llama-9-3": {"architecture": "llama", "layers": 2, "query_heads": 9, "kv_heads": 3, "head_dim": 8, "seed": 1},
    "llama-8-2": {"architecture": "llama", "layers": 2, "query_heads": 8, "kv_heads": 2, "head_dim": 16, "seed": 4},
    "qwen3-8-4": {"architecture": "qwen3", "layers": 2, "query_heads": 8, "kv_heads": 4, "head_dim": 8, "seed": 3},
}
PROMPT, RATIOS = 192, (0.5, 0.625)
DECODE_PROMPT, TARGETS, STEPS = 40, (16, 28), 24
# Our method, its settings here, and the settings under which kvpress does the same.
PREFILL: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("key_norm", {}, {}),
    ("keydiff", {}, {}),
    ("tova", {"keep_last": True}, {}),
    ("snapkv", {}, {}),
    ("streaming_llm", {}, {}),
    ("expected_attention", {}, {}),
    ("adakv_expected_attention", {}, {"epsilon": 1e-2}),
    ("adakv_snapkv", {}, {}),
]
CHUNK = 80
DECODE = ("tova", "keydiff", "key_norm")
class Case(NamedTuple):
    """One comparison: which method on which model, and how much stays."""

    kind: str
    method: str
    model: str
    budget: int
    settings: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the case in goldens and messages."""
        return f"{self.kind}/{self.method}/{self.model}/{self.budget}"


def build(recipe: dict[str, Any]) -> PreTrainedModel:
    """Return the model of a recipe."""
    from inertia.backbones.tiny import tiny_model

    return tiny_model(**recipe)


def weights_sha256(model: PreTrainedModel) -> str:
    """Return a hash of all weights, names included."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def opening() -> tuple[int, ...]:
    """Return what the tiny tokenizer's template puts before the user's words."""
    from inertia.backbones.tiny_tokenizer import tiny_tokenizer
    from inertia.prefill.replay import frame

    return frame(tiny_tokenizer(), True).opening


def drawn_ids(recipe: dict[str, Any]) -> list[int]:
    """Return random ids in which none comes twice: key norms of a repeated token tie, and kvpress leaves ties open."""
    import torch

    generator = torch.Generator().manual_seed(recipe["seed"])
    first = opening()
    return [token for token in (4 + torch.randperm(1020, generator=generator)).tolist() if token not in first]


def prompt_ids(recipe: dict[str, Any], length: int) -> list[int]:
    """Return a prompt: the opening of the tiny tokenizer's template, then random ids."""
    return [*opening(), *drawn_ids(recipe)][:length]


def forced_tokens(recipe: dict[str, Any], steps: int) -> list[int]:
    """Return the tokens that decoding is fed with; no prompt holds them."""
    return drawn_ids(recipe)[PROMPT : PROMPT + steps]


class Input(NamedTuple):
    """What a model is fed with in a case: the prompt, and for decoding the tokens after it."""

    ids: list[int]
    tokens: list[int]


def input_of(case: Case) -> Input:
    """Return the input of a case."""
    recipe = MODELS[case.model]
    if case.kind == "decode":
        return Input(prompt_ids(recipe, DECODE_PROMPT), forced_tokens(recipe, STEPS))
    return Input(prompt_ids(recipe, PROMPT), [])


def wording_settings() -> dict[str, Any]:
    """Return our wording of KVzip's requests, as plain data."""
    from inertia.prefill.replay import Wording

    wording = Wording()
    return {"first": wording.first, "later": wording.later, "lead_in": wording.lead_in}


def cases() -> list[Case]:
    """Return every case that must agree."""
    budgets = [round(PROMPT * (1 - ratio)) for ratio in RATIOS]
    found = [
        Case("prefill", method, model, budget, settings)
        for method, settings, _ in PREFILL
        for model in MODELS
        for budget in budgets
    ]
    kvzip = {"chunk": CHUNK, "wording": wording_settings()}
    found += [Case("kvzip", "kvzip", model, budget, kvzip) for model in MODELS for budget in budgets]
    return found + [
        Case("decode", method, model, budget, {}) for method in DECODE for model in MODELS for budget in TARGETS
    ]


# ------------------------------------------------------------------------------------------------- our side


def compressor_of(case: Case) -> Compressor:
    """Return the compressor of a case."""
    from inertia.prefill.methods import named
    from inertia.prefill.replay import Wording

    settings = dict(case.settings)
    if "wording" in settings:
        settings["wording"] = Wording(**settings["wording"])
    return named(case.method, **settings)


def replays_of(compressor: Compressor, ids: Sequence[int]) -> list[Replay]:
    """Return what a compressor reads again, if it does."""
    from inertia.backbones.tiny_tokenizer import tiny_tokenizer

    return compressor.replays(tiny_tokenizer(), ids, chat_template=True) if compressor.replay else []


def our_scores(model: PreTrainedModel, ids: Sequence[int], compressor: Compressor) -> list[Tensor]:
    """Return the scores of a prompt, [Hkv, T] per layer."""
    from inertia.prefill.capture import scores_of

    return scores_of(model, ids, compressor, replays_of(compressor, ids))


def positions_of(masks: Sequence[Tensor]) -> list[list[list[int]]]:
    """Return kept positions per layer and KV head."""
    return [[row.nonzero().flatten().tolist() for row in mask] for mask in masks]


def policy_of(method: str, budget: int) -> Policy:
    """Return our every-step policy that does what kvpress does at interval 1."""
    from inertia.eviction.aggregation import Decoupled
    from inertia.eviction.budget import Tokens
    from inertia.eviction.policy import PER_HEAD, PER_LAYER, Policy
    from inertia.eviction.protect import Protect
    from inertia.eviction.scorers.attention import Attention
    from inertia.eviction.scorers.key_norm import KeyNorm
    from inertia.eviction.scorers.keydiff import KeyDiff
    from inertia.eviction.scorers.recency import Recency

    parts = {
        "tova": (Attention(), PER_LAYER, Protect(newest=True)),
        "keydiff": (KeyDiff(), PER_HEAD, Protect()),
        "key_norm": (KeyNorm(), PER_HEAD, Protect()),
        "streaming_llm": (Recency(), PER_HEAD, Protect(sinks=4)),
    }
    scorer, scope, protect = parts[method]
    return Policy(scorer=scorer, aggregation=Decoupled(), budget=Tokens(budget), scope=scope, protect=protect)


def our_decode(model: PreTrainedModel, ids: Sequence[int], tokens: Sequence[int], policy: Policy) -> list[Any]:
    """Return per step what each layer and KV head holds, while the given tokens are fed."""
    import torch

    from inertia.decoding.generation import generate
    from inertia.decoding.request import TokensPrompt
    from inertia.eviction.policy import PER_LAYER

    # The last token is never fed, so one more is generated than there are steps.
    generation = generate(
        model,
        TokensPrompt(torch.tensor([list(ids)]), forced_tokens=[*tokens, tokens[-1]]),
        [policy],
        len(tokens) + 1,
        trace=True,
    )[0]
    if policy.scope != PER_LAYER:
        return list(generation.kept)
    heads = model.config.num_key_value_heads
    return [[[layer] * heads for layer in step] for step in generation.kept]


def ours(model: PreTrainedModel, case: Case, given: Input) -> list[Any]:
    """Return what we keep: per layer and KV head, for decoding per step."""
    if case.kind == "decode":
        return our_decode(model, *given, policy_of(case.method, case.budget))
    compressor = compressor_of(case)
    compressor.check(len(given.ids), case.budget)
    return positions_of(compressor.keep(our_scores(model, given.ids, compressor), case.budget))


# ----------------------------------------------------------------------------------------- results as text


def ranges(positions: Sequence[int]) -> str:
    """Return ascending positions as text, such as "0-3 7 9-12"."""
    parts: list[list[int]] = []
    for position in positions:
        if parts and position == parts[-1][1] + 1:
            parts[-1][1] = position
        else:
            parts.append([position, position])
    return " ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def entry(case: Case, kept: list[Any]) -> dict[str, Any]:
    """Return a case and what was kept as short plain data; for decoding the first step, then what went at each."""
    first = kept[0] if case.kind == "decode" else kept
    found = {**case._asdict(), "kept": [[ranges(head) for head in layer] for layer in first]}
    if case.kind == "decode":
        heads = [(layer, head) for layer in range(len(first)) for head in range(len(first[0]))]
        found["evicted"] = [evicted([step[layer][head] for step in kept]) for layer, head in heads]
    return found


def evicted(steps: Sequence[Sequence[int]]) -> str:
    """Return what one KV head lost at each step after the first, "-" for nothing."""
    gone = []
    for step in range(1, len(steps)):
        lost = {*steps[step - 1], DECODE_PROMPT + step} - set(steps[step])
        gone.append(",".join(map(str, sorted(lost))) or "-")
    return " ".join(gone)
