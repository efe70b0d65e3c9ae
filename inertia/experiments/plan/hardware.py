"""Devices by name, and what share of their figures we assume to reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inertia.eviction.checks import nearest

# Shares of the stated peak: long prompts reach about half of the FLOPs, decoding about 0.7 of the bandwidth.
PREFILL_SHARE = 0.5
DECODE_SHARE = 0.7
# Shortest time of one layer in one forward: launching its kernels one by one from Python.
# R-KV's published 69 tokens/s of an 8B model with 32 layers at batch 1 come to 0.45 ms.
LAYER_SECONDS = 0.45e-3
# Of a device's memory, what is left to us beside the driver's context and fragmentation.
USABLE = 0.95


@dataclass(frozen=True)
class Hardware:
    """One device.

    Attributes:
        name: its name.
        memory: GiB, or None where it is not checked.
        tflops: peak by dtype.
        bandwidth: GB/s.
    """

    name: str
    memory: float | None
    tflops: Mapping[str, float]
    bandwidth: float

    @property
    def usable(self) -> float | None:
        """Bytes that a run may take, or None for no limit."""
        return None if self.memory is None else USABLE * self.memory * 2**30


def devices() -> dict[str, Hardware]:
    """Return all known devices by name."""
    import yaml

    stated = yaml.safe_load((Path(__file__).parent / "hardware.yaml").read_text(encoding="utf-8"))
    return {name: Hardware(name, **values) for name, values in stated.items()}


def device(name: str) -> Hardware:
    """Return a device.

    Raises:
        ValueError: it is unknown; the message lists the known ones.
    """
    known = devices()
    if name not in known:
        raise ValueError(
            f"--gpu {name}: unknown; give one of {', '.join(known)}, or state its speed with "
            f"--prefill-tps X --decode-tps Y.{nearest(name, known)}"
        )
    return known[name]
