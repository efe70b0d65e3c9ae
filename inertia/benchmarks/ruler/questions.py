"""Questions over documents: SQuAD 2.0 and HotpotQA as one type."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from inertia.benchmarks.sources import DataError, Rows, require


class Question(NamedTuple):
    """A question and the documents that bear on it, by index.

    Attributes:
        text: The question.
        answers: Accepted answers, as often as annotators gave them.
        gold: Documents that must be shown.
        related: Documents shown before any other distractor.
    """

    text: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    related: tuple[int, ...]


@dataclass(frozen=True)
class Questions:
    """The answerable questions of a data set, in its order, over its distinct documents, sorted.

    Raises:
        DataError: If there is no question.
    """

    documents: tuple[str, ...] = field(repr=False)
    questions: tuple[Question, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.questions:
            raise DataError("the data hold no answerable question")

    @cached_property
    def sha256(self) -> str:
        """Hash of documents and questions: the identity of the data, whatever the file format."""
        return hashlib.sha256(json.dumps([self.documents, self.questions]).encode()).hexdigest()


class _Asked(NamedTuple):
    """One question, its documents still as texts."""

    text: str
    answers: tuple[str, ...]
    gold: tuple[str, ...]
    group: str


def squad(rows: Rows) -> Questions:
    """Return SQuAD 2.0's answerable questions; a paragraph's article gives its related documents.

    Args:
        rows: The official JSON (one object with `data`), or the Hub's rows (`title`, `context`, `question`,
            `answers`).

    Raises:
        DataError: If a field is missing or of the wrong kind.

    Source: RULER `qa.py`, `read_squad`.
    """
    articles: dict[str, dict[str, None]] = {}
    asked = []
    for group, paragraph, text, answers in _squad_items(rows):
        articles.setdefault(group, {})[paragraph] = None
        if answers:
            asked.append(_Asked(text, answers, (paragraph,), group))
    return _indexed(asked, {group: tuple(paragraphs) for group, paragraphs in articles.items()})


def hotpot(rows: Rows) -> Questions:
    """Return HotpotQA's questions; all documents given with a question, distractors included, must be shown.

    Args:
        rows: The official JSON (`context` as pairs of title and sentences) or the Hub's rows (`context` as two
            columns).

    Raises:
        DataError: If a field is missing or of the wrong kind.

    Source: RULER `qa.py`, `read_hotpotqa`.
    """
    asked = []
    articles: dict[str, tuple[str, ...]] = {}
    for index, row in enumerate(rows.rows):
        where = f"{rows.name}, row {index}"
        require(row, ("question", "answer", "context"), where)
        gold = tuple(dict.fromkeys(f"{title}\n{''.join(text)}" for title, text in _titled(row["context"], where)))
        articles[str(index)] = gold
        asked.append(_Asked(_text(row["question"], where), (_text(row["answer"], where),), gold, str(index)))
    return _indexed(asked, articles)


def _squad_items(rows: Rows) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Article, paragraph, question and its answers (none: unanswerable, or a paragraph nothing is asked about)."""
    for index, row in enumerate(rows.rows):
        where = f"{rows.name}, row {index}"
        if "data" not in row:
            require(row, ("title", "context", "question", "answers"), where)
            texts = row["answers"]["text"] if isinstance(row["answers"], Mapping) else ()
            yield row["title"], _text(row["context"], where), _text(row["question"], where), tuple(texts)
            continue
        for number, article in enumerate(row["data"]):
            for paragraph in article["paragraphs"]:
                require(paragraph, ("context", "qas"), f"{where}, article {number}")
                yield str(number), _text(paragraph["context"], where), "", ()
                for item in paragraph["qas"]:
                    require(item, ("question", "answers"), f"{where}, article {number}")
                    texts = [] if item.get("is_impossible") else [answer["text"] for answer in item["answers"]]
                    yield str(number), paragraph["context"], _text(item["question"], where), tuple(texts)


def _titled(context: Any, where: str) -> list[tuple[str, Sequence[str]]]:
    if isinstance(context, Mapping):
        require(context, ("title", "sentences"), where)
        return list(zip(context["title"], context["sentences"], strict=True))
    if isinstance(context, list) and all(isinstance(item, list) and len(item) == 2 for item in context):
        return [(title, sentences) for title, sentences in context]
    raise DataError(f"{where}: context must be pairs of title and sentences, or columns of them")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{where}: expected a text, got {type(value).__name__}")
    return value


def _indexed(asked: Sequence[_Asked], groups: Mapping[str, Sequence[str]]) -> Questions:
    documents = tuple(sorted({document for members in groups.values() for document in members}))
    number = {document: index for index, document in enumerate(documents)}
    members = {group: tuple(number[document] for document in texts) for group, texts in groups.items()}

    def question(item: _Asked) -> Question:
        gold = tuple(number[document] for document in item.gold)
        return Question(item.text, item.answers, gold, tuple(i for i in members[item.group] if i not in gold))

    return Questions(documents, tuple(map(question, asked)))
