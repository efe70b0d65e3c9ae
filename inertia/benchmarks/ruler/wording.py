"""The words of the prompts, read from installed packages: data, not code of ours."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class Wording:
    """RULER's prompt texts; `{...}` fields are filled by the tasks.

    The `*_prefix` texts start the assistant's turn and begin with a blank, as the official templates have it.
    """

    needle: str
    noise: str
    niah: str
    niah_prefix: str
    vt: str
    vt_prefix: str
    cwe: str
    cwe_prefix: str
    fwe: str
    fwe_prefix: str

    @property
    def sha256(self) -> str:
        """Hash of all texts as they are used."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class QaWording:
    """The prompt texts of the question-answering tasks.

    Attributes:
        template: The user turn, with fields `{context}` and `{query}`.
        document: One document, with fields `{i}` and `{document}`.
        prefix: Start of the assistant's turn, with its leading blank.
    """

    template: str
    document: str
    prefix: str

    @property
    def sha256(self) -> str:
        """Hash of all texts as they are used."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class WordLists:
    """The English words of the `wonderwords` package, each list sorted and without duplicates."""

    nouns: tuple[str, ...]
    adjectives: tuple[str, ...]
    verbs: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Every word once, sorted."""
        return tuple(sorted({*self.nouns, *self.adjectives, *self.verbs}))


@cache
def wording() -> Wording:
    """Return the prompt texts of lm-eval's RULER tasks with the official code's blanks and spelling.

    The modules are parsed, never imported: importing them needs nltk and starts a download.

    Raises:
        ModuleNotFoundError: If lm_eval is not installed.
        LookupError: If the installed lm_eval keeps a text elsewhere than 0.4.13 does.

    Source: lm_eval/tasks/ruler of the installed lm-eval (MIT), adapted there from NVIDIA RULER (Apache-2.0).

    Deviations: from lm-eval, towards the official code: the NIAH prefix gets its leading blank back, and the
    misspelling of "assigned" in the variable-tracking prefix is corrected (official fix of May 2025).
    """
    folder = _package("lm_eval", "lm_eval==0.4.13") / "tasks" / "ruler"
    niah, prepare, vt, cwe, fwe = (
        ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))
        for name in ("niah_utils", "prepare_niah", "vt_utils", "cwe_utils", "fwe_utils")
    )
    vt_config = ast.literal_eval(_assigned(vt, "CONFIG"))["variable_tracking"]
    cwe_config = ast.literal_eval(_assigned(cwe, "CONFIG"))
    fwe_config = ast.literal_eval(_assigned(fwe, "CONFIG"))
    return Wording(
        needle=ast.literal_eval(_assigned(prepare, "NEEDLE")),
        noise=ast.literal_eval(_assigned(vt, "noise")).strip(),
        niah=ast.literal_eval(_assigned(niah, "TEMPLATE")),
        niah_prefix=" " + _format_string(prepare, holding="{type_needle_v}"),
        vt=vt_config["template"],
        vt_prefix=vt_config["answer_prefix"].replace("assgined", "assigned"),
        cwe=cwe_config["template"],
        cwe_prefix=cwe_config["answer_prefix"],
        fwe=fwe_config["template"],
        fwe_prefix=fwe_config["answer_prefix"],
    )


@cache
def qa_wording() -> QaWording:
    """Return the prompt texts of lm-eval's RULER question answering, parsed and never imported.

    Raises:
        ModuleNotFoundError: If lm_eval is not installed.
        LookupError: If the installed lm_eval keeps a text elsewhere than 0.4.13 does.

    Source: lm_eval/tasks/ruler of the installed lm-eval (MIT), adapted there from NVIDIA RULER (Apache-2.0).

    Deviations: from lm-eval, towards the official code: the prefix gets its leading blank back.
    """
    folder = _package("lm_eval", "lm_eval==0.4.13") / "tasks" / "ruler"
    tree = ast.parse((folder / "qa_utils.py").read_text(encoding="utf-8"))
    config = ast.literal_eval(_assigned(tree, "CONFIG"))
    return QaWording(
        template=config["template"],
        document=ast.literal_eval(_assigned(tree, "DOCUMENT_PROMPT")),
        prefix=" " + config["answer_prefix"],
    )


@cache
def word_lists() -> WordLists:
    """Return the word lists inside the installed `wonderwords`.

    Raises:
        ModuleNotFoundError: If wonderwords is not installed.
    """
    folder = _package("wonderwords", "wonderwords==3.0.1") / "assets"

    def words(name: str) -> tuple[str, ...]:
        lines = (folder / name).read_text(encoding="utf-8").splitlines()
        return tuple(sorted({line.rstrip() for line in lines} - {""}))

    return WordLists(words("nounlist.txt"), words("adjectivelist.txt"), words("verblist.txt"))


def split(template: str) -> tuple[str, str]:
    """Return the parts of `template` before the haystack and after it and its line break."""
    before, _, after = template.partition("{context}\n")
    return before, after


def _package(name: str, requirement: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"RULER's texts are read from the package {name}, which is not installed; "
            f"fix: pip install {requirement}"
        )
    return Path(spec.submodule_search_locations[0])


def _assigned(tree: ast.Module, name: str) -> ast.expr:
    """The first value assigned to `name` anywhere in `tree`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
            return node.value
    raise LookupError(_moved(f"no assignment to {name}"))


def _format_string(tree: ast.Module, holding: str) -> str:
    """The f-string of `tree` that contains the field `holding` and asks for a query, as a template."""
    for text in _format_strings(tree):
        if holding in text and "{query}" in text:
            return text
    raise LookupError(_moved(f"no f-string with {holding}"))


def _format_strings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{" + ast.unparse(part.value) + "}"
                for part in node.values
            )


def _moved(what: str) -> str:
    return f"{what} in lm_eval/tasks/ruler; the wording is known for lm_eval 0.4.13: install that version"
