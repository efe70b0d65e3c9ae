"""The shape of the package: imports flow one way, in no circle, between a few rooms."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "inertia"

# From the bottom to the top: a room imports from rooms of lower floors only.
FLOORS = (
    {"paths", "network", "statistics", "eviction"},
    {"prefill", "records"},
    {"methods", "decoding", "reports"},
    {"backbones", "benchmarks", "paper"},
    {"measure"},
    {"experiments"},
    {"plan", "report", "lm_eval"},
    {"", "__main__"},
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
LOOSE = 6


def modules() -> dict[str, Path]:
    """Return dotted name below the package -> file; a package goes by its own name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules of the package that a file imports anywhere, under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            said = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import by its full name, not relatively"
            said = [f"{node.module}.{alias.name}" for alias in node.names]
            said = [each if each.removeprefix("inertia.") in known else node.module for each in said]
        else:
            continue
        for each in said:
            if each == "inertia" or each.startswith("inertia."):
                target = each.removeprefix("inertia").removeprefix(".")
                while target not in known:
                    target = target.rpartition(".")[0]
                if target != name:
                    yield target


def edges() -> dict[str, set[str]]:
    """Return module -> the modules it imports."""
    known = modules()
    return {name: set(imported(name, path, known)) for name, path in known.items()}


def room(module: str) -> str:
    """Return the package or loose module at the top that a module belongs to."""
    return module.partition(".")[0]


def within(one: str, other: str) -> bool:
    """Tell whether one module is the other's package, which may name its members for its users."""
    return other.startswith(f"{one}.") or one.startswith(f"{other}.")


def upward(found: dict[str, set[str]]) -> list[str]:
    """Return every import that does not go down."""
    return [
        f"{name} -> {target}"
        for name, targets in found.items()
        for target in sorted(targets)
        if room(name) != room(target) and FLOOR[room(name)] <= FLOOR[room(target)]
    ]


def circle(found: dict[str, set[str]]) -> list[str]:
    """Return a circle of modules, empty where there is none."""
    graph = {name: {each for each in targets if not within(name, each)} for name, targets in found.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_imports_go_down() -> None:
    assert set(map(room, modules())) <= set(FLOOR), "give the new room a floor"
    assert upward(edges()) == []


def test_no_circle_of_imports() -> None:
    assert circle(edges()) == []


def test_few_loose_modules() -> None:
    loose = [path.name for path in PACKAGE.glob("*.py") if path.name != "__init__.py"]
    assert len(loose) <= LOOSE, loose


def test_nothing_of_ours_below_the_core() -> None:
    core = {target for name, targets in edges().items() if room(name) == "eviction" for target in targets}
    assert {room(each) for each in core} == {"eviction"}


@pytest.mark.parametrize(
    ("found", "up", "round"),
    [
        ({"eviction.cut": {"prefill.tova"}, "prefill.tova": set()}, ["eviction.cut -> prefill.tova"], False),
        ({"records.read": {"records.store"}, "records.store": {"records.read"}}, [], True),
        ({"records": {"records.read"}, "records.read": {"statistics"}, "statistics": set()}, [], False),
    ],
)
def test_a_wrong_import_is_noticed(found: dict[str, set[str]], up: list[str], round: bool) -> None:
    assert upward(found) == up
    assert bool(circle(found)) is round
