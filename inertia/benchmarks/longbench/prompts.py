"""LongBench's prompts, read from the installed lm-eval: data, not code of ours."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from inertia.benchmarks.longbench.tasks import find
from inertia.benchmarks.words import lm_eval_tasks, moved

_CONTEXT = "{{context}}"
_QUESTION = "{{question}}"


class Template(NamedTuple):
    """A prompt around the two things that vary; `after` may hold the question's field once.

    Attributes:
        before: Text before the context.
        after: Text after the context.
    """

    before: str
    after: str

    def question(self, text: str) -> str:
        """Return what follows the context when `text` is asked."""
        return self.after.replace(_QUESTION, text)

    @property
    def asks(self) -> bool:
        """Whether a question is part of the prompt."""
        return _QUESTION in self.after

    @property
    def sha256(self) -> str:
        """Hash of the template as it is used."""
        return hashlib.sha256(f"{self.before}{_CONTEXT}{self.after}".encode()).hexdigest()


def _ending(end: str) -> Callable[[str], str]:
    """The rule: the prompt ends in this one blank or line break."""
    return lambda text: text.rstrip() + end


def _two_breaks(text: str) -> str:
    """The rule: two line breaks between context and question."""
    return text.replace(f"{_CONTEXT}\n{_QUESTION}", f"{_CONTEXT}\n\n{_QUESTION}")


REPAIRS: Mapping[str, Callable[[str], str]] = {
    "passage_retrieval_en": _ending(" "),
    "passage_count": _ending(" "),
    "lcc": _ending("\n"),
    "repobench-p": _ending("\n"),
    "triviaqa": _two_breaks,
    "samsum": _two_breaks,
}
"""Where lm-eval's prompt differs from the official one, and the rule that restores it; all else is equal."""


@cache
def template(task: str) -> Template:
    """Return the official prompt of `task`.

    The task file is parsed as YAML and no module is imported: importing them needs packages of other tasks.

    Raises:
        ValueError: If the task is unknown.
        ModuleNotFoundError: If lm_eval is not installed.
        LookupError: If the installed lm_eval keeps the prompt elsewhere than 0.4.13 does.

    Source: lm_eval/tasks/longbench of the installed lm-eval (MIT), adapted there from LongBench (MIT).

    Deviations: from lm-eval, towards LongBench's `config/dataset2prompt.json`, as `REPAIRS` says.
    """
    name = find(task).prompt
    text = _field(lm_eval_tasks("longbench") / f"{name}.yaml", "doc_to_text")
    before, context, after = REPAIRS.get(name, str)(text).partition(_CONTEXT)
    if not context or _CONTEXT in after or after.count(_QUESTION) > 1:
        raise moved(f"the prompt of {name} has not one context and at most one question", "longbench")
    return Template(before, after)


def _field(file: Path, name: str) -> str:
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads lm-eval's files, whose `!function` tags name code that is not wanted here."""

    Loader.add_multi_constructor("!", lambda *_: None)
    if not file.is_file():
        raise moved(f"no file {file.name}", "longbench")
    value = yaml.load(file.read_text(encoding="utf-8"), Loader).get(name)  # noqa: S506 - a safe loader
    if not isinstance(value, str):
        raise moved(f"no text {name} in {file.name}", "longbench")
    return value
