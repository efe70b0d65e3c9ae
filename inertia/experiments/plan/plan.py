"""The plan: what each group of cells costs, what of it is done, and whether it fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from statistics import mean

from inertia.backbones.config import BackboneConfig
from inertia.eviction.policy import Policy
from inertia.experiments.config import RunConfig
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

# Said of a benchmark whose metrics hold fidelity.
FIDELITY = (
    "fidelity is measured too: every prompt is read and decoded again, to follow the full cache and the reference"
)


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

    def times(self, count: float) -> Work:
        """Return so much of it."""
        return Work(*(count * value for value in astuple(self)))


def total(works: Iterable[Work | None]) -> Work | None:
    """Return the sum of works; None where one of them is not known."""
    works = list(works)
    return None if None in works else Work(*map(sum, zip(*map(astuple, works), strict=True)))


@dataclass(frozen=True)
class Machine:
    """A model on devices.

    Attributes:
        config: the backbone.
        shape: of the model.
        hardware: one device, which memory is checked against, or None for no limit.
        devices: how many the layers are spread over.
        speed: where seconds come from.
    """

    config: BackboneConfig
    shape: Shape
    hardware: Hardware | None
    devices: int
    speed: Speed

    @property
    def element(self) -> int:
        """Bytes of a number."""
        return ELEMENT_BYTES[self.config.dtype]

    def peak(self, asked: Asked, policies: Sequence[Policy], devices: int | None = None) -> Memory:
        """Return the memory of the call of an example that takes the most."""
        eager, count = self.config.prefill_attention == "eager", devices or self.devices
        calls = asked.calls(policies)
        needs = [memory.peak(self.shape, self.element, call, count, eager=eager) for call in calls]
        return max(needs, key=lambda each: each.total)

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


@dataclass(frozen=True)
class Group:
    """Cells that share their prompts.

    Attributes:
        cells: the cells; the first one's benchmark, task and length are those of all.
        answers_left: pairs of cell and example that are not recorded yet; None where that cannot be known.
        lengths: of the prompts.
        limit: most new tokens of an answer.
        recorded_answers: how many recorded answers the expected length comes from.
        work: all of it.
        left: work that is left, None where that cannot be known.
        memory: of the longest prompt with the largest part of the policies.
        parts: policies per call; several parts where all at once do not fit, each of which reads the prompt again.
        fits: whether the largest part fits.
        devices_needed: with how many devices all would fit at once, where they do not; None where no number helps.
    """

    cells: tuple[Planned, ...]
    answers_left: int | None
    lengths: Lengths
    limit: int
    recorded_answers: int
    work: Work
    left: Work | None
    memory: Memory
    parts: tuple[int, ...]
    fits: bool
    devices_needed: int | None

    @property
    def task(self) -> str:
        """The task of its cells."""
        return self.cells[0].cell.task

    @property
    def length(self) -> int | None:
        """Their nominal length."""
        return self.cells[0].cell.length

    @property
    def examples(self) -> int:
        """Number of distinct examples."""
        return len({name for each in self.cells for name in each.ids})

    @property
    def answers(self) -> int:
        """Number of pairs of cell and example."""
        return sum(len(each.ids) for each in self.cells)

    def count(self, state: str) -> int:
        """Return how many of its cells are in a state."""
        return sum(each.state == state for each in self.cells)


@dataclass(frozen=True)
class Section:
    """All groups of one backbone, on the devices that it is planned for."""

    machine: Machine
    groups: tuple[Group, ...]

    @property
    def work(self) -> Work:
        """All work."""
        return total(group.work for group in self.groups)

    @property
    def left(self) -> Work | None:
        """Work that is left, None where any of it cannot be known."""
        return total(group.left for group in self.groups)


@dataclass(frozen=True)
class Plan:
    """A section per backbone, and what has to be said beside the numbers."""

    sections: tuple[Section, ...]
    notes: tuple[str, ...]


def make_plan(configs: Sequence[RunConfig], options: Options) -> Plan:
    """Return the plan of some jobs.

    Raises:
        ValueError: an unknown device or shape, no records to measure by, or settings that the run would refuse.
        OSError: `backbone.path` holds no model.
    """
    cells = planned_cells(configs)
    shapes = {config.backbone: shape_of(config.backbone) for config in configs}
    groups: dict[tuple[BackboneConfig, str], list[Planned]] = {}
    for each in cells:
        groups.setdefault((each.cell.config.backbone, each.cell.group_key), []).append(each)
    identities = {key[0]: canonical_json(members[0].cell.identity["backbone"]) for key, members in groups.items()}
    past = history.read(results_dir(), set(identities.values()))
    sections = []
    for backbone, shape in shapes.items():
        own = [rows for rows in past if rows.backbone == identities[backbone]]
        machine = machine_of(backbone, shape, own, options)
        rows = [group_of(members, machine, own) for key, members in groups.items() if key[0] == backbone]
        sections.append(Section(machine, tuple(rows)))
    subjects: dict[str, dict[str, None]] = {}
    for each in cells:
        fidelity = [(each.cell.benchmark.name, FIDELITY)] * ("fidelity" in each.cell.config.benchmark.metrics)
        for subject, text in (*each.notes, *fidelity):
            subjects.setdefault(text, {})[subject] = None
    return Plan(tuple(sections), tuple(f"{', '.join(each)}: {text}" for text, each in subjects.items()))


def machine_of(backbone: BackboneConfig, shape: Shape, past: Collection[Rows], options: Options) -> Machine:
    """Return the devices of a backbone, and where its seconds come from.

    Raises:
        ValueError: an unknown device, or the speed is to be measured and there are no records.
    """
    guess = "cpu" if backbone.device == "cpu" else "h100-80gb"
    hardware = device(options.gpu or guess)
    speed = options.stated or Roofline(hardware, shape, backbone.dtype, ELEMENT_BYTES[backbone.dtype])
    if options.measured:
        speed = history.measured(past)
        if speed is None:
            raise ValueError(
                f"--measured: no sealed records of {backbone.name} with this dtype and these settings in "
                f"{results_dir()}; run a few examples first, or name a device with --gpu."
            )
    named = options.gpu is not None or isinstance(speed, Roofline)
    return Machine(backbone, shape, hardware if named else None, options.devices, speed)


def group_of(group: Sequence[Planned], machine: Machine, past: Collection[Rows]) -> Group:
    """Return what a group of cells costs."""
    first = group[0].cell
    limit, second = limits(first)
    read = lengths(first, limit, past)
    answers = history.answers(past, first.benchmark.name, first.task)
    made = min(mean(answers), limit) if answers else limit
    asked = Asked(read.mean, limit, made, second, "fidelity" in first.config.benchmark.metrics)
    longest = replace(asked, prompt=read.longest)
    policies = [each.cell.config.policy for each in group]
    together = machine.peak(longest, policies)
    # Where not even one policy fits, halving does not help.
    halves = all(machine.fits(machine.peak(longest, [policy])) for policy in policies) and not machine.fits(together)
    divide = partial(memory.split, fits=lambda some: not halves or machine.fits(machine.peak(longest, some)))
    parts = divide(policies)
    worst = max((machine.peak(longest, part) for part in parts), key=lambda each: each.total)
    needed = None
    if not machine.fits(together):
        needed = memory.enough_devices(
            machine.hardware.usable, lambda count: machine.peak(longest, policies, devices=count)
        )

    def work(ids: Sequence[Sequence[str]]) -> Work:
        """Return the work of the examples that each cell asks for."""
        asking: dict[str, list[int]] = {}
        for index, names in enumerate(ids):
            for name in names:
                asking.setdefault(name, []).append(index)
        counts = Counter(map(tuple, asking.values()))
        costs = (machine.work(asked, divide([policies[i] for i in some])).times(n) for some, n in counts.items())
        return total([Work(), *costs])

    known = all(each.done is not None for each in group)
    return Group(
        cells=tuple(group),
        answers_left=sum(len(each.lacking) for each in group) if known else None,
        lengths=read,
        limit=limit,
        recorded_answers=len(answers),
        work=work([each.ids for each in group]),
        left=work([each.lacking for each in group]) if known else None,
        memory=worst,
        parts=tuple(map(len, parts)),
        fits=machine.fits(worst),
        devices_needed=needed,
    )
