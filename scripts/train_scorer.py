"""Train the head of scorer=learned by self-distillation: it learns the attention that the model gives.

    python scripts/train_scorer.py --backbone smollm2-135m --prompts ruler:vt,cwe --out head.safetensors

The traces come from our own decoding over the full cache: at each step, query and keys of each traced layer (as
attention uses them, rotary positions applied) and the attention weights, mean over the query heads. A step of a
layer is one training pair: student = softmax(head(q, k) / tau), teacher = attention sharpened likewise, loss =
squared error + kl_weight * KL(teacher || student).

Source: InertiaKV (arXiv 2609.03515), learned scorer: MSE + 0.1 KL, temperature 1.0, rank 64.
Deviations: the paper gives neither data, layers nor what the MSE compares. Here it is the two distributions,
and the squared error is summed over the tokens: the mean would be smaller than the KL by the number of tokens,
and would not act.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from safetensors.torch import save as serialised
from scipy.stats import spearmanr
from torch import Tensor
from tqdm import tqdm
from transformers import HfArgumentParser
from transformers.hf_argparser import HfArg

from inertia import Policy, backbones, generate
from inertia.benchmarks import ruler
from inertia.benchmarks.example import Example
from inertia.benchmarks.render import Renderer
from inertia.eviction import checks
from inertia.eviction.aggregation import Decoupled
from inertia.eviction.budget import Tokens
from inertia.eviction.layer_view import LayerView
from inertia.eviction.layers import layers_of
from inertia.eviction.scorers.learned import KEY, QUERY, RANK, Learned
from inertia.paths import config_dir
from inertia.records.atomic import write_atomic, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from inertia.backbones import Backbone

NEEDLES, FILLER, SHORTEST = 4, 11, 64


@dataclass(frozen=True)
class Settings:
    """What the weights depend on, beside the backbone; each field's help says what it means."""

    prompts: str = HfArg(
        default="synthetic", help="synthetic (ids without text), ruler:TASK,TASK, or a .jsonl of texts"
    )
    count: int = HfArg(default=32, help="prompts in all; of a file, the first ones")
    length: int = HfArg(default=512, help="tokens of a synthetic or RULER prompt")
    # Far from the seeds of evaluation, so that no RULER example is seen in both.
    data_seed: int = HfArg(default=1_000_000, help="seed of the prompts")
    steps: int = HfArg(default=16, help="most decode steps per prompt; the model's own answer may end before")
    layers: str = HfArg(default="all", help="all, middle, or indices among the eligible layers, such as 0,7,14")
    held_out: float = HfArg(default=0.125, help="share of the prompts that is only measured, at least one prompt")
    epochs: int = HfArg(default=20, help="passes over the training pairs")
    learning_rate: float = HfArg(default=1e-3, help="of Adam; one update per prompt and layer")
    rank: int = HfArg(default=RANK, help="rows of the two matrices")
    kl_weight: float = HfArg(default=0.1, help="weight of the KL term")
    temperature: float = HfArg(default=1.0, help="tau, of student and teacher")
    seed: int = HfArg(default=0, help="seed of the initial weights and of the order of training")

    def __post_init__(self) -> None:
        for name, low in {"count": 2, "length": SHORTEST, "steps": 1, "epochs": 1, "rank": 1}.items():
            checks.integer(name, getattr(self, name), low=low)
        checks.number("held_out", self.held_out, low=0, high=1, high_open=True)
        checks.number("kl_weight", self.kl_weight, low=0)
        for name in ("learning_rate", "temperature"):
            if checks.number(name, getattr(self, name), low=0) == 0:
                raise ValueError(f"{name}=0 trains nothing; give a number above 0.")


