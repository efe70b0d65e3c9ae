"""The cases of the comparison with kvpress, and our side of them: which models, prompts, methods and budgets.

Nothing here needs kvpress, so the ordinary tests do the same against stored results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from inertia import Policy, TokensPrompt, generate
from inertia.backbones.tiny_tokenizer import tiny_tokenizer
from inertia.eviction.aggregation import Decoupled
from inertia.eviction.budget import Tokens
from inertia.eviction.policy import PER_HEAD, PER_LAYER
from inertia.eviction.protect import Protect
from inertia.eviction.scorers.attention import Attention
from inertia.eviction.scorers.key_norm import KeyNorm
from inertia.eviction.scorers.keydiff import KeyDiff
from inertia.eviction.scorers.recency import Recency
from inertia.prefill.capture import scores_of
from inertia.prefill.methods import named
from inertia.prefill.replay import Replay, Wording, frame

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from inertia.prefill.compressor import Compressor

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


class Input(NamedTuple):
    """What a model is fed with in a case: the prompt, and for decoding the tokens after it."""

    ids: list[int]
    tokens: list[int]


def cases() -> list[Case]:
    """Return every case that must agree."""
    budgets = [round(PROMPT * (1 - ratio)) for ratio in RATIOS]
    words = Wording()
    wording = {"first": words.first, "later": words.later, "lead_in": words.lead_in}
    methods = [("prefill", method, budgets, settings) for method, settings, _ in PREFILL]
    methods += [("kvzip", "kvzip", budgets, {"chunk": CHUNK, "wording": wording})]
    methods += [("decode", method, list(TARGETS), {}) for method in DECODE]
    return [
        Case(kind, method, model, budget, settings)
        for kind, method, sizes, settings in methods
        for model in MODELS
        for budget in sizes
    ]


def weights_sha256(model: PreTrainedModel) -> str:
    """Return a hash of all weights, names included."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def fed(model: str, prompt: int, steps: int = 0) -> Input:
    """Return a prompt, which opens as the tiny tokenizer's template does, and tokens to decode that it does not hold.

    No id comes twice: key norms of a repeated token tie, and kvpress leaves ties open.
    """
    opening = frame(tiny_tokenizer(), True).opening
    drawn = 4 + torch.randperm(1020, generator=torch.Generator().manual_seed(MODELS[model]["seed"]))
    ids = [token for token in drawn.tolist() if token not in opening]
    return Input([*opening, *ids][:prompt], ids[PROMPT : PROMPT + steps])


def input_of(case: Case) -> Input:
    """Return the input of a case."""
    return fed(case.model, DECODE_PROMPT, STEPS) if case.kind == "decode" else fed(case.model, PROMPT)


# ------------------------------------------------------------------------------------------------- our side


def compressor_of(case: Case) -> Compressor:
    """Return the compressor of a case."""
    settings = dict(case.settings)
    if "wording" in settings:
        settings["wording"] = Wording(**settings["wording"])
    return named(case.method, **settings)


def replays_of(compressor: Compressor, ids: Sequence[int]) -> list[Replay]:
    """Return what a compressor reads again, if it does."""
    return compressor.replays(tiny_tokenizer(), ids, chat_template=True) if compressor.replay else []


def our_scores(model: PreTrainedModel, ids: Sequence[int], compressor: Compressor) -> list[Tensor]:
    """Return the scores of a prompt, [Hkv, T] per layer."""
    return scores_of(model, ids, compressor, replays_of(compressor, ids))


def positions_of(masks: Sequence[Tensor]) -> list[list[list[int]]]:
    """Return kept positions per layer and KV head."""
    return [[row.nonzero().flatten().tolist() for row in mask] for mask in masks]


def policy_of(method: str, budget: int) -> Policy:
    """Return our every-step policy that does what kvpress does at interval 1."""
    scorer, scope, protect = {
        "tova": (Attention(), PER_LAYER, Protect(newest=True)),
        "keydiff": (KeyDiff(), PER_HEAD, Protect()),
        "key_norm": (KeyNorm(), PER_HEAD, Protect()),
        "streaming_llm": (Recency(), PER_HEAD, Protect(sinks=4)),
    }[method]
    return Policy(scorer=scorer, aggregation=Decoupled(), budget=Tokens(budget), scope=scope, protect=protect)


def our_decode(model: PreTrainedModel, given: Input, method: str, budget: int) -> list[Any]:
    """Return per step what each layer and KV head holds, while the given tokens are fed."""
    policy = policy_of(method, budget)
    # The last token is never fed, so one more is generated than there are steps.
    forced = [*given.tokens, given.tokens[-1]]
    told = TokensPrompt(torch.tensor([given.ids]), forced_tokens=forced)
    kept = generate(model, told, [policy], len(forced), trace=True)[0].kept
    heads = model.config.num_key_value_heads
    return [[[layer] * heads for layer in step] for step in kept] if policy.scope == PER_LAYER else list(kept)


def ours(model: PreTrainedModel, case: Case, given: Input) -> list[Any]:
    """Return what we keep: per layer and KV head, for decoding per step."""
    if case.kind == "decode":
        return our_decode(model, given, case.method, case.budget)
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
