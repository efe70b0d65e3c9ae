"""The records behind a report, from local runs or from what is published with the project."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from inertia import records
from inertia.reports.declaration import FULL_CACHE

Origin = Literal["runs", "published", "auto"]

REFERENCE_PROFILE = "laptop"
"""The profile that is looked up when none is named; its reports carry the plain name."""


@dataclass(frozen=True)
class Cell:
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


class Listing(NamedTuple):
    """Which cells make up an experiment at a profile, and the root or file that holds their records."""

    stored: Mapping[str, Any]
    records: Path


def find_listing(results: Path, experiment: str, profile: str, origin: Origin) -> Listing | None:
    """Return the listing of an experiment, None where there is none; the one place that knows where it lies.

    Raises:
        ValueError: it is no listing.
    """
    published = results / "published" / f"{experiment}.{profile}.json"
    local = results / "experiments" / f"{experiment}__{profile}.json"
    for place, root in ((published, published.with_suffix(".parquet")), (local, results / "runs")):
        if origin in ("auto", "published" if place is published else "runs") and place.is_file():
            try:
                stored = json.loads(place.read_text(encoding="utf-8"))
                for entry in stored["cells"]:
                    entry["cell_id"], entry["axes"]["method"], entry["task"], entry["length"], entry["planned"]  # noqa: B018
                stored["scale"], stored["backbone"], stored["backbone_label"]  # noqa: B018
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{place} is no experiment index ({error!r}); run the experiment again") from error
            return Listing(stored, root)
    return None


def require_listing(results: Path, experiment: str, profile: str, origin: Origin) -> Listing:
    """Return the listing of an experiment.

    Raises:
        FileNotFoundError: there is none; the message says how to make one.
    """
    listing = find_listing(results, experiment, profile, origin)
    if listing is None:
        there = sorted(path.stem for path in (results / "experiments").glob("*__*.json"))
        hint = f"local runs there are: {', '.join(there)} (experiment__profile); " if there else ""
        raise FileNotFoundError(
            f"no {'' if origin == 'auto' else origin + ' '}records of {experiment} at profile {profile} below "
            f"{results}; {hint}run `python -m inertia -m experiment={experiment} profile={profile}` first, or your "
            f"own sweep with experiment_name={experiment} profile_name={profile}"
        )
    return listing


def the_profile(results: Path, experiment: str) -> str:
    """Return the profile that an experiment is looked up under when none is named: the reference, or its only one."""
    found = {path.stem.split("__", 1)[1] for path in (results / "experiments").glob(f"{experiment}__*.json")}
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
    profile = profile or the_profile(results, experiment)
    listing = require_listing(results, experiment, profile, origin)
    stored = listing.stored
    wanted = {entry["cell_id"] for entry in stored["cells"]}
    # A cell that was never started, or killed before its manifest, has nothing to read: incomplete 0/n.
    found = {}
    if listing.records.exists():
        found = {cell.id: cell for cell in records.read_cells(listing.records) if cell.id in wanted}
    versions = sorted({cell.identity.get("score_version") for cell in found.values()}, key=str)
    if len(versions) > 1:
        raise ValueError(f"score versions {versions} cannot share a report; run the older cells again")
    return Source(
        experiment,
        stored["scale"],
        stored["backbone"],
        stored["backbone_label"],
        listed_cells(stored, found),
        *provenance(cell.manifest.get("sessions", ()) for cell in found.values()),
    )


def listed_cells(stored: Mapping[str, Any], found: Mapping[str, records.Cell]) -> tuple[Cell, ...]:
    """Return the cells that a listing names, with what was recorded of them.

    Raises:
        ValueError: a record's task or a setting of its policy is not what the listing says.
    """
    entries = stored["cells"]
    policies = policy_labels([entry["axes"] for entry in entries])
    # Only records say it; a cell without any is of the benchmark of others of its task.
    recorded = [(entry["task"], found[entry["cell_id"]]) for entry in entries if entry["cell_id"] in found]
    benchmarks = {task: cell.identity["benchmark"]["name"] for task, cell in recorded}
    cells = []
    for entry, policy in zip(entries, policies, strict=True):
        axes, cell = entry["axes"], found.get(entry["cell_id"])
        full = axes["method"] == FULL_CACHE
        settings = {
            "backbone": stored["backbone"],
            **axes,
            "policy": policy,
            # Whatever was swept along with it, the full cache has none of these.
            "alpha": None if full else axes.get("alpha"),
            "compression_ratio": axes.get("budget.compression_ratio", axes.get("prefill.budget.compression_ratio")),
            "question_visible": None if full else axes.get("prefill.question_visible", True),
            "benchmark": benchmarks.get(entry["task"]),
            "task": entry["task"],
            "length": entry["length"],
        }
        rows = [] if cell is None else sorted(cell.rows, key=lambda row: row["index"])
        if cell is not None:
            check_listed(entry, cell)
        ok = tuple(row for row in rows if row["index"] < entry["planned"] and row["status"] == "ok")
        cells.append(Cell(entry["cell_id"], settings, entry["planned"], ok))
    return tuple(cells)


def check_listed(entry: Mapping[str, Any], cell: records.Cell) -> None:
    """Refuse a cell whose records say another task or policy than its listing."""
    claimed = {"task": entry["task"], **entry["axes"]}
    recorded = {"task": cell.identity["benchmark"]["task"], **flat(cell.identity.get("policy", {}))}
    for name in sorted(set(claimed) & set(recorded)):
        if claimed[name] != recorded[name]:
            raise ValueError(
                f"cell {cell.id} is listed with {name} = {claimed[name]!r} but its records say {recorded[name]!r}; "
                "run the experiment again to rewrite its index"
            )


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping with dotted names."""
    found: dict[str, Any] = {}
    for name, value in nested.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found


def policy_labels(policies: list[Mapping[str, Any]]) -> list[str]:
    """Return for each policy its method, and those of its settings that tell equal methods apart."""
    labels = []
    for own in policies:
        peers = [other for other in policies if other["method"] == own["method"]]
        # alpha stands among the dotted settings too.
        varied = [k for k in own if k not in ("alpha", "method") and len({repr(peer.get(k)) for peer in peers}) > 1]
        said = ", ".join(f"{key.rpartition('.')[2]}={own[key]}" for key in varied)
        labels.append(f"{own['method']} ({said})" if said else own["method"])
    return labels


def provenance(sessions: Iterable[Iterable[Mapping[str, Any]]]) -> tuple[str, str]:
    """Return every commit ("-dirty" with uncommitted changes; "unknown"), and when the last session ended."""
    found = [session for several in sessions for session in several]
    codes = [session["provenance"].get("code", {}) for session in found]
    commits = {(c["commit"] + ("-dirty" if c["dirty"] else "")) if c.get("commit") else "unknown" for c in codes}
    ended = [session["ended"] or session["started"] for session in found]
    return " ".join(sorted(commits)) or "none", max(ended, default="none")
