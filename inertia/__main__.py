"""`python -m inertia key=value ...` runs the cells of one policy; with `-m`, those of every combination."""

from __future__ import annotations

import sys

from inertia.experiments.cli import main

if __name__ == "__main__":
    sys.exit(main())
