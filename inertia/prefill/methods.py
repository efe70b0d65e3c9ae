"""Compressors of the literature by name, each as its source ran it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from inertia.eviction import checks
from inertia.prefill.adakv import AdaKV
from inertia.prefill.compressor import Compressor
from inertia.prefill.expected_attention import ExpectedAttention
from inertia.prefill.key_norm import KeyNorm
from inertia.prefill.keydiff import KeyDiff
from inertia.prefill.kvzip import KVzip
from inertia.prefill.snapkv import SnapKV
from inertia.prefill.streaming_llm import StreamingLLM
from inertia.prefill.tova import TOVA


def adakv_expected_attention(
    alpha: float = 0.2,
    future: int = 512,
    sinks: int = 4,
    covariance: bool = True,
    value_norm: bool = True,
    epsilon: float = 1e-2,
) -> AdaKV:
    """AdaKV over Expected Attention; epsilon keeps heads with a flat softmax from losing everything."""
    return AdaKV(ExpectedAttention(future, sinks, covariance, value_norm, epsilon), alpha)


def adakv_snapkv(alpha: float = 0.2, window: int = 64, pool: int = 5) -> AdaKV:
    """AdaKV over SnapKV, the pair of its paper."""
    return AdaKV(SnapKV(window, pool), alpha)


COMPRESSORS: Mapping[str, Callable[..., Compressor]] = {
    "adakv_expected_attention": adakv_expected_attention,
    "adakv_snapkv": adakv_snapkv,
    "expected_attention": ExpectedAttention,
    "key_norm": KeyNorm,
    "keydiff": KeyDiff,
    "kvzip": KVzip,
    "snapkv": SnapKV,
    "streaming_llm": StreamingLLM,
    "tova": TOVA,
}


def named(name: str, **settings: object) -> Compressor:
    """Return the compressor `name` with some of its settings replaced.

    Raises:
        ValueError: unknown name or setting (the message lists the known ones), or a value out of range.
    """
    checks.choice("prefill compressor", name, tuple(sorted(COMPRESSORS)))
    checks.known_settings(f"prefill compressor {name!r}", settings, settings_of(name))
    return COMPRESSORS[name](**settings)


def settings_of(name: str) -> list[str]:
    """Return the settings that a compressor takes."""
    return list(inspect.signature(COMPRESSORS[name]).parameters)
