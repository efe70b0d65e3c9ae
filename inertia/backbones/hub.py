"""Models of the Hugging Face Hub, or of a local folder in the same layout."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from inertia.backbones.digest import remembered_sha256
from inertia.network import online

# Everything transformers may read from a model folder when remote code is off.
READ_SUFFIXES = (".safetensors", ".json", ".jinja", ".model", ".txt")


def resolve_revision(repo: str, revision: str) -> str:
    """Return the 40-hex commit that `revision` of `repo` names; offline, the one it last named here.

    Raises:
        ConnectionError: the Hub cannot be reached, the repository is gated or absent, and nothing is cached.
    """
    if re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    from huggingface_hub import hf_hub_download

    try:
        found = hf_hub_download(repo, "config.json", revision=revision, local_files_only=not online())
    except Exception as error:
        reason = " ".join(str(error).split()) if online() else "the Hub does not answer and its cache here has no copy"
        raise ConnectionError(
            f"cannot resolve revision {revision!r} of {repo}: {reason}. Run once online (gated models need "
            "`hf auth login` and an accepted licence), or set backbone.path to a local folder of the model"
        ) from error
    commit = Path(found).parent.name  # .../snapshots/<commit>/config.json
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise ConnectionError(f"the Hub cache has {found}, from which no commit can be read; give a 40-hex revision")
    return commit


def content_identity(folder: Path) -> dict[str, Any]:
    """Return the identity of a local model folder: one hash over all files that are read.

    Raises:
        FileNotFoundError: no folder, no config.json, or no safetensors in it.
    """
    files = sorted(file for file in folder.glob("*") if file.suffix in READ_SUFFIXES and file.is_file())
    if not (folder / "config.json").is_file() or not any(file.suffix == ".safetensors" for file in files):
        raise FileNotFoundError(
            f"backbone.path {folder} must be a folder with config.json, a tokenizer and *.safetensors "
            "(pickled .bin weights are not read)"
        )
    hashes = {file.name: remembered_sha256(file) for file in files}
    joined = hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()
    return {"source": "path", "content_sha256": joined}
