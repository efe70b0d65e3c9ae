"""What an lm-eval task of ours does: documents on demand, their text, their score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from inertia import backbones
from inertia.benchmarks import registry
from inertia.benchmarks.example import Example
from inertia.benchmarks.render import Renderer, sanitise
from inertia.experiments.config import BenchmarkConfig
from inertia.lm_eval.settings import backbone_config
from inertia.lm_eval.tasks.files import defaults

Doc = dict[str, Any]
FIELDS = (
    "kv_benchmark",
    "kv_id",
    "kv_bare",
    "kv_truncated",
    "task",
    "length",
    "context",
    "question",
    "answer_prefix",
    "references",
    "metadata",
)


@dataclass
class Docs:
    """The documents of a task, each made when it is first asked for: `--limit 5` makes five.

    Attributes:
        count: of documents.
        source: gives them in order.
        made: those made so far.
    """

    count: int
    source: Iterator[Doc]
    made: list[Doc] = field(default_factory=list)

    @property
    def features(self) -> dict[str, None]:
        """The fields of a document, as keys."""
        return dict.fromkeys(FIELDS)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Doc:
        if not 0 <= index < self.count:
            raise IndexError(index)
        while len(self.made) <= index:
            self.made.append(next(self.source))
        return self.made[index]

    def __iter__(self) -> Iterator[Doc]:
        return (self[index] for index in range(self.count))


@dataclass(frozen=True)
class Reader:
    """Who will read the prompts.

    Attributes:
        tokenizer: sizes them.
        chat_template: whether a chat template will surround them.
        window: tokens of prompt and answer together.
    """

    tokenizer: Any
    chat_template: bool
    window: int


def load(kv_benchmark: str, kv_task: str, kv_length: int | None, **metadata: Any) -> dict[str, Docs]:
    """Return the documents of one (task, length) as lm-eval's `custom_dataset`, split "test".

    They are those of `python -m inertia benchmark=...`: same seed, same sizes, the same cut in the middle.

    Args:
        kv_benchmark: a name of the registry.
        kv_task: its task.
        kv_length: nominal length, or None.
        **metadata: `--model_args` and `--metadata`. Used are: what names the reader (`reader`), `examples` (how many
            documents), and `<benchmark>_source`, a path of local data or the fields of a `Source`.

    Raises:
        ValueError: the length exceeds the reader's window, or the benchmark refuses the task or length.
    """
    shown, who = defaults(kv_benchmark), reader(metadata)
    if kv_length is not None and kv_length > who.window:
        raise ValueError(f"task of {kv_length} tokens exceeds the window of {who.window}; take a shorter length.")
    settings = settings_of(shown, kv_task, kv_length, metadata)
    bench = settings.bound()
    renderer = bench.renderer(kv_task, Renderer(who.tokenizer, who.chat_template), who.window)
    count = len(bench.ids(kv_task, kv_length, settings.count(kv_task)))
    bare = who.chat_template and not renderer.chat_template
    found = bench.examples(kv_task, kv_length, count, renderer)
    return {"test": Docs(count, (document(kv_benchmark, each, renderer, bare) for each in found))}


def settings_of(
    shown: Mapping[str, Any], task: str, length: int | None, metadata: Mapping[str, Any]
) -> BenchmarkConfig:
    """Return the benchmark's own settings for one task and length, with the data and number that metadata ask for."""
    source = metadata.get(f"{shown['name']}_source", shown["source"])
    return BenchmarkConfig(
        **{
            **shown,
            "tasks": (task,),
            "lengths": (length,),
            "metrics": tuple(shown["metrics"]),
            "source": {"kind": "path", "path": source} if isinstance(source, str) else source,
            **({"examples": metadata["examples"], "task_examples": {}} if "examples" in metadata else {}),
        }
    )


def reader(metadata: Mapping[str, Any]) -> Reader:
    """Return who will read the prompts: the backbone of `--model inertia`, or another model's tokenizer.

    Args:
        metadata: `backbone`, `backbone_path`; or `pretrained` or `tokenizer`, and `max_length`, for other models.
    """
    name = metadata.get("tokenizer", metadata.get("pretrained"))
    if name is None:
        config = backbone_config(metadata.get("backbone", "smollm2-135m"), metadata.get("backbone_path"))
        return Reader(backbones.load_tokenizer(config), config.chat_template, config.context_window)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name)
    window = metadata.get("max_length", tokenizer.model_max_length)
    return Reader(tokenizer, bool(tokenizer.chat_template), int(window))


def document(benchmark: str, example: Example, renderer: Renderer, bare: bool) -> Doc:
    """Return an example as a document, its user turn cut in the middle where the benchmark's limit says so."""
    turn = replace(renderer, chat_template=False).render(replace(example, answer_prefix=""))
    question = sanitise(example.question)
    # Where even the question was cut, nothing counts as context.
    whole = turn.text.endswith(question)
    return {
        "kv_benchmark": benchmark,
        "kv_id": example.id,
        "kv_bare": bare,
        "kv_truncated": turn.truncated,
        "task": example.task,
        "length": example.length,
        "context": turn.text.removesuffix(question) if whole else "",
        "question": question if whole else turn.text,
        "answer_prefix": sanitise(example.answer_prefix),
        "references": list(example.references),
        "metadata": dict(example.metadata),
    }


def text(doc: Doc) -> str:
    """Return the user turn."""
    return doc["context"] + doc["question"]


def target(doc: Doc) -> list[str]:
    """Return the references."""
    return doc["references"]


def score(doc: Doc, results: list[str]) -> dict[str, float]:
    """Return the official score of an answer, in [0, 1]."""
    package = registry.package(doc["kv_benchmark"])
    return {"score": package.score(doc["task"], results[0], doc["references"], doc["metadata"])}
