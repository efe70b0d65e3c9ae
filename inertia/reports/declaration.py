"""What a table, a figure or a claim declares: values, no logic over data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

FULL_CACHE = "full_cache"
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Quantity:
    """One number per example, and how its mean is estimated and printed.

    Attributes:
        name: its name in the tidy frame.
        heading: its name in a header.
        path: where a sample's record has it; "metrics.fidelity_kl" is a field of the JSON text in `metrics`.
        scale: factor from the record to the tidy frame.
        shown: prints a value; `ends` prints the ends of its interval.
        interval: whether an interval belongs to it.
        share: whether the record's values lie in [0, 1], so that values that are all alike still have an interval.
        only_mean: stands beside the mean over tasks, not beside each task.
        in_header: stands under the column's name instead of in the cells, where it is not 0.
        relative: measured against the full cache, which is itself by construction: no interval there.
        sign_flip: test whether it differs from 0.
        absent: names the examples that have no such value; they are left out under every policy and counted.
        hint: how to get it where the records have none.
    """

    name: str
    heading: str
    path: str
    scale: float = 1.0
    shown: Callable[[float], str] = "{:.1f}".format
    ends: Callable[[float], str] = "{:.0f}".format
    interval: bool = True
    share: bool = False
    only_mean: bool = False
    in_header: bool = False
    relative: bool = False
    sign_flip: bool = False
    absent: str = "examples have no value"
    hint: str = "run the experiment again"


SCORE = Quantity("score", "score", "score", scale=100.0, share=True)


@dataclass(frozen=True)
class Comparison:
    """Score differences between rows, paired by example: each row that `of` selects, minus the one of `minus`.

    Holm's correction runs over all tests of the comparison on single tasks; those on means are a family of their own.

    Attributes:
        minus: settings of the row to subtract; of several the one that shares backbone and benchmark.
        of: settings of the rows to subtract it from; none means all others.
        name: its `quantity` in the tidy frame.
        heading: its name in a header, where it stands in columns.
        in_columns: whether it stands in columns beside the score, or in rows of its own.
        shown: prints a difference; `ends` prints the ends of its interval.
    """

    minus: Settings
    of: Settings = field(default_factory=dict)
    name: str = "difference"
    heading: str = "difference"
    in_columns: bool = False
    shown: Callable[[float], str] = "{:+.1f}".format
    ends: Callable[[float], str] = "{:+.0f}".format


@dataclass(frozen=True)
class Reference:
    """Printed numbers to stand beside ours.

    Attributes:
        load: reads them; long (`metric` and `value`), or with a column per quantity.
        note: where they stand.
        where: keeps the rows with these values.
        rename: from their column names to ours.
        formats: quantity -> format of its values, ".2f" for others.
    """

    load: Callable[[], DataFrame]
    note: str
    where: Settings = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    formats: Mapping[str, str] = field(default_factory=lambda: {"accuracy_0_1": ".3f"})


def row_label(row: Settings) -> str:
    """Return a row's values, blank-separated, without those that it does not have."""
    return " ".join(value_label(name, value) for name, value in row.items() if value is not None)


def value_label(name: str, value: Any) -> str:
    """Return a setting's value as a header or a row says it."""
    if name == "question_visible":
        return "question seen" if value else "context only"
    if name == "compression_ratio":
        return f"{100 * value:g}%"
    if name == "length":
        return f"@{value}"
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Table:
    """A table over one experiment.

    A row is made by the values of the settings `rows`, a column by those of `columns`. With "task" among the columns,
    each task has one and their mean another; without, every number is a mean over all tasks (and lengths) of its place,
    each counting the same. A setting that a policy does not have (the full cache's ratio) stands in every column.
    Texts may hold {experiment}, {scale}, {backbone}, {ratio}, {averaged}.

    Attributes:
        name: of its files.
        title: what stands over it.
        experiment: whose records it is made of.
        rows: settings that make a row.
        columns: settings that make a column.
        quantities: what is printed, in order.
        where: setting -> the values that take part; others are left out.
        own: tells tasks that are no official ones.
        mean_of_official: leave those out of the mean, unless there are no others.
        comparisons: paired differences.
        references: printed numbers beside ours; they add their rows where ours lack them.
        reference_columns: what makes a column of them; "quantity" may be among it.
        order: setting -> its values in order; others follow, by size or alphabet.
        titles: setting -> value -> how headers call it.
        stub: what stands over the row labels.
        label: makes a row's label of its settings.
        same: path of a record's field that must be equal under all policies for an example.
        notes: what stands under it.
    """

    name: str
    title: str
    experiment: str
    rows: tuple[str, ...]
    columns: tuple[str, ...] = ("task", "length")
    quantities: tuple[Quantity, ...] = (SCORE,)
    where: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    own: Callable[[str], bool] = lambda task: False
    mean_of_official: bool = False
    comparisons: tuple[Comparison, ...] = ()
    references: tuple[Reference, ...] = ()
    reference_columns: tuple[str, ...] = ("benchmark",)
    order: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    titles: Mapping[str, Mapping[Any, str]] = field(default_factory=dict)
    stub: str = "policy"
    label: Callable[[Settings], str] = row_label
    same: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Panel:
    """One pair of axes: the rows of the tidy frame with the values `where`, a curve per value of `series`."""

    title: str
    where: Settings
    series: tuple[str, ...]


@dataclass(frozen=True)
class Figure:
    """Curves over a setting, drawn from a table's tidy frame.

    Attributes:
        name: of its files.
        table: whose frame is drawn.
        x: the setting on the horizontal axis, its values at equal distances.
        panels: left to right, on one vertical scale.
        over_maximum: divide each curve, and its intervals, by its largest value.
        foot: small print; may hold {records} and {not_drawn}.
    """

    name: str
    table: Table
    x: str
    panels: tuple[Panel, ...]
    x_label: str
    y_label: str
    over_maximum: bool = False
    size: tuple[float, float] = (11, 4.6)
    foot: str = "Records: {records}{not_drawn}"


@dataclass(frozen=True)
class Claim:
    """A statement that a rule decides over one row of a table's tidy frame.

    Attributes:
        name: such as "C1".
        statement: what is claimed, with its scope.
        table: whose frame is looked at.
        where: selects the one row of ours, and the paper's beside it.
        rule: from that row to "supported", "contradicted" or "inconclusive".
    """

    name: str
    statement: str
    table: Table
    where: Settings
    rule: Callable[[Mapping[str, Any]], str]
