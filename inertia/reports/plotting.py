"""Figures from tidy frames: curves over a setting, in one look, in files free of the day they were made on."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from inertia.reports.declaration import SCORE, Figure, Panel, Settings, value_label
from inertia.reports.informative import REASONS
from inertia.reports.layout import MEAN, holds, ordered
from inertia.reports.source import Source
from inertia.reports.tidy import tidy_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

_SPREAD = 0.5  # of the distance between two places, over which the intervals of all curves are spread

# Per file format, the fields that would carry a date or a version, emptied.
_METADATA = {"png": {"Software": None}, "pdf": {"Creator": None, "Producer": None, "CreationDate": None}}


class Curve(NamedTuple):
    """One curve: its points, and the ends of their intervals, empty or complete."""

    label: str
    x: tuple[Any, ...]
    values: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


def style() -> AbstractContextManager[None]:
    """Return a context in which the style sheet holds, whatever settings file the user has."""
    import matplotlib.style

    return matplotlib.style.context(["default", str(Path(__file__).with_name("figures.mplstyle"))])


def build_figure(figure: Figure, source: Source) -> Drawing:
    """Return a figure of its table's tidy frame over an experiment's records; it belongs to no window.

    Curves that tell nothing at this scale are named in the foot instead, as are those that are zero throughout.
    """
    from matplotlib.figure import Figure as Drawing

    rows = [row for row in tidy_rows(source, figure.table) if row.get(figure.x) is not None]
    scores = [r for r in rows if r["source"] == "ours" and r["quantity"] == SCORE.name and r["task"] != MEAN]
    counts = sorted({row["planned"] for row in scores} - {0})
    words = {"scale": source.scale, "backbone": source.backbone_label, "records": source.records}
    words["counts"] = " or ".join(map(str, counts))
    places = [x for (x,) in ordered({(row[figure.x],) for row in rows}, (figure.x,), figure.table)]
    missing: list[str] = []
    with style():
        drawing = Drawing(figsize=figure.size, layout="constrained")
        every = drawing.subplots(1, len(figure.panels), sharey=True, squeeze=False)[0]
        for axes, panel in zip(every, figure.panels, strict=True):
            found, left_out = curves(figure, panel, rows)
            missing += left_out
            draw_curves(axes, found, places)
            axes.set_xlabel(figure.x_label)
            axes.set_title(panel.title.format(**words))
        every[0].set_ylim(bottom=-0.03)  # after all are drawn: a limit set by hand stops the scale from following
        every[0].set_ylabel(figure.y_label)
        said = f"\nIn the mean, not drawn (uninformative at this scale): {', '.join(missing)}" if missing else ""
        foot = figure.foot.format(**words, not_drawn=said)
        drawing.supxlabel(foot, fontsize=7, color="0.35", x=0.01, ha="left")
    return drawing


def curves(figure: Figure, panel: Panel, rows: Sequence[Settings]) -> tuple[list[Curve], list[str]]:
    """Return the curves of a panel, the mean's first, and the labels of those that are not drawn.

    Where curves are divided by their maximum, so are the intervals: they show the spread of a point, not of a ratio.
    """
    series: dict[tuple, list[Settings]] = {}
    for row in rows:
        if holds(row, panel.where) and row["status"] != "from printed values" and row.get(figure.x) is not None:
            series.setdefault(tuple(row.get(name) for name in panel.series), []).append(row)
    found, left_out = [], []
    for key in sorted(series, key=lambda key: MEAN not in key):
        points = [row for row in series[key] if row.get("value") is not None]
        label = curve_label(figure, panel, series[key][0])
        largest = max((row["value"] for row in points), default=0.0) if figure.over_maximum else 1.0
        if largest == 0 or any((row.get("note") or "").startswith(REASONS) for row in series[key]):
            left_out += [label] if MEAN not in key else []
            continue
        values, low, high = (
            tuple(row[end] / largest for row in points) if all(row.get(end) is not None for row in points) else ()
            for end in ("value", "low", "high")
        )
        found.append(Curve(label, tuple(row[figure.x] for row in points), values, low, high))
    return found, left_out


def curve_label(figure: Figure, panel: Panel, row: Settings) -> str:
    """Return what the legend calls a curve."""
    if row["task"] == MEAN and "task" in panel.series:
        return f"mean (tasks = {len(row['tasks'])})"
    said = [(name, row[name]) for name in panel.series if row.get(name) is not None]
    return " ".join(figure.table.titles.get(name, {}).get(value, value_label(name, value)) for name, value in said)


def draw_curves(axes: Axes, found: Sequence[Curve], places: Sequence[Any]) -> None:
    """Draw curves at equal distances; the first, which is the one to look at, is heavier and on top."""
    for number, curve in enumerate(found):
        emphasis = {"linewidth": 2.4, "markersize": 7, "zorder": 3, "elinewidth": 1.6} if number == 0 else {}
        shift = _SPREAD * ((number + 0.5) / len(found) - 0.5) if curve.low else 0.0
        below = [value - low for value, low in zip(curve.values, curve.low, strict=False)]
        above = [high - value for value, high in zip(curve.values, curve.high, strict=False)]
        bars = axes.errorbar(
            [places.index(x) + shift for x in curve.x],
            curve.values,
            yerr=[below, above] if curve.low else None,
            label=curve.label,
            **({"zorder": 2, "elinewidth": 0.9} | emphasis),
        )
        for bar in bars[2]:
            bar.set_alpha(1.0 if number == 0 else 0.55)
    axes.set_xticks(range(len(places)), [f"{x:g}" if isinstance(x, float) else str(x) for x in places])
    if found:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    else:
        axes.text(0.5, 0.5, "no complete curve yet", transform=axes.transAxes, ha="center", color="0.35")


def rendered(drawing: Drawing) -> dict[str, bytes]:
    """Return the figure as file contents by format ("png", "pdf"); equal figures give equal bytes."""
    contents = {}
    for kind, metadata in _METADATA.items():
        buffer = io.BytesIO()
        with style():
            drawing.savefig(buffer, format=kind, metadata=metadata)
        contents[kind] = buffer.getvalue()
    return contents
