"""The words of a command line: every key, option and first combination is checked before anything heavy is imported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inertia.eviction.checks import nearest
from inertia.paths import config_dir

CONFIG_NAME = "config"
# Mappings whose keys are the user's to add; so are those of a part by a class of one's own.
OPEN = ("benchmark.task_examples", "launcher.sbatch")


class BadSetting(ValueError):
    """A command-line setting that the config does not have, or a value that it does not allow."""


def parsed(words: Sequence[str]) -> list[Any]:
    """Return Hydra's overrides of some words.

    Raises:
        BadSetting: a word is none.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import OverrideParseException

    try:
        return OverridesParser.create().parse_overrides(list(words))
    except OverrideParseException as error:
        raise BadSetting(f"{error}; settings have the form key=value.") from error


def spelled_out(given: Sequence[str]) -> list[str]:
    """Return a command line whose mappings are spelled out key by key.

    Then two mappings of one key merge in a sweep as they do without `-m`, where Hydra's sweeper would keep the last one
    alone; and keys of open mappings need no +.

    Raises:
        BadSetting: a word is no override, or one key is swept twice.
    """
    if {"-h", "--help", "--hydra-help", "--info", "-i", "--cfg", "-c"} & set(given):
        return list(given)
    words = [word for word in given if not word.startswith("-")]
    pairs = [pair for each in parsed(words) for pair in leaves(each)]
    free = open_places(parsed([word for _, word in pairs]))
    spelled = [f"++{word.lstrip('+')}" if within(key, free) and word[0] != "~" else word for key, word in pairs]
    swept = Counter(each.key_or_group for each in parsed(spelled) if each.is_sweep_override())
    for key, count in swept.items():
        if count > 1:
            raise BadSetting(f"{key} is swept {count} times, and only the last would count; give one list of values.")
    return [*(word for word in given if word.startswith("-")), *spelled]


