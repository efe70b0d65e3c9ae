"""Questions over documents: SQuAD 2.0 and HotpotQA as one type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from inertia.benchmarks.rows import DataError, Part, RowError, Rows, Schema, not_blank
from inertia.benchmarks.seeding import digest


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

    Attributes:
        documents: The documents.
        questions: The questions.
        refused: Number of questions of the file that were refused.

    Raises:
        DataError: If there is no question.
    """

    documents: tuple[str, ...] = field(repr=False)
    questions: tuple[Question, ...] = field(repr=False)
    refused: int = 0

    def __post_init__(self) -> None:
        if not self.questions:
            raise DataError("the data hold no answerable question")

    @cached_property
    def sha256(self) -> str:
        """Hash of documents and questions: the identity of the data, whatever the file format."""
        return digest([self.documents, self.questions])


class _Asked(NamedTuple):
    """One question, its documents still as texts; `group` names the documents that are related."""

    text: str
    answers: tuple[str, ...]
    gold: tuple[str, ...]
    group: str


def squad(rows: Rows) -> Questions:
    """Return SQuAD 2.0's answerable questions; a paragraph's article gives its related documents.

    Args:
        rows: As `SQUAD` states them.

    Source: RULER `qa.py`, `read_squad`.
    """
    asked = (_Asked(row["question"], _answers(row), (row["context"],), row["title"]) for row in rows.data)
    return _indexed(asked, len(rows.refused))


def hotpot(rows: Rows) -> Questions:
    """Return HotpotQA's questions; all documents given with a question, distractors included, must be shown.

    Args:
        rows: As `HOTPOT` states them.

    Source: RULER `qa.py`, `read_hotpotqa`.
    """

    def asked(row: Mapping[str, Any]) -> _Asked:
        texts = zip(row["context"]["title"], row["context"]["sentences"], strict=True)
        gold = tuple(dict.fromkeys(f"{title}\n{''.join(sentences)}" for title, sentences in texts))
        return _Asked(row["question"], (row["answer"],), gold, str(row["row"]))

    return _indexed(map(asked, rows.data), len(rows.refused))


def _answers(row: Mapping[str, Any]) -> tuple[str, ...]:
    return () if row["is_impossible"] else tuple(row["answers"]["text"])


def _squad_parts(row: Mapping[str, Any]) -> Iterator[Part]:
    """The questions of the official file, which is one object, in the shape of the Hub's rows; each row else."""
    if "data" not in row:
        yield "", _columns(row)
        return
    for article, content in _each(row, "data", ""):
        for paragraph, texts in _each(content, "paragraphs", article):
            asked = list(_each(texts, "qas", paragraph))
            # A paragraph that nothing is asked about is a document all the same.
            for place, item in asked or [(paragraph, {"question": "", "answers": []})]:
                if not isinstance(item, Mapping):
                    yield place, item
                    continue
                own = {name: item[name] for name in ("question", "answers", "is_impossible") if name in item}
                yield place, _columns({"title": article, **texts, **own})


def _each(value: Any, name: str, place: str) -> Iterator[tuple[str, Any]]:
    """The places and items of the list `name` of an object; where there is none, one place and the `RowError`."""
    if isinstance(value, RowError):
        yield place, value
        return
    items = value.get(name) if isinstance(value, Mapping) else None
    full = f"{place}.{name}" if place else name
    if not isinstance(items, list):
        yield full, RowError("", "a list wanted")
        return
    yield from ((f"{full}[{index}]", item) for index, item in enumerate(items))


def _columns(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row with its answers as columns, as the Hub has them; the official file has objects."""
    answers = row.get("answers")
    if not isinstance(answers, list) or not all(isinstance(each, Mapping) and "text" in each for each in answers):
        return row
    return {**row, "answers": {"text": [each["text"] for each in answers]}}


def _check_squad(row: Mapping[str, Any]) -> None:
    not_blank("context")(row)
    answers = _answers(row)
    if row["is_impossible"] is False and not answers:
        raise RowError("answers.text", "at least one wanted where is_impossible is false, got none")
    if answers:
        not_blank("question")(row)
    if not all(answer.strip() for answer in answers):
        raise RowError("answers.text", f"blank, got {list(answers)}")


def _hotpot_parts(row: Mapping[str, Any]) -> Iterator[Part]:
    """The row with its context as columns, as the Hub has it; the official file has pairs of title and sentences."""
    context = row.get("context")
    if isinstance(context, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in context):
        row = {**row, "context": {"title": [title for title, _ in context], "sentences": [text for _, text in context]}}
    yield "", row


def _check_hotpot(row: Mapping[str, Any]) -> None:
    not_blank("question", "answer")(row)
    titles, texts = (row["context"][name] for name in ("title", "sentences"))
    if not titles or len(titles) != len(texts):
        raise RowError("context", f"as many titles as texts wanted, at least one, got {len(titles)} and {len(texts)}")


SQUAD = Schema(
    {"title": str, "context": str, "question": str, "answers": {"text": [str]}, "is_impossible": bool},
    optional=frozenset({"is_impossible"}),
    within=_squad_parts,
    check=_check_squad,
)
"""The Hub's rows, a question each; the official file's are brought into their shape. No answer: unanswerable."""

HOTPOT = Schema(
    {"question": str, "answer": str, "context": {"title": [str], "sentences": [[str]]}},
    within=_hotpot_parts,
    check=_check_hotpot,
)
"""The Hub's rows; the official file's are brought into their shape."""


def _indexed(asked: Iterable[_Asked], refused: int) -> Questions:
    """Return questions over the distinct documents of all groups; those without an answer give documents only."""
    every = list(asked)
    groups: dict[str, dict[str, None]] = {}
    for item in every:
        groups.setdefault(item.group, {}).update(dict.fromkeys(item.gold))
    documents = tuple(sorted({document for members in groups.values() for document in members}))
    number = {document: index for index, document in enumerate(documents)}

    def question(item: _Asked) -> Question:
        gold = tuple(number[document] for document in item.gold)
        related = (number[document] for document in groups[item.group])
        return Question(item.text, item.answers, gold, tuple(index for index in related if index not in gold))

    return Questions(documents, tuple(question(item) for item in every if item.answers), refused)
