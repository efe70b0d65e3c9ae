"""Where the project keeps its files: configuration groups and results."""

from __future__ import annotations

import os
from pathlib import Path


def config_dir() -> Path:
    """Return the folder of the Hydra configuration groups, in a checkout as in an installed wheel.

    A wheel carries the groups inside the package; a checkout has them beside it.

    Raises:
        FileNotFoundError: Neither place has them.
    """
    package = Path(__file__).resolve().parent
    # The packaged place comes first: beside an installed package lies site-packages, where "configs" may be
    # anyone's.
    candidates = (package / "configs", package.parent / "configs")
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(
        f"no configuration groups in {' or '.join(str(c) for c in candidates)}; "
        "reinstall the package, or run from a complete checkout"
    )


def results_dir() -> Path:
    """Return the folder of runs, published records, tables and figures: $INERTIA_RESULTS, else ./results."""
    return Path(os.environ.get("INERTIA_RESULTS") or "results")
