"""The words of the prompts, read from installed packages: data, not code of ours."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from inertia.benchmarks.seeding import digest
from inertia.benchmarks.words import lm_eval_tasks, moved


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


class QaWording(NamedTuple):
    """The prompt texts of the question-answering tasks.

    Attributes:
        template: The user turn, with fields `{context}` and `{query}`.
        document: One document, with fields `{i}` and `{document}`.
        prefix: Start of the assistant's turn, with its leading blank.
    """

    template: str
    document: str
    prefix: str


def sha256_of(texts: Mapping[str, str]) -> str:
    """Return the hash of prompt texts by name, as they are used."""
    return digest(dict(sorted(texts.items())))


@cache
def wording() -> Wording:
    """Return the prompt texts of lm-eval's RULER tasks with the official code's blanks and spelling.

    The modules are parsed, never imported: importing them needs nltk and starts a download.

    Raises:
        ModuleNotFoundError: If lm_eval is not installed.
        LookupError: If the installed lm_eval keeps a text elsewhere than 0.4.13 does.

    Source: lm_eval/tasks/ruler of the installed lm-eval (MIT), adapted there from NVIDIA RULER (Apache-2.0).

    Deviations: from lm-eval, towards the official code: the prefixes of NIAH and QA get their leading blank
    back, and the misspelling of "assigned" in the variable-tracking prefix is corrected (official fix of May 2025).
    """
    niah, prepare, vt, cwe, fwe = map(_module, ("niah_utils", "prepare_niah", "vt_utils", "cwe_utils", "fwe_utils"))
    vt_config, cwe_config, fwe_config = (_assigned(tree, "CONFIG") for tree in (vt, cwe, fwe))
    vt_config = vt_config["variable_tracking"]
    return Wording(
        needle=_assigned(prepare, "NEEDLE"),
        noise=_assigned(vt, "noise").strip(),
        niah=_assigned(niah, "TEMPLATE"),
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
    """Return the prompt texts of lm-eval's RULER question answering; source, errors and deviations as `wording`."""
    tree = _module("qa_utils")
    config = _assigned(tree, "CONFIG")
    return QaWording(config["template"], _assigned(tree, "DOCUMENT_PROMPT"), prefix=" " + config["answer_prefix"])


def split(template: str) -> tuple[str, str]:
    """Return the parts of `template` before the haystack and after it and its line break."""
    before, _, after = template.partition("{context}\n")
    return before, after


def _module(name: str) -> ast.Module:
    return ast.parse((lm_eval_tasks("ruler") / f"{name}.py").read_text(encoding="utf-8"))


def _assigned(tree: ast.Module, name: str) -> Any:
    """The first value assigned to `name` anywhere in `tree`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
            return ast.literal_eval(node.value)
    raise moved(f"no assignment to {name}", "ruler")


def _format_string(tree: ast.Module, holding: str) -> str:
    """The f-string of `tree` that contains the field `holding` and asks for a query, as a template."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (
                str(part.value) if isinstance(part, ast.Constant) else "{" + ast.unparse(part.value) + "}"
                for part in node.values
            )
            if holding in (text := "".join(parts)) and "{query}" in text:
                return text
    raise moved(f"no f-string with {holding}", "ruler")
