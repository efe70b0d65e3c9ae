"""inertia: a reproducible benchmark harness for KV-cache eviction while decoding.

The public Python API is `Policy`, `preset` (a policy of the literature by name) and `generate` with the values that it
takes; everything else is run by `python -m inertia`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inertia.decoding.evicting import evicting
    from inertia.decoding.generation import generate
    from inertia.decoding.request import Observation, PromptFormat, Stopping, TokensPrompt
    from inertia.decoding.result import Generation
    from inertia.decoding.sampling import Sampling
    from inertia.eviction.execution import Execution
    from inertia.eviction.policy import Policy
    from inertia.methods import preset

__version__ = "0.1.0"
__all__ = [
    "Execution",
    "Generation",
    "Observation",
    "Policy",
    "PromptFormat",
    "Sampling",
    "Stopping",
    "TokensPrompt",
    "evicting",
    "generate",
    "preset",
]

_HOMES = {
    "Execution": "eviction.execution",
    "Generation": "decoding.result",
    "Observation": "decoding.request",
    "Policy": "eviction.policy",
    "PromptFormat": "decoding.request",
    "Sampling": "decoding.sampling",
    "Stopping": "decoding.request",
    "TokensPrompt": "decoding.request",
    "evicting": "decoding.evicting",
    "generate": "decoding.generation",
    "preset": "methods",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `python -m inertia` can refuse a bad setting before torch is loaded."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"inertia.{_HOMES[name]}"), name)
