"""The inertia model under its name in lm-eval's registry."""

from __future__ import annotations


def register() -> None:
    """Make `model="inertia"` known to lm-eval; its own models stay known."""
    # lm-eval lists its own models only while the registry is empty, so they go first.
    import lm_eval.models  # noqa: F401
    from lm_eval.api.registry import model_registry

    if "inertia" not in model_registry:
        model_registry.register("inertia", target="inertia.lm_eval.model:InertiaLM")
