"""Where a report's numbers come from: code and dates of the records, never the moment of printing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Provenance(NamedTuple):
    """What made a set of cells: every commit that took part (blank between two), and when the last one ended.

    A commit with uncommitted changes ends in "-dirty"; a run outside a checkout has the commit "unknown".
    """

    commit: str
    recorded: str

    def line(self) -> str:
        """Return one line for the foot of a table or a figure, commits cut to 12 digits."""
        pairs = (commit.partition("-") for commit in self.commit.split(" "))
        code = ", ".join(sha[:12] + dash + mark for sha, dash, mark in pairs)
        return f"code {code}, recorded {self.recorded}"


def of_manifests(manifests: Iterable[Mapping[str, Any]]) -> Provenance:
    """Return the provenance of cells from their manifests; without any, it is "none" on both counts."""
    sessions = [session for manifest in manifests for session in manifest["sessions"]]
    commits = sorted({_commit(session["provenance"].get("code", {})) for session in sessions})
    ends = [session["ended"] if session["ended"] is not None else session["started"] for session in sessions]
    return Provenance(" ".join(commits) if commits else "none", max(ends, default="none"))


def _commit(code: Mapping[str, Any]) -> str:
    if code.get("commit") is None:
        return "unknown"
    return code["commit"] + ("-dirty" if code["dirty"] else "")
