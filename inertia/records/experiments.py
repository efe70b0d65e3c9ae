"""Which cells make up an experiment: the newest listing in all files of a folder of records."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from inertia.records.canonical import canonical_json
from inertia.records.store import CorruptRecord, files, reading, rows

_log = logging.getLogger(__name__)


def listed(root: Path, experiment: str, profile: str) -> list[dict[str, Any]]:
    """Return the entries of an experiment and profile, as listed; none where it was never listed.

    A file that cannot be read is said in the log and left out.

    Args:
        root: the folder of files.
        experiment: its name.
        profile: its profile.
    """
    found = []
    for path in files(root):
        try:
            with reading(path) as connection:
                found += rows(connection, "listing", "WHERE experiment = ? AND profile = ?", (experiment, profile))
        except CorruptRecord as error:
            _log.warning("%s: %s; its listings are left out", path, error)
    return [json.loads(row["entry"]) for row in newest(found)]


def names(root: Path) -> list[tuple[str, str]]:
    """Return every (experiment, profile) that is listed, sorted."""
    found: set[tuple[str, str]] = set()
    for path in files(root):
        try:
            with reading(path) as connection:
                found.update(connection.execute("SELECT DISTINCT experiment, profile FROM listing"))
        except CorruptRecord as error:
            _log.warning("%s: %s; its listings are left out", path, error)
    return sorted(found)


def newest(listings: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the listings that no later one replaces: of the same cell, or of equal axes, task and length.

    Several jobs may share one experiment; an older listing of equal place and axes is an older run of the same thing.
    """
    latest: dict[str, str] = {}
    several = sorted(listings, key=lambda row: (row["listed"], row["cell"]))
    for row in several:
        latest |= dict.fromkeys((row["cell"], _place(row)), row["listed"])
    kept = {row["cell"]: row for row in several if latest[row["cell"]] == row["listed"] == latest[_place(row)]}
    return list(kept.values())


def _place(row: Mapping[str, Any]) -> str:
    entry = json.loads(row["entry"])
    return canonical_json([entry[key] for key in ("axes", "task", "length")])
