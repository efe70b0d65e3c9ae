"""`python -m inertia.plan [-m] key=value ...` prints what `python -m inertia` would do for the same words."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence


def parser() -> argparse.ArgumentParser:
    """Return the command line; everything else is an override."""
    made = argparse.ArgumentParser(
        prog="python -m inertia.plan",
        description="Cells, tokens, memory and hours of a run before it runs; nothing is loaded, decoded or written.",
        epilog="Everything else is given as to python -m inertia: experiment=table05 profile=full, or -m key=a,b ...",
        allow_abbrev=False,
    )
    made.add_argument("overrides", nargs="*", metavar="key=value", help="settings of the run")
    made.add_argument("-m", "--multirun", action="store_true", help="every combination of the values a,b,c")
    made.add_argument("--gpu", metavar="NAME", help="device to plan for (an unknown name lists the known ones)")
    made.add_argument("--devices", type=count, default=1, metavar="N", help="spread the layers over so many of them")
    made.add_argument("--prefill-tps", type=speed, metavar="X", help="prompt tokens per second; with --decode-tps")
    made.add_argument(
        "--decode-tps", type=speed, metavar="Y", help="new tokens per second, all rows of a batch together"
    )
    made.add_argument("--measured", action="store_true", help="speed of the sealed records of the same backbone")
    made.add_argument("--cells", action="store_true", help="list every cell with its id and what is done of it")
    made.add_argument("--json", action="store_true", help="print one JSON object instead")
    return made


def count(text: str) -> int:
    """Return a number of devices.

    Raises:
        ArgumentTypeError: it is no whole number from 1 to 64.
    """
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of devices; give a whole number from 1 to 64")
    return int(text)


def speed(text: str) -> float:
    """Return tokens per second.

    Raises:
        ArgumentTypeError: it is no positive finite number.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no speed; give tokens per second, more than 0")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0, or 2 with the reason on stderr."""
    given = parser().parse_intermixed_args(arguments)
    logging.basicConfig(format="inertia: %(message)s", level=logging.WARNING)
    try:
        run(given)
    except (ValueError, OSError) as error:
        print(f"inertia: {error}", file=sys.stderr)
        return 2
    return 0


def run(given: argparse.Namespace) -> None:
    """Plan and print.

    Raises:
        ValueError, OSError: what was asked for cannot be planned: nothing, an unknown device, a speed by half or twice.
    """
    from rich.console import Console

    from inertia.experiments.plan.hardware import device
    from inertia.experiments.plan.jobs import jobs_of
    from inertia.experiments.plan.plan import Options, make_plan
    from inertia.experiments.plan.report import as_json, print_plan
    from inertia.experiments.plan.speed import Stated

    if not given.overrides:
        raise ValueError("nothing was asked for; give settings, such as experiment=table05 profile=laptop.")
    speeds = [each for each in (given.prefill_tps, given.decode_tps) if each is not None]
    if len(speeds) == 1:
        raise ValueError("--prefill-tps and --decode-tps go together; give both or neither.")
    if speeds and given.measured:
        raise ValueError("--measured and --prefill-tps/--decode-tps are two sources of one speed; give one of them.")
    if given.gpu is not None:
        device(given.gpu)  # an unknown name is refused before anything is composed
    options = Options(given.gpu, given.devices, Stated(*speeds) if speeds else None, given.measured)
    plan = make_plan(jobs_of([*(["-m"] if given.multirun else []), *given.overrides]), options)
    if given.json:
        print(json.dumps(as_json(plan)))
    else:
        print_plan(plan, Console(), cells=given.cells)


if __name__ == "__main__":
    # A plan fetches nothing: what the Hub cache does not have is planned from the settings. HF_HUB_OFFLINE=0 allows it.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