def synthetic(vocabulary: Sequence[int], length: int, count: int, seed: int) -> list[list[int]]:
    """Return prompts in the manner of RULER's needles, as bare ids: a repeated sentence hides pairs.

    The last tokens ask for one of the keys again, so that attention has somewhere to go.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(size: int) -> list[int]:
        return [vocabulary[i] for i in torch.randint(len(vocabulary), (size,), generator=generator).tolist()]

    prompts = []
    for _ in range(count):
        filler, opening = draw(FILLER), draw(2)
        needles = [opening + draw(5) for _ in range(NEEDLES)]
        question = needles[int(torch.randint(NEEDLES, (), generator=generator))][:4]
        room = length - len(question) - sum(map(len, needles))
        cuts = sorted(torch.randint(room + 1, (NEEDLES,), generator=generator).tolist())
        hay = [filler[i % FILLER] for i in range(room)]
        pieces = [hay[start:end] for start, end in zip([0, *cuts], [*cuts, room], strict=True)]
        hidden = [piece + needle for piece, needle in zip(pieces, needles, strict=False)]
        prompts.append([token for piece in hidden for token in piece] + pieces[-1] + question)
    return prompts


def prompts_of(backbone: Backbone, settings: Settings) -> list[list[int]]:
    """Return the prompts that the settings name, as token ids.

    Raises:
        ValueError: an unknown task, or a file with too few prompts.
    """
    renderer = Renderer(backbone.tokenizer, backbone.chat_template)
    if settings.prompts == "synthetic":
        special = set(backbone.tokenizer.all_special_ids)
        size = min(len(backbone.tokenizer), backbone.model.config.get_text_config().vocab_size)
        vocabulary = [token for token in range(size) if token not in special]
        return synthetic(vocabulary, settings.length, settings.count, settings.data_seed)
    if settings.prompts.startswith("ruler:"):
        tasks = settings.prompts.removeprefix("ruler:").split(",")
        share = math.ceil(settings.count / len(tasks))
        made = [ruler.examples(task, settings.length, share, settings.data_seed, renderer) for task in tasks]
        # Tasks take turns, so that the held-out share has all of them.
        rows = [example for turn in zip(*made, strict=True) for example in turn][: settings.count]
    else:
        lines = Path(settings.prompts).read_text(encoding="utf-8").split("\n")
        texts = [json.loads(line)["text"] for line in lines if line.strip()][: settings.count]
        if len(texts) < settings.count:
            raise ValueError(
                f"{settings.prompts} has {len(texts)} prompts but count={settings.count}; "
                "lower count or give more prompts."
            )
        rows = [Example("", "text", None, text, "", "", (), settings.steps) for text in texts]
    return [list(renderer.render(row).ids) for row in rows]


class Trace(NamedTuple):
    """Decode steps of one prompt in one layer, on the CPU in fp32.

    Attributes:
        keys: [T, Hkv * D], the prompt's and the decoded ones.
        queries: [S, Hq * D].
        attention: mean over the query heads, [S, T]; step s sees the first T - S + 1 + s tokens, s from 0.
    """
    keys: Tensor
    queries: Tensor
    attention: Tensor


@dataclass(frozen=True)
class Tracer:
    """A scorer that writes down what it is shown; made for one prompt."""
    kind: ClassVar[str] = "tracer"
    signed: ClassVar[bool] = False
    layers: tuple[int, ...] | None
    queries: dict[int, list[Tensor]] = field(default_factory=dict, compare=False, repr=False)
    attention: dict[int, list[Tensor]] = field(default_factory=dict, compare=False, repr=False)
    keys: dict[int, Tensor] = field(default_factory=dict, compare=False, repr=False)

    def score(self, view: LayerView) -> Tensor:
        """Return the attention, [1, Hkv, T], after noting it."""
        score = view.weights.mean(dim=2)
        if self.layers is None or view.layer in self.layers:
            self.queries.setdefault(view.layer, []).append(view.query[0].flatten().float().cpu())
            self.attention.setdefault(view.layer, []).append(score[0].mean(dim=0).cpu())
            # Nothing is evicted, so the last step's slots hold all keys, in order of position.
            self.keys[view.layer] = view.keys
        return score

    def traces(self) -> list[Trace]:
        """Return one trace per layer seen."""
        found = []
        for layer, keys in sorted(self.keys.items()):
            concatenated = keys[0].transpose(0, 1).flatten(1).float().cpu()
            attention = torch.nn.utils.rnn.pad_sequence(self.attention[layer], batch_first=True)
            # A clone, since a view of what the decoder made in inference mode cannot be trained on.
            found.append(Trace(concatenated.clone(), torch.stack(self.queries[layer]), attention))
        return found


def collect(
    model: PreTrainedModel, prompt: Sequence[int], steps: int, layers: str = "all", eos: Sequence[int] = ()
) -> list[Trace]:
    """Return the traces of one prompt, one per traced layer; none when the answer ends at its first token.

    Raises:
        ValueError: a layer that does not exist.
    """
    tracer = Tracer(chosen(layers, len(layers_of(model.config).eligible)))
    policy = Policy(scorer=tracer, aggregation=Decoupled(), budget=Tokens(len(prompt) + steps + 1))
    generate(model, torch.tensor([list(prompt)], device=model.device), [policy], steps + 1, eos_token_id=list(eos))
    return tracer.traces()


def chosen(layers: str, count: int) -> tuple[int, ...] | None:
    """Return the indices that a `layers` setting means among `count` eligible layers, None for all.

    Raises:
        ValueError: neither "all", "middle" nor existing indices.
    """
    if layers == "all":
        return None
    if layers == "middle":
        return (count // 2,)
    parts = layers.split(",")
    if not all(part.strip().isdecimal() and int(part) < count for part in parts):
        raise ValueError(f"layers={layers!r}: give all, middle, or indices within 0..{count - 1}, as in 0,1.")
    return tuple(int(part) for part in parts)


class Head(NamedTuple):
    """The two matrices, [rank, Hq * D] and [rank, Hkv * D]."""
    query: Tensor
    key: Tensor

    def logits(self, trace: Trace) -> Tensor:
        """Return the scores of every step, [S, T], -inf for tokens that a step does not see."""
        scores = (trace.queries @ self.query.T) @ (trace.keys @ self.key.T).T / math.sqrt(len(self.query))
        return scores.masked_fill(~visible(trace), float("-inf"))


def visible(trace: Trace) -> Tensor:
    """Return which tokens each step sees, bool [S, T]."""
    steps, tokens = trace.attention.shape
    return torch.ones(steps, tokens, dtype=torch.bool, device=trace.keys.device).tril(tokens - steps)


def initial(query_width: int, key_width: int, settings: Settings) -> Head:
    """Return random matrices that start with small logits."""
    generator = torch.Generator().manual_seed(settings.seed)
    widths = (query_width, key_width)
    return Head(*(torch.randn(settings.rank, w, generator=generator) * 0.3 / math.sqrt(w) for w in widths))


def loss_of(head: Head, trace: Trace, settings: Settings) -> Tensor:
    """Return squared error + kl_weight * KL(teacher || student), mean over the steps."""
    student = (head.logits(trace) / settings.temperature).log_softmax(dim=-1)
    teacher = (trace.attention.log() / settings.temperature).softmax(dim=-1)
    squared = (student.exp() - teacher).square().sum(dim=-1)
    # Tokens that a step does not see are 0 for the teacher, and 0 * log 0 is 0.
    divergence = (teacher.xlogy(teacher) - teacher * student.masked_fill(~visible(trace), 0.0)).sum(dim=-1)
    return (squared + settings.kl_weight * divergence).mean()


def train(traces: Sequence[Trace], settings: Settings) -> tuple[Head, list[float]]:
    """Return the trained head and the mean loss of each epoch.

    Deterministic on one machine: initial weights and order come from `settings.seed`.
    """
    device = traces[0].keys.device
    start = initial(traces[0].queries.shape[1], traces[0].keys.shape[1], settings)
    head = Head(*(matrix.to(device).requires_grad_() for matrix in start))
    optimiser = torch.optim.Adam(head, lr=settings.learning_rate)
    order = torch.Generator().manual_seed(settings.seed)
    losses = []
    with tqdm(total=settings.epochs * len(traces), desc="training", unit="update", file=sys.stderr) as bar:
        for _ in range(settings.epochs):
            total = 0.0
            for index in torch.randperm(len(traces), generator=order).tolist():
                loss = loss_of(head, traces[index], settings)
                optimiser.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(head, 1.0)
                optimiser.step()
                total += loss.item()
                bar.update()
            losses.append(total / len(traces))
            bar.set_postfix(loss=f"{losses[-1]:.4f}")
    return Head(*(matrix.detach().cpu() for matrix in head)), losses


def jaccard(first: Tensor, second: Tensor, share: float) -> float:
    """Return the overlap of the top shares of two vectors: intersection over union."""
    count = max(1, int(share * len(first)))
    tops = [set(vector.topk(count).indices.tolist()) for vector in (first, second)]
    return len(tops[0] & tops[1]) / len(tops[0] | tops[1])


def agreement(head: Head, traces: Iterable[Trace]) -> dict[str, float]:
    """Return how well the head ranks as attention does: Spearman and top-tenth Jaccard, mean over steps."""
    correlations, overlaps = [], []
    for trace in traces:
        for logits, attention, seen in zip(head.logits(trace), trace.attention, visible(trace), strict=True):
            correlations.append(spearmanr(logits[seen], attention[seen]).statistic)
            overlaps.append(jaccard(logits[seen], attention[seen], 0.1))
    return {"spearman": float(np.mean(correlations)), "top_tenth_jaccard": float(np.mean(overlaps))}


def run(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    settings: Settings,
    out: Path,
    eos: Sequence[int] = (),
    source: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Trace the prompts, train on most of them, measure on the rest, write weights and a JSON beside, and return it.

    Raises:
        ValueError: too few prompts whose answer has a decode step.
    """
    bar = tqdm(prompts, desc="tracing", unit="prompt", file=sys.stderr)
    per_prompt = [traces for p in bar if (traces := collect(model, p, settings.steps, settings.layers, eos))]
    held = max(1, round(settings.held_out * len(per_prompt)))
    if len(per_prompt) <= held:
        raise ValueError(
            f"{len(per_prompt)} of {len(prompts)} prompts gave a decode step, and {held} must be held out; "
            "give more prompts."
        )
    train_on = [trace for traces in per_prompt[:-held] for trace in traces]
    measured = [trace for traces in per_prompt[-held:] for trace in traces]
    untrained = initial(train_on[0].queries.shape[1], train_on[0].keys.shape[1], settings)
    head, losses = train(train_on, settings)
    shown = {**asdict(settings), "prompts": Path(settings.prompts).name}
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, serialised({QUERY: head.query.contiguous(), KEY: head.key.contiguous()}))
    scorer = Learned(str(out))
    report = {
        "file": out.name,
        "sha256": scorer.sha256,
        "shape": {QUERY: list(scorer.query_shape), KEY: list(scorer.key_shape)},
        "parameters": scorer.parameters,
        **(source or {}),
        "settings": shown,
        "prompts_used": {"trained": len(per_prompt) - held, "held_out": held},
        "losses": losses,
        "before": agreement(untrained, measured),
        "after": agreement(head, measured),
    }
    write_json(out.with_suffix(".json"), report)
    return report


