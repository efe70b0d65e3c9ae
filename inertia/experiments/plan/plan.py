"""The plan: what each group of cells costs, what of it is done, and whether it fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

from inertia.backbones.config import BackboneConfig
from inertia.eviction.policy import Policy
from inertia.experiments.cells import variant
from inertia.experiments.plan import history, memory
from inertia.experiments.plan.calls import Asked
from inertia.experiments.plan.hardware import Hardware, device
from inertia.experiments.plan.history import Rows
from inertia.experiments.plan.memory import Memory
from inertia.experiments.plan.planned import Planned, planned_cells
from inertia.experiments.plan.prompts import Lengths, lengths, limits
from inertia.experiments.plan.shape import ELEMENT_BYTES, Shape, shape_of
from inertia.experiments.plan.speed import Roofline, Speed, Stated
from inertia.paths import results_dir
from inertia.records.canonical import canonical_json


@dataclass(frozen=True)
class Options:
    """What the user says of the machine.

    Attributes:
        gpu: name of a device, or None for a guess by the backbone's device.
        devices: over how many of them the layers are spread.
        stated: throughput, or None.
        measured: whether to take the throughput from sealed records.
    """

    gpu: str | None = None
    devices: int = 1
    stated: Stated | None = None
    measured: bool = False


@dataclass(frozen=True)
class Work:
    """Tokens and seconds; "most" is with every answer at its limit.

    Attributes:
        prefill: prompt tokens read.
        alone: prompt tokens if every policy read for itself.
        decode: new tokens expected, as recorded answers suggest; `decode_most` where there are none.
        decode_most: new tokens at most.
        seconds: with `decode`.
        seconds_most: with `decode_most`.
    """

    prefill: float = 0
    alone: float = 0
    decode: float = 0
    decode_most: float = 0
    seconds: float = 0
    seconds_most: float = 0

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Work)))

    def times(self, count: float) -> Work:
        """Return so much of it."""
        return Work(*(getattr(self, each.name) * count for each in fields(Work)))


@dataclass(frozen=True)
class Row:
    """One group: cells that share their prompts.

    Attributes:
        backbone: name of the backbone.
        benchmark: name of the benchmark.
        task: its task.
        length: nominal length.
        cells: the group's cells.
        examples: distinct examples.
        answers: pairs of cell and example.
        answers_left: of them, not recorded yet; None where that cannot be known.
        lengths: of the prompts.
        limit: most new tokens of an answer.
        recorded_answers: how many recorded answers the expected length comes from.
        total: all work.
        left: work that is left, None where that cannot be known.
        memory: of the longest prompt with the largest part of the policies.
        parts: policies per call; several parts where all at once do not fit, each of which reads the prompt again.
        fits: whether the largest part fits.
        devices_needed: with how many devices all would fit at once, where they do not; None where no number helps.
    """

    backbone: str
    benchmark: str
    task: str
    length: int | None
    cells: tuple[Planned, ...]
    examples: int
    answers: int
    answers_left: int | None
    lengths: Lengths
    limit: int
    recorded_answers: int
    total: Work
    left: Work | None
    memory: Memory
    parts: tuple[int, ...]
    fits: bool
    devices_needed: int | None

    @property
    def states(self) -> Counter[str]:
        """Number of cells by state."""
        return Counter(each.state for each in self.cells)


@dataclass(frozen=True)
class Section:
    """All groups of one backbone.

    Attributes:
        config: the backbone.
        shape: its shape.
        hardware: what memory is checked against, or None.
        devices: over how many of them the layers are spread.
        speed: where seconds come from.
        rows: its groups.
    """

    config: BackboneConfig
    shape: Shape
    hardware: Hardware | None
    devices: int
    speed: Speed
    rows: tuple[Row, ...]

    @property
    def total(self) -> Work:
        """All work."""
        return sum((row.total for row in self.rows), Work())

    @property
    def left(self) -> Work | None:
        """Work that is left, None where any of it cannot be known."""
        known = [row.left for row in self.rows if row.left is not None]
        return sum(known, Work()) if len(known) == len(self.rows) else None


@dataclass(frozen=True)
class Plan:
    """A section per backbone, and what has to be said beside the numbers."""

    sections: tuple[Section, ...]
    notes: tuple[str, ...]


def make_plan(configs: Sequence, options: Options) -> Plan:
    """Return the plan of some jobs.

    Raises:
        ValueError: an unknown device or shape, no records to measure by, or settings that the run would refuse.
        OSError: `backbone.path` holds no model.
    """
    chosen = None if options.gpu is None else device(options.gpu)
    groups: dict[tuple[BackboneConfig, str], list[Planned]] = {}
    cells = planned_cells(configs)
    shapes = {config.backbone: shape_of(config.backbone) for config in configs}
    for each in cells:
        groups.setdefault((each.cell.config.backbone, each.cell.group_key), []).append(each)
    identities = {key: canonical_json(members[0].cell.identity["backbone"]) for key, members in groups.items()}
    past = history.read(results_dir(), set(identities.values()))
    sections = []
    for backbone, shape in shapes.items():
        mine = [key for key in groups if key[0] == backbone]
        own = [rows for rows in past if rows.backbone == identities[mine[0]]]
        hardware = chosen or (None if options.stated or options.measured else guess(backbone))
        speed = speed_of(backbone, shape, hardware, own, options)
        machine = Machine(shape, ELEMENT_BYTES[backbone.dtype], hardware, options.devices, speed)
        rows = [row_of(groups[key], machine, own) for key in mine]
        sections.append(Section(backbone, shape, hardware, options.devices, speed, tuple(rows)))
    measured = dict.fromkeys(
        each.cell.benchmark.name for each in cells if "fidelity" in each.cell.config.benchmark.metrics
    )
    fidelity = [(name, FIDELITY) for name in measured]
    return Plan(tuple(sections), joined([*(note for each in cells for note in each.notes), *fidelity]))


# Said of a benchmark whose metrics hold fidelity.
FIDELITY = (
    "fidelity is measured too: every prompt is read and decoded again, to follow the full cache and the reference"
)


def joined(notes: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return notes as sentences, one for all that the same is said of."""
    subjects: dict[str, dict[str, None]] = {}
    for subject, text in notes:
        subjects.setdefault(text, {})[subject] = None
    return tuple(f"{', '.join(each)}: {text}" for text, each in subjects.items())


