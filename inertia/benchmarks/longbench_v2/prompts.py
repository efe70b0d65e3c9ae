"""LongBench-v2's prompts: our own wording with the official parts and answer format, or files by path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inertia.benchmarks.seeding import digest

_FIELD = re.compile(r"\$(?:DOC|Q|C_[A-D]|COT)\$")
_QUESTION_FIELDS = ("$Q$", "$C_A$", "$C_B$", "$C_C$", "$C_D$")
_FILES = {"zero_shot": "0shot.txt", "cot": "0shot_cot.txt", "cot_answer": "0shot_cot_ans.txt"}
_WANTED = {
    "zero_shot": ("$DOC$", *_QUESTION_FIELDS),
    "cot": ("$DOC$", *_QUESTION_FIELDS),
    "cot_answer": (*_QUESTION_FIELDS, "$COT$"),
}


@dataclass(frozen=True)
class Prompts:
    """The three prompts, with the official fields `$DOC$`, `$Q$`, `$C_A$` to `$C_D$` and `$COT$`.

    Attributes:
        label: `inertia` for our wording, `file` for one that was read.
        zero_shot: One call, answer in the official sentence.
        cot: First call of two: reasoning.
        cot_answer: Second call: question, reasoning, no document.

    Raises:
        ValueError: If a prompt lacks a field or holds one twice.
    """

    label: str
    zero_shot: str
    cot: str
    cot_answer: str

    def __post_init__(self) -> None:
        for name, fields in _WANTED.items():
            found = sorted(_FIELD.findall(getattr(self, name)))
            if found != sorted(fields):
                raise ValueError(
                    f"LongBench-v2 prompt {name} must hold once each: {', '.join(fields)}; "
                    f"it holds: {', '.join(found) or 'none'}"
                )

    @property
    def sha256(self) -> str:
        """Hash of the three texts."""
        return digest([self.zero_shot, self.cot, self.cot_answer])


_CHOICES = "Question: $Q$\n\nOptions:\n(A) $C_A$\n(B) $C_B$\n(C) $C_C$\n(D) $C_D$\n\n"
_FORMAT = 'Give your choice in exactly this form: "The correct answer is (X)", with X replaced by A, B, C or D.'
_DOCUMENT = (
    "Below is a document, followed by a question about it with four options.\n\n<document>\n$DOC$\n</document>\n\n"
)

OURS = Prompts(
    label="inertia",
    zero_shot=f"{_DOCUMENT}{_CHOICES}Exactly one option is right. {_FORMAT}",
    cot=f"{_DOCUMENT}{_CHOICES}Exactly one option is right. Reason about it step by step before you choose.",
    cot_answer=(
        "A document, left out here for its length, was followed by a question about it with four options.\n\n"
        f"{_CHOICES}Reasoning so far: $COT$\n\n"
        f"In view of this reasoning, choose the one option that is most likely right. {_FORMAT}"
    ),
)
"""Our wording; scores under it are not those of the official leaderboard."""


def read_prompts(folder: Path) -> Prompts:
    """Return the prompts in `folder`: files `0shot.txt`, `0shot_cot.txt` and `0shot_cot_ans.txt`.

    Raises:
        FileNotFoundError: If one is missing.
        ValueError: If one lacks a field or holds one twice.
    """
    if missing := [name for name in _FILES.values() if not (folder / name).is_file()]:
        raise FileNotFoundError(f"{folder} lacks {', '.join(missing)}; put LongBench-v2's prompt files there")
    texts = {key: (folder / name).read_bytes().decode("utf-8") for key, name in _FILES.items()}
    return Prompts(label="file", **texts)


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return `template` with each field replaced by its stripped value, in one pass.

    Deviations: the official code replaces one field after another, so a document that spells a later field
    would be hit; here it is left alone.
    """
    return _FIELD.sub(lambda field: values[field.group()].strip(), template)
