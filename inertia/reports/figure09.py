"""Figure 9: how much each benchmark cares about alpha, every curve over its own maximum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from inertia.reports.alpha import Slot, Sweep, alpha_sweep
from inertia.reports.paper import LABEL, PaperCurve, paper_curves
from inertia.reports.plotting import COLORS, MARKERS, new_figure
from inertia.reports.scores import cell_scores
from inertia.reports.source import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SPREAD = 0.5  # of the distance between two alphas, over which the intervals of all curves are spread


class Curve(NamedTuple):
    """One curve over alpha, divided by its largest value; ``low`` and ``high`` are empty or complete."""

    label: str
    alphas: tuple[float, ...]
    values: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


def figure09(source: Source) -> Figure:
    """Return figure 9: the paper's curves left, ours with 95% intervals right, on one vertical scale.

    Ours are the mean and every informative task. An interval is divided by the same maximum as its point: it
    shows the spread of the point, not that of the ratio. A curve that is zero throughout is left out.

    Deviations: the alphas stand at equal distances, so that 0.8, 0.9 and 0.95 can be told apart.
    """
    sweep = alpha_sweep(cell_scores(source.samples, source.index))
    figure = new_figure(width=11, height=4.6)
    left, right = figure.subplots(1, 2, sharey=True)
    _draw(left, [paper_curve(curve) for curve in paper_curves()], sweep.alphas)
    _draw(right, our_curves(sweep), sweep.alphas)
    left.set_ylim(bottom=-0.03)  # after both are drawn: a limit set by hand stops the scale from following
    left.set_ylabel("score / largest score over alpha")
    left.set_title(
        f"Paper: {LABEL}, full-size benchmarks\n(as printed, no intervals)", fontsize=9, loc="left"
    )
    right.set_title(
        f"Ours, {source.index.scale} scale: {source.index.backbone_label}\n"
        f"(RULER, {_counts(sweep)} examples per point, 95% intervals)",
        fontsize=9,
        loc="left",
    )
    foot = f"Table 5, each curve over its maximum. Records: {source.provenance.line()}{_not_drawn(sweep)}"
    figure.supxlabel(foot, fontsize=7, color="0.35", x=0.01, ha="left")
    return figure


def paper_curve(curve: PaperCurve) -> Curve:
    """Return one of the paper's curves over its maximum; the full cache is no point of it."""
    points = sorted((alpha, value) for alpha, value in curve.values.items() if alpha is not None)
    largest = max(value for _, value in points)
    return Curve(curve.title, tuple(a for a, _ in points), tuple(v / largest for _, v in points))


def our_curves(sweep: Sweep) -> list[Curve]:
    """Return the mean's curve and those of the informative tasks, each over its maximum, where it has one."""
    slots = [None, *(slot for slot in sweep.slots if slot not in sweep.uninformative)]
    return [curve for slot in slots if (curve := _our_curve(sweep, slot)) is not None]


def _our_curve(sweep: Sweep, slot: Slot | None) -> Curve | None:
    points = [
        (alpha, measured.estimate)
        for alpha in sweep.alphas
        if (measured := sweep.scores[alpha, slot]).estimate is not None
    ]
    largest = max((estimate.value for _, estimate in points), default=0.0)
    if largest == 0:
        return None
    return Curve(
        f"mean (tasks = {len(sweep.averaged_tasks)})" if slot is None else slot.title,
        tuple(alpha for alpha, _ in points),
        tuple(e.value / largest for _, e in points),
        tuple(e.low / largest for _, e in points),
        tuple(e.high / largest for _, e in points),
    )


def _not_drawn(sweep: Sweep) -> str:
    """Return the tasks that have no curve: they count in the mean and in the table, but tell no alphas apart."""
    names = [slot.title for slot in sweep.slots if slot in sweep.uninformative or _our_curve(sweep, slot) is None]
    return f"\nIn the mean, not drawn (uninformative at this scale): {', '.join(names)}" if names else ""


def _counts(sweep: Sweep) -> str:
    planned = {sweep.scores[alpha, slot].planned for alpha in sweep.alphas for slot in sweep.slots} - {0}
    return " or ".join(str(count) for count in sorted(planned))


def _draw(axes: Axes, curves: Sequence[Curve], alphas: Sequence[float]) -> None:
    place = {alpha: position for position, alpha in enumerate(alphas)}
    for number, curve in enumerate(curves):
        # The first curve is the one to look at: a heavier line, and on top.
        line, marker, layer = (2.4, 7, 3) if number == 0 else (1.1, 5, 2)
        shift = _SPREAD * ((number + 0.5) / len(curves) - 0.5) if curve.low else 0.0
        bars = axes.errorbar(
            [place[alpha] + shift for alpha in curve.alphas],
            curve.values,
            yerr=_bars(curve),
            label=curve.label,
            color=COLORS[number % len(COLORS)],
            marker=MARKERS[number % len(MARKERS)],
            linewidth=line,
            markersize=marker,
            zorder=layer,
            elinewidth=1.6 if number == 0 else 0.9,
        )
        for bar in bars[2]:
            bar.set_alpha(1.0 if number == 0 else 0.55)
    axes.set_xticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
    axes.set_xlabel("alpha (0: the last layer alone)")
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if not curves:
        axes.text(0.5, 0.5, "no complete curve yet", transform=axes.transAxes, ha="center", color="0.35")
    else:
        axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)


def _bars(curve: Curve) -> list[list[float]] | None:
    if not curve.low:
        return None
    return [
        [value - low for value, low in zip(curve.values, curve.low, strict=True)],
        [high - value for value, high in zip(curve.values, curve.high, strict=True)],
    ]
