"""inertia: a reproducible benchmark harness for KV-cache eviction while decoding.

The public Python API is `Policy`, `preset` (a policy of the literature by name) and `generate`; everything else is run
by `python -m inertia`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inertia.decoding.generation import Generation, generate
    from inertia.eviction.execution import Execution
    from inertia.eviction.policy import Policy
    from inertia.methods import preset

__version__ = "0.1.0"
__all__ = ["Execution", "Generation", "Policy", "generate", "preset"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `python -m inertia` can refuse a bad setting before torch is loaded."""
    if name == "Policy":
        from inertia.eviction.policy import Policy

        return Policy
    if name == "preset":
        from inertia.methods import preset

        return preset
    if name == "Execution":
        from inertia.eviction.execution import Execution

        return Execution
    if name in ("generate", "Generation"):
        from inertia.decoding import generation

        return getattr(generation, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
