"""Variable tracking: name all variables that hold a value, through a chain of assignments in noise."""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import asdict, dataclass
from random import Random
from typing import NamedTuple

from inertia.benchmarks.ruler.draw import Draw, Parts, Setting, Stream
from inertia.benchmarks.ruler.wording import Wording, split
from inertia.benchmarks.sizing import largest_fitting
from inertia.benchmarks.tasks import at_least

_EXAMPLE_TOKENS = 500
_SMALLEST_NOISE = 5


class _Chain(NamedTuple):
    value: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class VariableTracking:
    """Variable tracking with a worked example in front, inside the user turn.

    Attributes:
        chains: Chains of assignments; the first is asked for.
        hops: Assignments after the first of a chain: hops + 1 variables.
        max_new_tokens: Decoding limit.

    Raises:
        ValueError: If a number is below 1.

    Source: RULER `variable_tracking.py`, noise haystack. The example is the largest of at least 5 noise
    sentences whose text (answers not counted) has at most 500 tokens; its places are the same in all examples
    of a data set, its names (3 letters) and value are drawn anew for each.

    Deviations: where 500 tokens are more than half of the room the example takes half of the room instead:
    the official code never ends there, or leaves next to nothing for the question. Names are distinct
    (official: a repeated name stays in the chain). The size is found for each example, not once per task.
    """

    chains: int = 1
    hops: int = 4
    max_new_tokens: int = 30

    def __post_init__(self) -> None:
        at_least(1, **{f"vt {name}": value for name, value in asdict(self).items()})

    def prepare(self, setting: Setting) -> Callable[[Stream], Draw]:
        """Return the function that draws one example; one unit is one noise sentence."""
        wording = setting.wording
        # Each assignment of a chain takes a place of its own.
        smallest = max(_SMALLEST_NOISE, self.hops + 1)
        largest = max(setting.room, smallest)

        def demonstration(rng: Random, noises: int) -> str:
            places = setting.rng("example places", noises)
            context, question, prefix, _ = _texts(wording, self._draw_chains(rng, letters=3), places, noises)
            return context + question + prefix

        noises = largest_fitting(
            lambda n: setting.count(demonstration(setting.rng("example"), n)),
            min(_EXAMPLE_TOKENS, setting.room // 2),
            smallest,
            largest,
        )
        noises = smallest if noises is None else noises

        def draw(stream: Stream) -> Draw:
            example_chains = self._draw_chains(stream("example"), letters=3)
            places = setting.rng("example places", noises)
            shown = "".join(_texts(wording, example_chains, places, noises)[:3])
            shown += " " + " ".join(example_chains[0].names) + "\n\n"
            chains = self._draw_chains(stream("chains"), letters=5)

            def build(units: int) -> Parts:
                context, question, prefix, depths = _texts(wording, chains, stream("places", units), units)
                return Parts(
                    context=shown + context,
                    question=question,
                    answer_prefix=prefix,
                    references=chains[0].names,
                    metadata={"units": units, "example_units": noises, "depths": depths},
                )

            return Draw(build, smallest, largest)

        return draw

    def _draw_chains(self, rng: Random, letters: int) -> list[_Chain]:
        names: dict[str, None] = {}
        while len(names) < self.chains * (self.hops + 1):
            names["".join(rng.choices(string.ascii_uppercase, k=letters))] = None
        flat, size = list(names), self.hops + 1
        parts = [tuple(flat[i : i + size]) for i in range(0, len(flat), size)]
        # The official draw excludes its upper bound.
        return [_Chain(str(rng.randrange(10000, 99999)), part) for part in parts]


def _texts(wording: Wording, chains: list[_Chain], rng: Random, noises: int) -> tuple[str, str, str, list[float]]:
    """Context, question, answer prefix, and the depths of the first chain's assignments."""
    lines = [wording.noise] * noises
    depths: list[float] = []
    for chain in chains:
        places = sorted(rng.sample(range(len(lines)), len(chain.names)))
        depths = depths or [place / len(lines) for place in places]
        for offset, (place, line) in enumerate(zip(places, _assignments(chain), strict=True)):
            lines.insert(place + offset, line)
    before, after = split(wording.vt)
    prefix = wording.vt_prefix.format(num_v=len(chains[0].names), query=chains[0].value)
    return before + "\n".join(lines) + "\n", after.format(query=chains[0].value), prefix, depths


def _assignments(chain: _Chain) -> list[str]:
    """The chain's lines; all but the first end in a blank, as in the official data."""
    hops = zip(chain.names[1:], chain.names, strict=False)
    return [f"VAR {chain.names[0]} = {chain.value}", *(f"VAR {new} = VAR {old} " for new, old in hops)]