def guess(backbone: BackboneConfig) -> Hardware:
    """Return the device to plan for when none is named."""
    return device("cpu" if backbone.device == "cpu" else "h100-80gb")


def speed_of(
    backbone: BackboneConfig, shape: Shape, hardware: Hardware | None, past: Collection[Rows], options: Options
) -> Speed:
    """Return where a backbone's seconds come from.

    Raises:
        ValueError: they are to be measured and there are no records.
    """
    if options.stated is not None:
        return options.stated
    if not options.measured:
        return Roofline(hardware or guess(backbone), shape, backbone.dtype, ELEMENT_BYTES[backbone.dtype])
    found = history.measured(past)
    if found is None:
        raise ValueError(
            f"--measured: no sealed records of {backbone.name} with this dtype and these settings in {results_dir()}; "
            "run a few examples first, or name a device with --gpu."
        )
    return found


@dataclass(frozen=True)
class Machine:
    """A model on devices.

    Attributes:
        shape: of the model.
        element: bytes of a number.
        hardware: one device, or None for no limit.
        devices: how many.
        speed: how fast.
    """

    shape: Shape
    element: int
    hardware: Hardware | None
    devices: int
    speed: Speed

    def peak(self, asked: Asked, policies: Sequence[Policy], eager: bool, devices: int | None = None) -> Memory:
        """Return the memory of the call of an example that takes the most."""
        calls = asked.calls(policies)
        count = self.devices if devices is None else devices
        return max(
            (memory.peak(self.shape, self.element, call, count, eager=eager) for call in calls),
            key=lambda each: each.total,
        )

    def fits(self, needed: Memory) -> bool:
        """Tell whether so much memory is there."""
        limit = None if self.hardware is None else self.hardware.usable
        return limit is None or needed.total <= limit

    def work(self, asked: Asked, parts: Sequence[Sequence[Policy]]) -> Work:
        """Return the work of one example, its policies in parts."""
        expected = [call for part in parts for call in asked.calls(part)]
        most = [call for part in parts for call in replace(asked, made=asked.limit).calls(part)]
        return Work(
            prefill=sum(call.prefill for call in expected),
            alone=sum(call.alone for call in expected),
            decode=sum(call.decoded for call in expected),
            decode_most=sum(call.decoded for call in most),
            seconds=sum(self.speed.prefill(call) + self.speed.decode(call) for call in expected),
            seconds_most=sum(self.speed.prefill(call) + self.speed.decode(call) for call in most),
        )


