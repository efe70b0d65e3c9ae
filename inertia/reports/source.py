"""The records behind a report, from local runs or from what is published with the project."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from inertia.records import Cell as RecordedCell
from inertia.records import listed, read_cells
from inertia.reports.declaration import FULL_CACHE

Origin = Literal["runs", "published", "auto"]

REFERENCE_PROFILE = "laptop"
"""The profile that is looked up when none is named; its reports carry the plain name."""

_ENTRY = ("cell_id", "axes", "task", "length", "planned")


class Cell(NamedTuple):
    """One cell of an experiment.

    Attributes:
        id: cell id.
        settings: what it was varied in: method, policy (method and what tells equal methods apart), alpha,
            compression_ratio, question_visible, backbone, benchmark, task, length, and every part's by dotted name;
            None where a policy has no such setting.
        planned: number of its examples.
        samples: the records of the planned examples that are ok, in order. A cell may hold more than is planned here,
            for another experiment; the answer must not depend on that.
    """

    id: str
    settings: Mapping[str, Any]
    planned: int
    samples: tuple[Mapping[str, Any], ...] = ()

    @property
    def complete(self) -> bool:
        """True when every planned example is ok; a mean over fewer would be a mean over survivors."""
        return len(self.samples) == self.planned


class Source(NamedTuple):
    """All that a report depends on; `commit` holds every commit that took part, `recorded` when the last run ended."""

    experiment: str
    scale: str
    backbone: str
    backbone_label: str
    cells: tuple[Cell, ...]
    commit: str
    recorded: str

    @property
    def records(self) -> str:
        """Return one line for the foot of a report, commits cut to 12 digits."""
        pairs = (commit.partition("-") for commit in self.commit.split(" "))
        return f"code {', '.join(sha[:12] + dash + mark for sha, dash, mark in pairs)}, recorded {self.recorded}"


def find_listing(results: Path, experiment: str, profile: str, origin: Origin) -> tuple[dict[str, Any], Path]:
    """Return the listing of an experiment and the root or file of its records: the one place that knows where they lie.

    A listing names the experiment, profile, scale, backbone and backbone_label, and as cells entries of cell_id, axes
    (what was varied, by dotted name), task, length and planned.

    Raises:
        FileNotFoundError: there is none; the message says how to make one.
        ValueError: it is no listing.
    """
    published, local = results / "published" / f"{experiment}.{profile}.json", local_listings(results)
    if origin != "runs" and published.is_file():
        try:
            listing = json.loads(published.read_text(encoding="utf-8"))
            lacking = {"scale", "backbone", "backbone_label", "cells"} - set(listing)
        except ValueError as error:
            raise ValueError(f"{published} is no experiment index ({error}); publish the experiment again") from error
        if lacking:
            raise ValueError(f"{published} is no experiment index (no {min(lacking)}); publish the experiment again")
        return listing, published.with_suffix(".parquet")
    if origin != "published" and (experiment, profile) in local:
        entries = local[experiment, profile]
        about = {"experiment": experiment, "profile": profile} | {n: entries[0][n] for n in ("scale", "backbone")}
        labels = "; ".join(dict.fromkeys(entry["backbone_label"] for entry in entries))
        cells = [{name: entry[name] for name in _ENTRY} for entry in entries]
        return {**about, "backbone_label": labels, "cells": cells}, results / "runs"
    there = ", ".join(f"{name} {of}" for name, of in sorted(local))
    hint = f"local runs there are: {there} (experiment, profile); " if there else ""
    raise FileNotFoundError(
        f"no {'' if origin == 'auto' else origin + ' '}records of {experiment} at profile {profile} below {results}; "
        f"{hint}run `python -m inertia -m experiment={experiment} profile={profile}` first, or your own sweep with "
        f"experiment_name={experiment} profile_name={profile}"
    )


def local_listings(results: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return (experiment, profile) -> what local runs list of it."""
    return listed(results / "runs") if (results / "runs").is_dir() else {}


def the_profile(results: Path, experiment: str) -> str:
    """Return the profile that an experiment is looked up under when none is named: the reference, or its only one."""
    found = {profile for name, profile in local_listings(results) if name == experiment}
    found |= {path.name.split(".")[1] for path in (results / "published").glob(f"{experiment}.*.json")}
    return next(iter(found)) if len(found) == 1 else REFERENCE_PROFILE


