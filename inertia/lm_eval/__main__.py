"""`python -m inertia.lm_eval`: lm-eval's command line, plus `--model inertia` and our benchmarks as tasks.

Every other model runs as it does under `lm_eval`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def main() -> int:
    """Run the command line and return the exit code: 0, or 2 where a setting is refused."""
    from lm_eval._cli import HarnessCLI
    from lm_eval.utils import setup_logging

    setup_logging()
    cli = HarnessCLI()
    arguments = cli.parse_args()
    try:
        if not hasattr(arguments, "include_path"):
            cli.execute(arguments)
            return 0
        return run(cli, arguments)
    except (ValueError, FileNotFoundError) as error:
        print(f"inertia: {error}", file=sys.stderr)
        return 2


def run(cli: Any, arguments: Any) -> int:
    """Carry out a command that knows tasks.

    Raises:
        ValueError: a setting is refused.
    """
    config = None
    if hasattr(arguments, "model"):
        from lm_eval.config.evaluate_config import EvaluatorConfig

        from inertia.lm_eval.run import check

        config = EvaluatorConfig.from_cli(arguments)
        config.include_path = arguments.include_path or config.include_path
        if config.model == "inertia":
            # lm-eval asks for cuda:0 where nobody asked for anything; the backbone knows its own device.
            stated = config.device if config.device != EvaluatorConfig().device else None
            device = arguments.device or stated
            config.model_args = {**({} if device is None else {"device": device}), **config.model_args}
            check(config)
    from inertia.lm_eval.run import register
    from inertia.lm_eval.tasks.files import write

    register()
    with TemporaryDirectory(prefix="inertia-tasks-") as folder:
        write(Path(folder))
        given = arguments.include_path if config is None else config.include_path
        include = [folder, *([given] if isinstance(given, str) else given or [])]
        if config is not None and config.model == "inertia":
            from lm_eval.utils import make_table

            from inertia.lm_eval.run import evaluate

            results = evaluate(config, include)
            print(make_table(results))
            if "groups" in results:
                print(make_table(results, "groups"))
        else:
            arguments.include_path = include
            cli.execute(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
