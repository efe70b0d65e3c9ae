"""The words of a command line: every key, option and first combination is checked before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from inertia.paths import config_dir

CONFIG_NAME = "config"
# Mappings whose keys are the user's to add, with +key=value.
OPEN = ("benchmark.task_examples.", "launcher.sbatch.")


class BadSetting(ValueError):
    """A command-line setting that the config does not have, or a value that it does not allow."""


def check(given: Sequence[str]) -> bool:
    """Check overrides against the config groups and keys, before anything heavy is imported.

    Returns:
        Whether the composed config asks for a multirun by itself.

    Raises:
        BadSetting: an unknown key, group or option, or a first combination whose values are not allowed.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException, OverrideParseException

    from inertia.experiments.config import run_config

    words = [word for word in given if not word.startswith("-")]
    if any(word in ("-h", "--help", "--hydra-help", "--info", "-i", "--cfg", "-c") for word in given):
        words = []
    try:
        overrides = OverridesParser.create().parse_overrides(words)
    except OverrideParseException as error:
        raise BadSetting(f"{error}; settings have the form key=value.") from error
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
            check_key(override, base, options)
        for words in alternatives(choices) if values else ():
            try:
                other = compose(CONFIG_NAME, overrides=words, return_hydra_config=True)
                for override in values:
                    check_key(override, other, options)
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
    values = list(override.sweep_string_iterator()) if override.is_sweep_override() else [override.value()]
    for value in values:
        if value is not None and str(value) not in allowed:
            raise BadSetting(
                f"{override.key_or_group}={value}: no such option; give one of {', '.join(allowed)}."
                f"{nearest(str(value), allowed)}"
            )


def check_key(override: Any, base: Any, groups: dict[str, list[str]]) -> None:
    """Refuse a key that the composed config does not have.

    Raises:
        BadSetting: naming the key, the allowed ones beside it and the nearest.
    """
    key = override.key_or_group
    if key.startswith("hydra"):
        return
    if override.is_add() and key.startswith(OPEN):
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


def nearest(name: str, allowed: Sequence[str]) -> str:
    """Return " Did you mean ...?" or nothing."""
    found = get_close_matches(name, allowed, n=1)
    return f" Did you mean {found[0]}?" if found else ""
