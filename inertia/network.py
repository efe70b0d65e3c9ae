"""Whether the Hugging Face Hub can be reached."""

from __future__ import annotations

from functools import cache

SECONDS = 10


@cache
def online() -> bool:
    """Tell whether the Hub answers, by one request per process; False where it is set to be offline.

    The Hub's own client tries six times over half a minute, for every file, and writes two lines each time.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception:  # noqa: BLE001 - what its HTTP library raises differs between versions
        return False
    return True
