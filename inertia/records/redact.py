"""What must not reach a record: credentials, secrets, the paths of whoever ran it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Names end with one of these; a model's eos_token and a budget in tokens are no secrets.
_SECRET_NAME = (
    r"(?:(?<!eos_)(?<!bos_)(?<!pad_)(?<!unk_)(?<!new_)token|secret|pass|passwd|password|credentials?"
    r"|api[_-]?key|access[_-]?key|private[_-]?key|auth|authorization)"
)
_URL_USER = re.compile(r"(?<=://)[^/\s@]+@")
_ASSIGNED = re.compile(rf"(?i)((?<![A-Za-z])[\w.-]*?{_SECRET_NAME}[\"']?\s*[=:]\s*)([^\s&,;]+)")
_BEARER = re.compile(r"(?i)(\bbearer\s+)\S+")
_WELL_KNOWN = re.compile(r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[bp]-|AKIA)[A-Za-z0-9_-]{8,}")
_FLAG = re.compile(rf"(?i)^(?:--?)?[\w.-]*?{_SECRET_NAME}$")
_MASK = "***"
_SHORTEST_SECRET = 6


def redact_text(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Return `text` without what is private: see `redact`."""
    environ = os.environ if environ is None else environ
    for secret in _secret_values(environ):
        text = text.replace(secret, _MASK)
    text = _URL_USER.sub(_MASK + "@", text)
    text = _BEARER.sub(rf"\1{_MASK}", text)
    text = _ASSIGNED.sub(rf"\1{_MASK}", text)
    text = _WELL_KNOWN.sub(_MASK, text)
    for path, shown in _private_paths(environ):
        text = re.sub(rf"(?<![\w.-]){re.escape(path)}(?=$|[^\w.-]|\.(?:\W|$))", shown, text)
    return text


def redact(value: Any, environ: Mapping[str, str] | None = None) -> Any:
    """Return a nested value whose texts keep no secret and no private path.

    Masked are the user part of URLs, what follows a name such as token= or api_key:, texts under such a key
    or after such a flag in a list, well-known token shapes, and every value of an environment variable with
    such a name, wherever it shows up. The working directory becomes ".", the home directory "~".
    """
    environ = os.environ if environ is None else environ
    if isinstance(value, str):
        return redact_text(value, environ)
    if isinstance(value, Mapping):
        return {
            key: _MASK if isinstance(item, str) and _FLAG.match(str(key)) else redact(item, environ)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        flags = [isinstance(item, str) and item.startswith("-") and bool(_FLAG.match(item)) for item in [None, *value]]
        pairs = zip(value, flags, strict=False)
        return [_MASK if hidden and isinstance(item, str) else redact(item, environ) for item, hidden in pairs]
    return value


def _secret_values(environ: Mapping[str, str]) -> list[str]:
    named = re.compile(rf"(?i)(?:{_SECRET_NAME}|_key)$")
    found = {value for name, value in environ.items() if named.search(name) and len(value) >= _SHORTEST_SECRET}
    # A path or a plain number under such a name is no secret, and would mask too much.
    secrets = (value for value in found if not value.startswith("/") and not value.isdigit())
    return sorted(secrets, key=len, reverse=True)


def _private_paths(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    home = environ.get("HOME", str(Path.home()))
    candidates = [(str(Path.cwd()), "."), (home.rstrip("/"), "~")]
    deep = [(path, shown) for path, shown in candidates if len(Path(path).parts) > 1]
    return sorted(deep, key=lambda pair: -len(pair[0]))
