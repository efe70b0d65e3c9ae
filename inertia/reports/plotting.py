"""Figures from tidy frames: curves over a setting, in one look, in files free of the day they were made on."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from inertia.reports.declaration import SCORE, Figure, Panel, Settings, value_label
from inertia.reports.informative import REASONS
from inertia.reports.layout import MEAN, Layout, allowed, one_of
from inertia.reports.source import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

_SPREAD = 0.5  # of the distance between two places, over which the intervals of all curves are spread

_METADATA = {
    "png": {"Software": None},
    "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
}
"""Per file format, the fields that would carry a date or a version, emptied."""


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


def draw(figure: Figure, source: Source, rows: Sequence[Mapping[str, Any]]) -> Drawing:
    """Return a figure of the rows of its table's tidy frame; it belongs to no window.

    The mean's curve comes first and is the one to look at. Curves that tell nothing at this scale are named in the foot
    instead, as are those that are zero throughout. Where curves are divided by their maximum, so are the intervals:
    they show the spread of a point, not that of a ratio.
    """
    from matplotlib.figure import Figure as Drawing

    layout = Layout(source, figure.table)
    counted = [row for row in rows if row["source"] == "ours" and row["quantity"] == SCORE.name and row["task"] != MEAN]
    counts = sorted({row["planned"] for row in counted if row.get(figure.x) is not None} - {0})
    words = {
        "scale": source.scale,
        "backbone": source.backbone_label,
        "counts": " or ".join(map(str, counts)),
        "records": source.records,
    }
    places = sorted({row[figure.x] for row in rows} - {None}, key=lambda x: layout.order((figure.x,), (x,)))
    missing: list[str] = []
    with style():
        drawing = Drawing(figsize=figure.size, layout="constrained")
        every = drawing.subplots(1, len(figure.panels), sharey=True, squeeze=False)[0]
        for axes, panel in zip(every, figure.panels, strict=True):
            found, left_out = curves(figure, panel, layout, rows)
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


def curves(
    figure: Figure, panel: Panel, layout: Layout, rows: Sequence[Settings]
) -> tuple[list[Curve], list[str]]:
    """Return the curves of a panel, the mean's first, and the labels of those that are not drawn."""
    chosen = [row for row in rows if allowed(row, one_of(panel.where)) and row.get(figure.x) is not None]
    series: dict[tuple, list[Settings]] = {}
    for row in chosen:
        if row["status"] != "from printed values":
            series.setdefault(tuple(row.get(name) for name in panel.series), []).append(row)
    means = [key for key in series if MEAN in key]
    found, left_out = [], []
    for key in (*means, *(key for key in series if key not in means)):
        points = sorted(
            (row for row in series[key] if row.get("value") is not None),
            key=lambda row: layout.order((figure.x,), (row[figure.x],)),
        )
        label = curve_label(key, panel, layout)
        largest = max((row["value"] for row in points), default=0.0) if figure.over_maximum else 1.0
        if largest == 0 or any((row.get("note") or "").startswith(REASONS) for row in series[key]):
            left_out += [label] if MEAN not in key else []
            continue
        ends = [
            tuple(row[end] / largest for row in points) if all(row.get(end) is not None for row in points) else ()
            for end in ("low", "high")
        ]
        xs, ys = (tuple(row[figure.x] for row in points), tuple(row["value"] / largest for row in points))
        found.append(Curve(label, xs, ys, *ends))
    return found, left_out


def curve_label(key: tuple, panel: Panel, layout: Layout) -> str:
    """Return what the legend calls a curve."""
    if MEAN in key:
        column = next(column for column in layout.columns if layout.pools(column))
        return f"mean (tasks = {len(layout.averaged_tasks(column))})"
    titles = layout.table.titles
    said = [(name, value) for name, value in zip(panel.series, key, strict=True) if value is not None]
    return " ".join(titles.get(name, {}).get(value, value_label(name, value)) for name, value in said)


def draw_curves(axes: Axes, found: Sequence[Curve], places: Sequence[Any]) -> None:
    """Draw curves at equal distances, the first heavier and on top."""
    place = {x: position for position, x in enumerate(places)}
    for number, curve in enumerate(found):
        emphasis = {"linewidth": 2.4, "markersize": 7, "zorder": 3, "elinewidth": 1.6} if number == 0 else {}
        shift = _SPREAD * ((number + 0.5) / len(found) - 0.5) if curve.low else 0.0
        below = [value - low for value, low in zip(curve.values, curve.low, strict=bool(curve.low))]
        above = [high - value for value, high in zip(curve.values, curve.high, strict=bool(curve.high))]
        bars = axes.errorbar(
            [place[x] + shift for x in curve.x],
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
