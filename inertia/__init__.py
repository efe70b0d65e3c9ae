"""inertia: a reproducible benchmark harness for KV-cache eviction while decoding.

The public Python API is `Policy` and `generate`; everything else is run by `python -m inertia`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inertia.decoding.generation import Generation, generate
    from inertia.eviction.execution import Execution
    from inertia.eviction.policy import Policy

__version__ = "0.1.0"
__all__ = ["Execution", "Generation", "Policy", "generate"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `python -m inertia` can refuse a bad setting before torch is loaded."""
    if name == "Policy":
        from inertia.eviction.policy import Policy

        return Policy
    if name == "Execution":
        from inertia.eviction.execution import Execution

        return Execution
    if name in ("generate", "Generation"):
        from inertia.decoding import generation

        return getattr(generation, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
