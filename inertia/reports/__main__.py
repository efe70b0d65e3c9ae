"""`python -m inertia.reports`: an entry point, and so the one module here that looks up to what is declared."""

import sys

from inertia.paper.commands import main

if __name__ == "__main__":
    sys.exit(main())
