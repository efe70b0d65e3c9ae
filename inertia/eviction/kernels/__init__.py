"""GPU kernels (optional extra `gpu`). Importing this package loads no compiler; importing a kernel's module does."""

from __future__ import annotations

from importlib.util import find_spec

import torch


def available(device: torch.device | str) -> bool:
    """Return whether the kernels run on a device: a CUDA device that is there, with Triton installed."""
    return torch.device(device).type == "cuda" and torch.cuda.is_available() and find_spec("triton") is not None
