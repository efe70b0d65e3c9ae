"""Outside texts by name, where they come from, and what is known of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inertia.benchmarks.rows import Rows, Schema
from inertia.benchmarks.ruler import questions
from inertia.benchmarks.ruler.essays import Essays, splitter
from inertia.benchmarks.ruler.questions import Questions
from inertia.benchmarks.ruler.wording import qa_wording, sha256_of
from inertia.benchmarks.sources import Loads, Source, Text

ESSAYS = "PaulGrahamEssays"
SQUAD = "squad"
HOTPOT = "hotpot"

WHAT = {ESSAYS: "Paul Graham's essays", SQUAD: "SQuAD 2.0 dev", HOTPOT: "HotpotQA dev (distractor)"}
"""What the texts are, by the names under which a source is asked for them."""


@dataclass(frozen=True)
class Sources:
    """Several sources behind one interface, chosen by the name asked for."""

    by_name: Mapping[str, Source] = field(hash=False)

    def load(self, name: str, schema: Schema) -> Rows:
        """Return the rows called `name`."""
        return self.by_name[name].load(name, schema)

    def load_text(self, name: str) -> Text:
        """Return the running text called `name`."""
        return self.by_name[name].load_text(name)


HUB = Sources(
    {
        ESSAYS: Source(
            "hub",
            "essays.parquet",
            "baber/paul_graham_essays",
            "792d672b77d1a67720f7e9820d646358fc18792e",
            {"essays.parquet": "825448033be010042ffd6fc77c32bbcab61f2ef63196f0fc4bfbf5b388a1660e"},
        ),
        SQUAD: Source(
            "hub",
            "squad_v2/validation-00000-of-00001.parquet",
            "rajpurkar/squad_v2",
            "3ffb306f725f7d2ce8394bc1873b24868140c412",
            {"validation-00000-of-00001.parquet": "0560174ab095c5ac0a8c8dc8da05f1625453c45a77e4ce9cabc6947ddfdd24cb"},
        ),
        HOTPOT: Source(
            "hub",
            "hotpot_dev_distractor_v1.json",
            "namlh2004/hotpotqa",
            "7e54db4656209750ff487f6fdf8e39a66dba136b",
            {"hotpot_dev_distractor_v1.json": "e3da074df24e8369009918aa5cdbdd254dadcde4c63f7569d36afd6f2268caa8"},
        ),
    }
)
"""Pinned data on the Hub, the files lm-eval 0.4.13 reads (SQuAD as the Hub's own rows of it).

Revisions and hashes were taken from other projects' published records of these files, not by reading the files
themselves (essays: one record; SQuAD: four; HotpotQA: three). A file with another hash is refused; what was read stands
in `identity`.
"""


def read(name: str, source: Loads) -> Essays | Questions:
    """Return the text called `name`.

    Raises:
        FileNotFoundError: If the source has no such file.
        DataError: If its content is not what it should be.
    """
    if name == ESSAYS:
        return Essays(tuple(source.load_text(name).text.split()))
    schema, made = {SQUAD: (questions.SQUAD, questions.squad), HOTPOT: (questions.HOTPOT, questions.hotpot)}[name]
    return made(source.load(name, schema))


def describe(text: Essays | Questions) -> dict[str, Any]:
    """Return what of an outside text can change an example; JSON-able, and silent on where it lies."""
    if isinstance(text, Essays):
        return {"essays_sha256": text.sha256, "sentences": splitter()}
    wording_sha256 = sha256_of(qa_wording()._asdict())
    return {"questions_sha256": text.sha256, "qa_wording_sha256": wording_sha256, "rows_refused": text.refused}


def missing(task: str, name: str) -> str:
    """Return the message for a task that was given no source."""
    source = HUB.by_name[name]
    return (
        f"RULER task {task!r} needs outside text: {WHAT[name]}. Set benchmark.source to {{kind: path, path: FOLDER}}, "
        f"where FOLDER holds {name}.json (for all tasks: {', '.join(f'{each}.json' for each in WHAT)}), or to "
        f"{{kind: hub, repo: {source.repo}, revision: {source.revision}, path: {source.path}}}"
    )
