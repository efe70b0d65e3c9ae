"""Cells chosen by name, as lines for people or for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase

from inertia.records.facts import Damage, Facts, names

STATUSES = ("complete", "incomplete", "damaged")
_WIDE = 100
_SHORTEST = 8
_GAP = "  "


@dataclass(frozen=True)
class Filter:
    """Which cells are meant; every pattern may hold * and ?, None lets everything through.

    Attributes:
        backbone: pattern of the backbone's name.
        benchmark: pattern of the benchmark's name.
        task: pattern of the task.
        policy: pattern of the policy's label, with its numbers ("inertiakv-0.8-*") or without ("inertiakv").
        status: one of `STATUSES`.
    """

    backbone: str | None = None
    benchmark: str | None = None
    task: str | None = None
    policy: str | None = None
    status: str | None = None

    def __call__(self, cell: Facts | Damage) -> bool:
        """Tell whether a cell is meant; a damaged one has no names, so only the status can leave it out."""
        if self.status is not None and status(cell) != self.status:
            return False
        if isinstance(cell, Damage):
            return True
        found = names(cell.manifest)
        return (
            _matches(self.backbone, found.backbone)
            and _matches(self.benchmark, found.benchmark)
            and _matches(self.task, found.task)
            and _matches(self.policy, found.policy, found.method)
        )


def status(cell: Facts | Damage) -> str:
    """Return one of `STATUSES`."""
    if isinstance(cell, Damage):
        return "damaged"
    return "complete" if cell.sealed else "incomplete"


def as_json(cell: Facts | Damage) -> str:
    """Return a cell as one line of JSON, numbers in full precision, null for what is not known."""
    if isinstance(cell, Damage):
        return json.dumps({"status": "damaged", "source": str(cell.source), "reason": cell.reason})
    summary = cell.summary if cell.summary is not None else {}
    return json.dumps(
        {
            "cell_id": cell.id,
            "label": cell.label,
            **asdict(names(cell.manifest)),
            "status": status(cell),
            "ok": cell.done,
            "planned": len(cell.manifest["planned"]),
            "score": summary.get("score"),
            "retained_tokens": summary.get("mean_retained_tokens"),
            "source": str(cell.source),
        }
    )


def as_table(cells: Iterable[Facts | Damage], width: int | None) -> list[str]:
    """Return a header and one line a cell, of at most `width` characters; None means as wide as need be.

    Below 100 characters backbone, benchmark and interval are left out. Scores are percentages; an incomplete
    cell shows "17/20" and no score. Names that do not fit end in "~"; a damaged cell is named by its place.
    """
    wide = width is None or width >= _WIDE
    ordered = sorted(cells, key=_order)
    rows = [_row(cell, wide) for cell in ordered if isinstance(cell, Facts)]
    broken = [f"damaged  {cell.source}: {cell.reason}" for cell in ordered if isinstance(cell, Damage)]
    if not rows:
        return broken
    columns = list(zip(*[_header(wide), *rows], strict=True))
    limits = _fit([max(map(len, column)) for column in columns], [column[0] in _NAMES for column in columns], width)
    lines = [
        _GAP.join(
            _cut(text, limit) if column[0] in _NAMES else text.rjust(limit)
            for text, limit, column in zip(row, limits, columns, strict=True)
        ).rstrip()
        for row in zip(*columns, strict=True)
    ]
    return [*lines, *broken]


_NAMES = ("cell", "backbone", "benchmark", "policy", "task")


def _header(wide: bool) -> tuple[str, ...]:
    return (
        ("cell", "backbone", "benchmark", "policy", "task", "length", "n", "score", "95%", "kept")
        if wide
        else ("cell", "policy", "task", "length", "n", "score", "kept")
    )


def _row(cell: Facts, wide: bool) -> tuple[str, ...]:
    found, planned = names(cell.manifest), len(cell.manifest["planned"])
    score = cell.summary["score"] if cell.summary is not None else None
    kept = cell.summary["mean_retained_tokens"] if cell.summary is not None else None
    length = "-" if found.length is None else str(found.length)
    n = str(planned) if cell.sealed else f"{cell.done}/{planned}"
    mean = "-" if score is None else f"{100 * score['mean']:.1f}"
    interval = "-" if score is None else f"[{100 * score['low']:.0f}, {100 * score['high']:.0f}]"
    retained = "-" if kept is None else f"{kept:.0f}"
    if wide:
        return (
            *(cell.id, found.backbone, found.benchmark, found.policy, found.task, length),
            *(n, mean, interval, retained),
        )
    return (cell.id, found.policy, found.task, length, n, mean, retained)


def _fit(widths: Sequence[int], may_shrink: Sequence[bool], width: int | None) -> list[int]:
    """Return column widths that add up to `width`: the widest name gives way first; ids never do."""
    limits = list(widths)
    if width is None:
        return limits
    room = width - len(_GAP) * (len(limits) - 1)
    names_at = [place for place, name in enumerate(may_shrink) if name and place > 0]
    while sum(limits) > room:
        widest = max(names_at, key=lambda place: limits[place])
        if limits[widest] <= _SHORTEST:
            break
        limits[widest] -= 1
    return limits


def _cut(text: str, limit: int) -> str:
    return text.ljust(limit) if len(text) <= limit else text[: limit - 1] + "~"


def _matches(pattern: str | None, *words: str) -> bool:
    return pattern is None or any(fnmatchcase(word, pattern) for word in words)


def _order(cell: Facts | Damage) -> tuple[str, ...]:
    if isinstance(cell, Damage):
        return (str(cell.source),)
    found = names(cell.manifest)
    length = "" if found.length is None else f"{found.length:09d}"
    return (found.backbone, found.benchmark, found.task, length, found.policy, cell.id)
