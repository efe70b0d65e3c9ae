"""What a part of a policy is, as plain data: the same text names it in configs, cell identities and tables."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import fields, is_dataclass
from typing import Any


def kind(part: Any) -> str:
    """Return the short name of a part: its `kind` attribute, or module:Class for parts from outside the package."""
    cls = type(part)
    if cls.__module__.split(".")[0] == "inertia":
        return cls.kind
    return f"{cls.__module__}:{cls.__qualname__}"


def describe(part: Any) -> Any:
    """Return a part as nested JSON-able data, `kind` first; plain values are returned as they are.

    Every dataclass field counts, except those with `metadata={"role": "transport"}`, such as a path whose
    content another field identifies. A field that cannot change an output does not belong into a part.

    Raises:
        TypeError: the part is neither plain data nor a dataclass.
    """
    if part is None or isinstance(part, bool | int | float | str):
        return part
    if isinstance(part, list | tuple):
        return [describe(item) for item in part]
    if not is_dataclass(part):
        raise TypeError(
            f"{type(part).__qualname__} cannot be described; make it a frozen dataclass, so that its settings "
            "become part of the cell's identity."
        )
    settings = [field.name for field in fields(part) if field.metadata.get("role") != "transport"]
    described = {"kind": kind(part), **{name: describe(getattr(part, name)) for name in settings}}
    if type(part).__module__.split(".")[0] != "inertia":
        described["source_sha256"] = source_sha256(type(part))
    return described


def source_sha256(cls: type) -> str | None:
    """Return the hash of a class's source: a part from outside is another part once its code is edited.

    Parts of this package are covered by the score version of the harness instead. None where there is no source file.
    """
    try:
        return hashlib.sha256(inspect.getsource(cls).encode()).hexdigest()
    except (OSError, TypeError):
        return None
