"""Many tests at once."""

from __future__ import annotations

from collections.abc import Mapping


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return Holm's adjusted p-values of a declared family, in the order given.

    Comparing them with a level keeps the chance of any false finding in the family below it, whatever the
    dependence. (`scipy.stats` has false-discovery corrections only.)

    Raises:
        ValueError: for a p-value outside [0, 1].
    """
    for name, p in p_values.items():
        if not 0 <= p <= 1:
            raise ValueError(f"p-value of {name!r} is {p}: expected a number in [0, 1]")
    adjusted: dict[str, float] = {}
    floor = 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p))
        adjusted[name] = floor
    return {name: adjusted[name] for name in p_values}
