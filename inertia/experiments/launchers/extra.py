"""Packages that only one launcher needs."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def require(name: str) -> None:
    """Refuse a launcher whose package is missing, without importing it.

    Raises:
        ValueError: with the command that installs it.
    """
    if find_spec(name) is None:
        raise ValueError(f"launcher={name} needs the package {name}; run: pip install 'inertia[{name}]'")


def load(name: str) -> ModuleType:
    """Return an optional package.

    Raises:
        ValueError: as `require`.
    """
    require(name)
    return import_module(name)
