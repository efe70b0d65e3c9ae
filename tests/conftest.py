"""Shared settings of all tests: offline, one thread, results in a folder of their own."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    """Every test has its own results folder."""
    monkeypatch.setenv("INERTIA_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results"


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tiny models are fastest, and equal everywhere, on one thread."""
    import torch

    torch.set_num_threads(1)