def main(argv: Sequence[str] | None = None) -> int:
    """Train a head and write it; the last line on stdout is a JSON summary."""
    known = ", ".join(sorted(path.stem for path in config_dir().glob("backbone/*.yaml")))
    commands = HfArgumentParser(Settings, description=(__doc__ or "").split("\n", 1)[0])
    commands.add_argument("--backbone", required=True, help=f"one of {known}; or a YAML file")
    commands.add_argument("--out", required=True, type=Path, help=".safetensors file; a .json comes beside it")
    try:
        settings, given = commands.parse_args_into_dataclasses(argv, look_for_args_file=False)
        name, out = given.backbone, given.out
        if out.suffix != ".safetensors":
            raise ValueError(f"out={str(out)!r} must end in .safetensors.")
        shipped = config_dir() / "backbone" / f"{name}.yaml"
        backbone = backbones.load(backbones.read(shipped if shipped.is_file() else Path(name)))
        prompts, file = prompts_of(backbone, settings), Path(settings.prompts)
        source: dict[str, Any] = {"backbone": {"label": backbone.label, "identity": backbone.identity}}
        if file.is_file():
            # Named by its content, without a path.
            source["prompts_sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
        report = run(backbone.model, prompts, settings, out, backbone.eos_token_ids, source)
    except (ValueError, FileNotFoundError) as error:
        commands.error(str(error))
    print(json.dumps({key: report[key] for key in ("file", "sha256", "parameters", "before", "after")}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
