"""Needles in a haystack: find the values of the keys asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from uuid import UUID

from inertia.benchmarks.ruler.draw import Draw, Parts, Setting, Stream
from inertia.benchmarks.ruler.essays import Essays
from inertia.benchmarks.ruler.haystacks import Haystack, haystacks, prose
from inertia.benchmarks.ruler.wording import split
from inertia.benchmarks.seeding import official_shuffle
from inertia.benchmarks.tasks import at_least
from inertia.benchmarks.words import WordLists

_KINDS = ("words", "numbers", "uuids")


@dataclass(frozen=True)
class Niah:
    """A member of the needle family.

    Attributes:
        haystack: Name of the haystack.
        key: Kind of the keys: words, numbers or uuids.
        value: Kind of the values.
        keys: Number of keys; raised to `queries` if below.
        values: Values per key.
        queries: Keys asked for.
        depth: Where the queried needles stand, 0 (start) to 1 (end); None draws the places as the official
            code does.
        max_new_tokens: Decoding limit.

    Raises:
        ValueError: If a kind is unknown, a number is below 1 or the depth lies outside [0, 1].

    Source: RULER `niah.py`.

    Deviations: keys and distractor keys are distinct (official: distinct by chance); word keys are drawn as
    an adjective and a noun rather than from the list of all pairs; the size is found for each example, not
    once per task; a needle before the first or after the last sentence of an essay brings no blank of its own
    (official: one more).
    """

    haystack: str = "noise"
    key: str = "words"
    value: str = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1
    depth: float | None = None
    max_new_tokens: int = 128

    def __post_init__(self) -> None:
        for field, kind in (("key", self.key), ("value", self.value)):
            if kind not in _KINDS:
                raise ValueError(f"niah {field} is {kind!r}; allowed: {', '.join(_KINDS)}")
        counted = ("keys", "values", "queries", "max_new_tokens")
        at_least(1, **{f"niah {name}": getattr(self, name) for name in counted})
        if self.depth is not None and not 0 <= self.depth <= 1:
            raise ValueError(f"niah depth is {self.depth}; allowed: 0 to 1, or None to draw it")

    @property
    def needles(self) -> int:
        """Number of needles, asked for or not."""
        return max(self.keys, self.queries) * self.values

    def prepare(self, setting: Setting) -> Callable[[Stream], Draw]:
        """Return the function that draws one example.

        Raises:
            ValueError: If the haystack is unknown.
        """
        known = haystacks(setting.wording)
        if isinstance(setting.texts, Essays):
            known["essay"] = prose(setting.texts.reader(max(setting.room, self.needles)))
        if self.haystack not in known:
            raise ValueError(f"niah haystack is {self.haystack!r}; available: {', '.join(known)}")
        return lambda stream: draw(self, setting, known[self.haystack], stream)


def draw(task: Niah, setting: Setting, haystack: Haystack, stream: Stream) -> Draw:
    """Return one example of `task` in `haystack`; one unit is what the haystack calls one."""
    contents, fill = stream("contents"), stream("distractors")
    taken: set[str] = set()

    def needle(rng: Random, key: str, value: str | None = None) -> str:
        value = random_item(rng, task.value, setting.words) if value is None else value
        return setting.wording.needle.format(type_needle_v=task.value, key=key, value=value)

    def new_key(rng: Random) -> str:
        while (key := random_item(rng, task.key, setting.words)) in taken:
            pass
        taken.add(key)
        return key

    pairs = []
    for _ in range(max(task.keys, task.queries)):
        key = new_key(contents)
        pairs.append((key, [random_item(contents, task.value, setting.words) for _ in range(task.values)]))
    asked = contents.sample(pairs, task.queries)
    needles = official_shuffle([needle(contents, key, value) for key, values in pairs for value in values])
    wanted = {needle(contents, key, value) for key, values in asked for value in values}

    sentences: list[str] = []

    def distractor(index: int) -> str:
        while len(sentences) <= index:
            sentences.append(needle(fill, new_key(fill)))
        return sentences[index]

    before, after = (_number(part, task) for part in split(setting.wording.niah))
    prefix = _number(setting.wording.niah_prefix, task)
    kind = task.value[:-1] if _singular(task) else task.value
    names = [key for key, _ in asked]
    query = ", ".join(names[:-1]) + ", and " + names[-1] if len(names) > 1 else names[0]

    def build(units: int) -> Parts:
        hay = haystack.sentences(units, distractor)
        places = haystack.places(stream("places", units), len(hay), len(needles))
        placed = [
            (int(task.depth * len(hay)) if task.depth is not None and text in wanted else place, text)
            for place, text in zip(places, needles, strict=True)
        ]
        lines = list(hay)
        # From the back, so that earlier insertion indexes stay true and needles at one place keep their order.
        for place, text in reversed(sorted(placed, key=lambda item: item[0])):
            lines.insert(place, text)
        depths = sorted(place / len(hay) for place, text in placed if text in wanted)
        return Parts(
            context=before.format(type_needle_v=kind) + haystack.separator.join(lines) + "\n",
            question=after.format(type_needle_v=kind, query=query),
            answer_prefix=prefix.format(type_needle_v=kind, query=query),
            references=tuple(value for _, values in asked for value in values),
            metadata={"units": units, "needles": len(needles), "depths": depths},
        )

    return Draw(build, smallest=len(needles), largest=max(setting.room, len(needles)))


def random_item(rng: Random, kind: str, words: WordLists) -> str:
    """Return a random adjective-noun, seven-digit number, or version-4 UUID of 128 random bits."""
    if kind == "words":
        return f"{rng.choice(words.adjectives)}-{rng.choice(words.nouns)}"
    if kind == "numbers":
        return str(rng.randint(10**6, 10**7 - 1))
    return str(UUID(int=rng.getrandbits(128), version=4))


def _singular(task: Niah) -> bool:
    return task.queries * task.values == 1


def _number(template: str, task: Niah) -> str:
    """The template in the grammatical number of the answer, by the official replacements in their order."""
    if not _singular(task):
        return template
    for plural, singular in (("Some", "A"), ("are all", "is"), ("are", "is"), ("answers", "answer")):
        template = template.replace(plural, singular)
    return template
