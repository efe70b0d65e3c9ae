"""Backbones: configs, embedded models, loading, and what a model needs."""

from inertia.backbones.artifacts import ARTIFACTS
from inertia.backbones.backbone import Backbone
from inertia.backbones.config import BackboneConfig, from_mapping, read
from inertia.backbones.loading import identity, label, load, load_tokenizer
from inertia.backbones.wheels import FetchError

__all__ = [
    "ARTIFACTS",
    "Backbone",
    "BackboneConfig",
    "FetchError",
    "from_mapping",
    "identity",
    "label",
    "load",
    "load_tokenizer",
    "read",
]
