"""What a run would cost, before anything runs: `python -m inertia.plan <the overrides of python -m inertia>`."""
