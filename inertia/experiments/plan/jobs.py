"""From the words of a command line to the jobs that it would run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inertia.experiments.jobs import every
from inertia.experiments.overrides import CONFIG_NAME, BadSetting, check, first, spelled_out
from inertia.paths import config_dir

if TYPE_CHECKING:
    from inertia.experiments.config import RunConfig


def jobs_of(given: Sequence[str]) -> list[RunConfig]:
    """Return the checked settings of every job that `python -m inertia` would run for the same words.

    Args:
        given: overrides, and `-m` or `--multirun`.

    Raises:
        BadSetting: settings that the run would refuse; of a sweep, all that are wrong.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from inertia.experiments.config import run_config

    given = spelled_out(given)
    sweeps = check(given) or bool({"-m", "--multirun"} & set(given))
    words = [word for word in given if not word.startswith("-")]
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        overrides = parser.parse_overrides(words)
        jobs = [words]
        if sweeps:
            base = compose(CONFIG_NAME, overrides=[first(each) for each in overrides], return_hydra_config=True)
            jobs = combinations(base.hydra.sweeper, overrides, parser)
        elif swept := [each.input_line for each in overrides if each.is_sweep_override()]:
            raise BadSetting(f"{', '.join(swept)}: several values need a sweep; add -m.")
        return every(jobs, lambda _, job: run_config(compose(CONFIG_NAME, overrides=job)))


def combinations(sweeper: Any, overrides: Sequence[Any], parser: Any) -> list[list[str]]:
    """Return each job's overrides, as Hydra's basic sweeper splits them.

    Raises:
        BadSetting: another sweeper is chosen, whose jobs depend on results, or a sweep has no list of values.
    """
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.errors import HydraException

    if not str(sweeper._target_).endswith(".BasicSweeper"):
        raise BadSetting(f"hydra/sweeper={sweeper._target_}: only the basic sweeper's jobs can be planned.")
    # The settings of Hydra itself go to every job as they stand.
    ours = [each for each in overrides if not each.key_or_group.startswith("hydra")]
    hydras = [each.input_line for each in overrides if each.key_or_group.startswith("hydra")]
    params = parser.parse_overrides([f"{key}={value}" for key, value in (sweeper.params or {}).items()])
    try:
        (jobs,) = BasicSweeper.split_arguments([*params, *ours], None)
    except HydraException as error:
        raise BadSetting(str(error)) from error
    return [[*hydras, *job] for job in jobs]
