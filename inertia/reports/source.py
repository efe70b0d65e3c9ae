"""The records behind a report, from local runs or from what is published with the project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from inertia.records import listed, read_cells, read_samples
from inertia.reports.index import Index, parse_index, read_index
from inertia.reports.provenance import Provenance, of_manifests
from inertia.reports.write import REFERENCE_PROFILE

if TYPE_CHECKING:
    from pandas import DataFrame


Origin = Literal["runs", "published", "auto"]


class Source(NamedTuple):
    """All that a report depends on: an experiment's index, its samples in long form, their provenance."""

    index: Index
    samples: DataFrame
    provenance: Provenance


def load_source(results: Path, experiment: str, profile: str, origin: Origin = "auto") -> Source:
    """Return the records of an experiment at a profile.

    Args:
        results: The folder of results (`inertia.paths.results_dir`).
        experiment: Its name, such as "table05".
        profile: Its profile, such as "laptop".
        origin: "runs" (local), "published" (carried by the project), or "auto" (published where there are any).

    Raises:
        FileNotFoundError: There are no such records; the message says how to make them.
    """
    local, published = results / "runs", published_index(results, experiment, profile)
    listings = local_listings(results)
    if origin != "runs" and published.is_file():
        index, root = read_index(published), published.with_suffix(".parquet")
    elif origin != "published" and (experiment, profile) in listings:
        index, root = index_of(experiment, profile, listings[experiment, profile]), local
    else:
        index, root = None, local
    if index is not None:
        # A cell that was never started, or killed before its plan was written, has nothing to read: incomplete 0/n.
        ids = [cell.cell_id for cell in index.cells]
        manifests = [cell.manifest for cell in read_cells(root, ids)]
        return Source(index, read_samples(root, cells=ids), of_manifests(manifests))
    missing = {"runs": f"not listed in {local}", "published": f"{published} missing"}
    tried = [missing[origin]] if origin in missing else [missing["published"], missing["runs"]]
    there = [f"{name} {of}" for name, of in sorted(listings)]
    hint = f"local runs there are: {', '.join(there)} (experiment, profile); " if there else ""
    raise FileNotFoundError(
        f"no records of {experiment} at profile {profile}: {' and '.join(tried)}; {hint}"
        f"run `python -m inertia -m experiment={experiment} profile={profile}` first, or your own sweep with "
        f"experiment_name={experiment} profile_name={profile}"
    )


def the_profile(results: Path, experiment: str) -> str:
    """Return the profile that an experiment is looked up under when none is named: the reference, or its only one."""
    found = {profile for name, profile in local_listings(results) if name == experiment}
    found |= {path.name.split(".")[1] for path in (results / "published").glob(f"{experiment}.*.json")}
    return next(iter(found)) if len(found) == 1 else REFERENCE_PROFILE


def local_listings(results: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return (experiment, profile) -> what local runs list of it."""
    runs = results / "runs"
    return listed(runs) if runs.is_dir() else {}


def index_of(experiment: str, profile: str, entries: list[dict[str, Any]]) -> Index:
    """Return the index that the entries of an experiment make up."""
    labels = "; ".join(dict.fromkeys(entry["backbone_label"] for entry in entries))
    first = {"scale": entries[0]["scale"], "backbone": entries[0]["backbone"], "backbone_label": labels}
    return parse_index({"experiment": experiment, "profile": profile, **first, "cells": entries})


def published_index(results: Path, experiment: str, profile: str) -> Path:
    """Return where the index of a published experiment lies; its cells lie beside it, as .parquet."""
    return results / "published" / f"{experiment}.{profile}.json"
