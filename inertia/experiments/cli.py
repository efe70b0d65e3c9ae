"""The command line: wrong settings are refused at once, then Hydra composes and sweeps."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

from inertia.experiments.launchers.ambient import drop_rounding
from inertia.experiments.overrides import CONFIG_NAME, BadSetting, check, spelled_out
from inertia.paths import config_dir

USAGE = """inertia: nothing was asked for. For instance:

  python -m inertia backbone=tiny-random benchmark.tasks=[niah_single_1] benchmark.lengths=[1024] \\
      benchmark.examples=2 method=inertiakv
  python -m inertia -m experiment=table05 profile=smoke        (-m runs every combination of a,b,c values)
  python -m inertia.plan experiment=table05 profile=full       (cells, tokens, memory and hours, before it runs)
  python -m inertia.methods                                   (every method, its source and settings)
  python -m inertia.report scores EXPERIMENT --profile NAME   (a table of what was measured)

The groups and keys are the files of configs/; a wrong one is refused with the allowed ones."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 all sealed, 1 cells incomplete, 2 wrong settings."""
    import hydra

    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given:
        print(USAGE)
        return 0
    logging.basicConfig(format="inertia: %(message)s", level=logging.WARNING)
    drop_rounding()
    try:
        given = spelled_out(given)
        multirun = check(given)
    except BadSetting as error:
        print(f"inertia: {error}", file=sys.stderr)
        return 2
    if multirun and not {"-m", "--multirun"} & set(given):
        given = ["--multirun", *given]
    sys.argv = ["inertia", *given]
    try:
        hydra.main(config_path=str(config_dir()), config_name=CONFIG_NAME, version_base="1.3")(task)()
    except KeyboardInterrupt:
        print("inertia: interrupted; the same command goes on from here.", file=sys.stderr)
        return 130
    return 0


def task(composed: Any) -> None:
    """Run one job (Hydra without `-m`).

    Raises:
        SystemExit: settings are wrong (2), or cells stayed incomplete (1).
    """
    from inertia.experiments.cells import cells_of
    from inertia.experiments.config import run_config
    from inertia.experiments.jobs import carry_out, exit_code

    with exit_code():
        config = run_config(composed)
        cells = cells_of(config)
    carry_out([config], [cells])