def row_of(group: Sequence[Planned], machine: Machine, past: Collection[Rows]) -> Row:
    """Return what a group of cells costs."""
    first = group[0].cell
    limit, second = limits(first)
    read = lengths(first, limit, past)
    answers = history.answers(past, first.benchmark.name, first.task)
    made = history.average(answers)
    asked = Asked(
        prompt=read.mean,
        limit=limit,
        made=limit if made is None else min(made, limit),
        second=second,
        fidelity="fidelity" in first.config.benchmark.metrics,
    )
    longest, eager = replace(asked, prompt=read.longest), first.config.backbone.prefill_attention == "eager"
    policies = [each.cell.config.policy for each in group]
    alone = max((machine.peak(longest, [policy], eager) for policy in policies), key=lambda each: each.total)
    together = machine.peak(longest, policies, eager)
    # Where not even one policy fits, halving does not help.
    halves = machine.fits(alone) and not machine.fits(together)
    divide = partial(memory.split, fits=lambda some: not halves or machine.fits(machine.peak(longest, some, eager)))
    parts = divide(policies)
    worst = max((machine.peak(longest, part, eager) for part in parts), key=lambda each: each.total)
    needed = None
    if not machine.fits(together):
        usable = machine.hardware.usable
        needed = memory.enough_devices(usable, lambda count: machine.peak(longest, policies, eager, count))

    def work(ids: Sequence[Sequence[str]]) -> Work:
        """Return the work of the examples that each cell asks for."""
        costs = (
            machine.work(asked, divide([policies[index] for index in members])).times(count)
            for members, count in by_members(ids).items()
        )
        return sum(costs, Work())

    known = all(each.done is not None for each in group)
    return Row(
        backbone=first.config.backbone.name,
        benchmark=first.benchmark.name,
        task=first.task,
        length=first.length,
        cells=tuple(group),
        examples=len({name for each in group for name in each.ids}),
        answers=sum(len(each.ids) for each in group),
        answers_left=sum(len(each.lacking) for each in group) if known else None,
        lengths=read,
        limit=limit,
        recorded_answers=len(answers),
        total=work([each.ids for each in group]),
        left=work([each.lacking for each in group]) if known else None,
        memory=worst,
        parts=tuple(map(len, parts)),
        fits=machine.fits(worst),
        devices_needed=needed,
    )


def by_members(ids: Sequence[Sequence[str]]) -> Counter[tuple[int, ...]]:
    """Return how many examples there are for each set of cells that ask for them; `ids` are those of each cell."""
    asking: dict[str, list[int]] = {}
    for index, names in enumerate(ids):
        for name in names:
            asking.setdefault(name, []).append(index)
    return Counter(map(tuple, asking.values()))


def labels(section: Section) -> list[str]:
    """Return the policies of a section by name, each once."""
    return list(dict.fromkeys(variant(each.cell.config) for row in section.rows for each in row.cells))
