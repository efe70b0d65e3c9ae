"""Named points at which a crash test makes the process signal itself."""

from __future__ import annotations

import os
import signal

_VARIABLE = "INERTIA_FAULT"


def fault(point: str) -> None:
    """Send this process a signal if `INERTIA_FAULT=point:n[:signal]` asks for it at the n-th visit.

    Off, it costs one look into the environment. The count of visits lives in that variable too, so that
    nothing is kept on the module. The signal is a name such as SIGTERM; SIGKILL where none is given.

    Raises:
        ValueError: for a malformed variable.
    """
    setting = os.environ.get(_VARIABLE)
    if setting is None:
        return
    wanted, visits, name = _parse(setting)
    if wanted != point or visits == 0:
        return
    os.environ[_VARIABLE] = f"{wanted}:{visits - 1}:{name}"
    if visits == 1:
        os.kill(os.getpid(), signal.Signals[name])


def _parse(setting: str) -> tuple[str, int, str]:
    parts = setting.split(":")
    known = (
        len(parts) in (2, 3)
        and parts[1].isdigit()
        and (len(parts) == 2 or parts[2] in signal.Signals.__members__)
    )
    if not known:
        raise ValueError(
            f"{_VARIABLE}={setting!r}: expected point:n or point:n:SIGNAL, for instance seal:1:SIGTERM"
        )
    return parts[0], int(parts[1]), parts[2] if len(parts) == 3 else "SIGKILL"
