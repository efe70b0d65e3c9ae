"""Hydra finds launchers in this namespace only; the launcher itself lives in `inertia.experiments.hydra_launcher`."""

from __future__ import annotations

from hydra.core.config_store import ConfigStore

from inertia.experiments.hydra_launcher import GroupingLauncher as _GroupingLauncher


class InertiaLauncher(_GroupingLauncher):
    """The default launcher of `-m`: jobs that can share a prefill run together."""


ConfigStore.instance().store(
    group="hydra/launcher",
    name="inertia",
    node={"_target_": f"{__name__}.InertiaLauncher"},
    provider="inertia",
)