def load_source(results: Path, experiment: str, profile: str | None = None, origin: Origin = "auto") -> Source:
    """Return the records of an experiment.

    Args:
        results: the folder of results (`inertia.paths.results_dir`).
        experiment: its name, such as "table05".
        profile: its profile, such as "laptop"; None takes `the_profile`.
        origin: "runs" (local), "published" (carried by the project), or "auto" (published where there are any).

    Raises:
        FileNotFoundError: there are no such records; the message says how to make them.
        ValueError: a record is not what its listing claims, or the records are of several score versions.
    """
    listing, root = find_listing(results, experiment, profile or the_profile(results, experiment), origin)
    # A cell that was never started, or killed before its plan was written, has nothing to read: incomplete 0/n.
    found = {cell.id: cell for cell in read_cells(root, {entry["cell_id"] for entry in listing["cells"]})}
    versions = sorted({cell.identity.get("score_version") for cell in found.values()}, key=str)
    if len(versions) > 1:
        raise ValueError(f"score versions {versions} cannot share a report; run the older cells again")
    # Only records name the benchmark; a cell without any is of that of others of its task.
    benchmarks = {cell.identity["benchmark"]["task"]: cell.identity["benchmark"]["name"] for cell in found.values()}
    policies = policy_labels([entry["axes"] for entry in listing["cells"]])
    cells = []
    for entry, policy in zip(listing["cells"], policies, strict=True):
        settings = settings_of(entry) | {"policy": policy, "benchmark": benchmarks.get(entry["task"])}
        samples = finished(entry, found[entry["cell_id"]]) if entry["cell_id"] in found else ()
        cells.append(Cell(entry["cell_id"], {"backbone": listing["backbone"]} | settings, entry["planned"], samples))
    made = provenance(cell.manifest.get("sessions", ()) for cell in found.values())
    return Source(
        experiment, listing["scale"], listing["backbone"], listing["backbone_label"], tuple(cells), *made
    )


def settings_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a listed cell was varied in; whatever was swept along with it, the full cache has no such setting."""
    axes = entry["axes"]
    ratio = axes.get("budget.compression_ratio", axes.get("prefill.budget.compression_ratio"))
    named = {"alpha": axes.get("alpha"), "compression_ratio": ratio}
    named["question_visible"] = axes.get("prefill.question_visible", True)
    if axes["method"] == FULL_CACHE:
        named = dict.fromkeys(named)
    return {**axes, **named, "task": entry["task"], "length": entry["length"]}


def finished(entry: Mapping[str, Any], cell: RecordedCell) -> tuple[Mapping[str, Any], ...]:
    """Return the planned examples of a cell that are ok, in order.

    Raises:
        ValueError: the records' task or a setting of their policy is not what the listing says.
    """
    claimed = {**entry["axes"], "task": entry["task"]}
    recorded = {"task": cell.identity["benchmark"]["task"], **flat(cell.identity.get("policy", {}))}
    for name in (name for name in sorted(claimed) if name in recorded and claimed[name] != recorded[name]):
        raise ValueError(
            f"cell {cell.id} is listed with {name} = {claimed[name]!r} but its records say {recorded[name]!r}; run the "
            "experiment again to rewrite its index"
        )
    rows = sorted(cell.rows, key=lambda row: row["index"])
    return tuple(row for row in rows if row["index"] < entry["planned"] and row["status"] == "ok")


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping with dotted names."""
    found: dict[str, Any] = {}
    for name, value in nested.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found


def policy_labels(policies: list[Mapping[str, Any]]) -> list[str]:
    """Return for each policy its method, and those of its settings that tell equal methods apart."""
    distinct = {repr(own): own for own in policies}  # few, where cells are many
    labels = {}
    for name, own in distinct.items():
        peers = [other for other in distinct.values() if other["method"] == own["method"]]
        # alpha stands among the dotted settings too.
        varied = [k for k in own if k not in ("alpha", "method") and len({repr(peer.get(k)) for peer in peers}) > 1]
        said = ", ".join(f"{key.rpartition('.')[2]}={own[key]}" for key in varied)
        labels[name] = f"{own['method']} ({said})" if said else own["method"]
    return [labels[repr(own)] for own in policies]


def provenance(sessions: Iterable[Iterable[Mapping[str, Any]]]) -> tuple[str, str]:
    """Return every commit ("-dirty" with uncommitted changes; "unknown"), and when the last session ended."""
    found = [session for several in sessions for session in several]
    codes = [session["provenance"].get("code", {}) for session in found]
    commits = {(c["commit"] + ("-dirty" if c["dirty"] else "")) if c.get("commit") else "unknown" for c in codes}
    return " ".join(sorted(commits)) or "none", max((s["ended"] or s["started"] for s in found), default="none")