def leaves(override: Any) -> Iterator[tuple[str, str]]:
    """Yield key and word of an override: its own, or those of every value of its mapping."""
    key, line = override.key_or_group, override.input_line
    mapping = None if override.is_sweep_override() or override.is_delete() else override.value()
    if not isinstance(mapping, Mapping) or not mapping or key.startswith("hydra"):
        yield key, line
        return

    def walk(above: str, values: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
        for name, value in values.items():
            if isinstance(value, Mapping) and value:
                yield from walk(f"{above}.{name}", value)
            else:
                yield f"{above}.{name}", value

    prefix = line[: len(line) - len(line.lstrip("+"))]
    for name, value in walk(key, mapping):
        yield name, f"{prefix}{name}={type(override)._get_value_element_as_str(value)}"


def open_places(overrides: Sequence[Any]) -> tuple[str, ...]:
    """Return where any key may be given: below `OPEN`, and in parts whose class is none of ours."""
    targets = [each for each in overrides if each.key_or_group.endswith("._target_") and not each.is_delete()]
    foreign = (each.key_or_group for each in targets if not values_of(each)[0].startswith("inertia."))
    return (*OPEN, *(key.removesuffix("._target_") for key in foreign))


def within(key: str, places: Sequence[str]) -> bool:
    """Tell whether a dotted key is below one of some places."""
    return key.startswith(tuple(f"{place}." for place in places))


def values_of(override: Any) -> list[str]:
    """Return the values of an override as text, in a sweep all of them."""
    values = override.sweep_string_iterator() if override.is_sweep_override() else [override.value()]
    return ["" if value is None else str(value) for value in values]


def check(given: Sequence[str]) -> bool:
    """Check overrides against the config groups and keys, before anything heavy is imported.

    Returns:
        Whether the composed config asks for a multirun by itself.

    Raises:
        BadSetting: an unknown key, group or option, or a first combination whose values are not allowed.
    """
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException

    from inertia.experiments.config import run_config

    words = [word for word in given if not word.startswith("-")]
    if any(word in ("-h", "--help", "--hydra-help", "--info", "-i", "--cfg", "-c") for word in given):
        words = []
    overrides = parsed(words)
    free = open_places(overrides)
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        options = group_options()
        top = {*options} - {"layers", "time"}
        choices = [
            each for each in overrides if each.key_or_group in top or (each.package and each.key_or_group in options)
        ]
        for override in choices:
            check_choice(override, options[override.key_or_group])
        try:
            base = compose(CONFIG_NAME, overrides=[first(each) for each in choices], return_hydra_config=True)
        except (HydraException, ValueError) as error:
            raise BadSetting(str(error)) from error
        values = [each for each in overrides if each not in choices]
        for override in values:
            check_key(override, base, options, free)
        for words in alternatives(choices) if values else ():
            try:
                other = compose(CONFIG_NAME, overrides=words, return_hydra_config=True)
                for override in values:
                    check_key(override, other, options, free)
            except (HydraException, ValueError) as error:
                raise BadSetting(f"with {' '.join(words)}: {error}") from error
        try:
            plain = [first(each) for each in values if not each.key_or_group.startswith("hydra")]
            composed = compose(CONFIG_NAME, overrides=[*(first(each) for each in choices), *plain])
            run_config(composed)
        except HydraException as error:
            raise BadSetting(str(error.__cause__ or error)) from error
        except ValueError as error:
            raise BadSetting(str(error)) from error
        return str(base.hydra.mode) == "RunMode.MULTIRUN"


def group_options() -> dict[str, list[str]]:
    """Return the config groups and their options, from the folders of `configs/`."""
    root = config_dir()
    return {
        folder.name: sorted(path.stem for path in folder.glob("*.yaml")) for folder in root.iterdir() if folder.is_dir()
    }


def first(override: Any) -> str:
    """Return an override as `key=value` with the first of its swept values."""
    if not override.is_sweep_override():
        return override.input_line
    value = next(iter(override.sweep_string_iterator()))
    return f"{override.get_key_element()}={value}"


def alternatives(choices: Sequence[Any]) -> Iterator[list[str]]:
    """Yield, for each further value of a swept group, all choices with it and the others at their first."""
    for place, swept in enumerate(choices):
        for value in list(swept.sweep_string_iterator())[1:] if swept.is_sweep_override() else ():
            words = [first(each) for each in choices]
            yield [*words[:place], f"{swept.get_key_element()}={value}", *words[place + 1 :]]


def check_choice(override: Any, allowed: list[str]) -> None:
    """Refuse an unknown option of a group.

    Raises:
        BadSetting: naming the option, the allowed ones and the nearest.
    """
    for value in values_of(override):
        if value and value not in allowed:
            raise BadSetting(
                f"{override.key_or_group}={value}: no such option; give one of {', '.join(allowed)}."
                f"{nearest(value, allowed)}"
            )


def check_key(override: Any, base: Any, groups: dict[str, list[str]], free: Sequence[str]) -> None:
    """Refuse a key that the composed config does not have, but for those below a place of `free`.

    Raises:
        BadSetting: naming the key, the allowed ones beside it and the nearest.
    """
    key = override.key_or_group
    if key.startswith("hydra"):
        return
    if within(key, free):
        return
    if override.is_add() or override.is_delete():
        raise BadSetting(f"{override.input_line}: the config is closed; keys cannot be added or removed.")
    node, walked = base, []
    for name in key.split("."):
        names = [str(each) for each in node] if hasattr(node, "keys") else []
        if not walked:
            names = [each for each in names if each != "hydra"] + [each for each in groups if each not in names]
        names = [each for each in names if each != "_target_" or name == "_target_"]
        if name not in names:
            place = ".".join(walked) or "the config"
            elsewhere = [] if walked else [path for path in keys_of(base) if path.endswith(f".{name}")]
            hint = f" Did you mean {' or '.join(elsewhere[:3])}?" if elsewhere else nearest(name, names)
            raise BadSetting(
                f"{key}: {place} has no key {name!r}; it has {', '.join(sorted(names)) or 'no keys'}.{hint}"
            )
        walked.append(name)
        node = node[name] if name in node else {}


def keys_of(node: Any, above: str = "") -> Iterator[str]:
    """Yield the dotted names of all keys of a composed config, Hydra's own left out."""
    for name in node if hasattr(node, "keys") else ():
        if above or name != "hydra":
            path = f"{above}.{name}" if above else str(name)
            yield path
            yield from keys_of(node._get_node(name), path)
