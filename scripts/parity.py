"""Compare what our compressors and decode policies keep with what kvpress 0.5.5 keeps, on fixed random models.

    python scripts/parity.py                  build kvpress's environment if need be, compare, print a table
    python scripts/parity.py --write-goldens  and store what kvpress kept for the ordinary tests

kvpress pins another transformers, so it runs in an environment of its own, in a process of its own
(parity_kvpress.py). Agreement means the same set of positions in every layer and KV head, and for decoding at every
step. Where we differ on purpose, the difference has a name, is reproduced, and is explained (parity_known.py). The
exit status is 1 if a set differs or a named difference cannot be reproduced.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from parity_cases import (
    MODELS,
    PREFILL,
    PROMPT,
    Case,
    build,
    cases,
    compressor_of,
    entry,
    input_of,
    our_scores,
    ours,
    positions_of,
    replays_of,
    weights_sha256,
)
from parity_known import MODEL, Difference, known

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROOT = Path(__file__).resolve().parents[1]
GOLDENS = ROOT / "tests" / "data" / "parity"
ENVIRONMENT = ROOT / "build" / "parity" / "venv"
KVPRESS, TORCH = "0.5.5", "2.13.0"
# Scores this close, relative to their spread, would let rounding decide; no case may depend on it.
ROUNDING = 2e-6
TOO_CLOSE = "{}: two scores are so close that rounding decides; take another seed."


class Outcome(NamedTuple):
    """What a case gave.

    Attributes:
        equal: whether every set is the same.
        difference: largest difference of two scores, relative to the spread of theirs; None where not compared.
    """

    case: Case
    equal: bool
    difference: float | None


def shaken(recipe: dict[str, Any]) -> PreTrainedModel:
    """Return the model of a recipe with all weights off by about a rounding."""
    import torch

    model = build(recipe)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter *= 1 + ROUNDING * (torch.rand(parameter.shape, generator=generator) - 0.5)
    return model


def compare(model: PreTrainedModel, case: Case, result: dict[str, Any]) -> Outcome:
    """Return whether we keep what kvpress keeps, and how far the scores are apart.

    Raises:
        RuntimeError: rounding decides what is kept, so the case proves nothing.
    """
    import torch

    given = input_of(case)
    kept = ours(model, case, given)
    equal = kept == result["kept"]
    if case.kind == "decode":
        if ours(shaken(MODELS[case.model]), case, given) != kept:
            raise RuntimeError(TOO_CLOSE.format(case.name))
        return Outcome(case, equal, None)
    compressor = compressor_of(case)
    scores = torch.stack(our_scores(model, given.ids, compressor))
    theirs = torch.tensor(result["scores"])
    if case.method == "streaming_llm":
        # Theirs is 1 or 0, so only what stays can be compared.
        return Outcome(case, equal, None)
    finite = scores.isfinite()
    spread = float(theirs[finite].max() - theirs[finite].min())
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        noise = (torch.rand(scores.shape, generator=generator) - 0.5) * (2 * ROUNDING * spread)
        if positions_of(compressor.keep(list(scores + noise), case.budget)) != kept:
            raise RuntimeError(TOO_CLOSE.format(case.name))
    return Outcome(case, equal, float((scores - theirs)[finite].abs().max()) / spread)


def job(case: Case, folder: Path) -> dict[str, Any]:
    """Return a case as the other side reads it."""
    ids, tokens = input_of(case)
    shared = {"kind": case.kind, "method": case.method, "model": str(folder / case.model), "ids": ids}
    if case.kind == "decode":
        return {**shared, "settings": {}, "target": case.budget, "tokens": tokens}
    shared["ratio"] = 1 - case.budget / PROMPT
    if case.kind == "prefill":
        theirs = {method: settings for method, _, settings in PREFILL}
        return {**shared, "settings": theirs[case.method]}
    found = replays_of(compressor_of(case), ids)
    pairs = [[ids[replay.start : replay.end], list(replay.ids)] for replay in found]
    return {**shared, "settings": {"chunk_size": case.settings["chunk"]}, "replays": pairs}


def environment(folder: Path) -> Path:
    """Return the Python of kvpress's environment, made first if it is not there.

    Raises:
        subprocess.CalledProcessError: pip failed.
    """
    python = folder / "bin" / "python"
    probe = "from importlib.metadata import version; print(version('kvpress'))"
    if python.is_file():
        found = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False)
        if found.stdout.strip() == KVPRESS:
            return python
    print(f"making kvpress {KVPRESS}'s environment in {folder} (once)", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "--quiet"]
    # torch comes first and by its exact version: kvpress's own range would fetch a build with GPU libraries.
    subprocess.run([*pip, f"torch=={TORCH}"], check=True)
    subprocess.run([*pip, f"kvpress=={KVPRESS}"], check=True)
    return python


def run_kvpress(python: Path, folder: Path, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return kvpress's results, one per job.

    Raises:
        subprocess.CalledProcessError: its process failed.
    """
    (folder / "cases.json").write_text(json.dumps(jobs), encoding="utf-8")
    driver = Path(__file__).with_name("parity_kvpress.py")
    subprocess.run([python, driver, folder], check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def save_models(folder: Path, models: dict[str, PreTrainedModel]) -> None:
    """Write models as safetensors, each with the tiny tokenizer, which KVzip loads by itself."""
    from inertia.backbones.tiny_tokenizer import tiny_tokenizer

    for name, model in models.items():
        model.save_pretrained(folder / name)
        tiny_tokenizer().save_pretrained(folder / name)


def write_goldens(found: Sequence[tuple[Case, dict[str, Any]]], models: dict[str, PreTrainedModel]) -> None:
    """Write what kvpress kept, with all that is needed to do it again without kvpress; one file per phase."""
    GOLDENS.mkdir(parents=True, exist_ok=True)
    for name, kinds in (("prefill", ("prefill", "kvzip")), ("decode", ("decode",))):
        chosen = [(case, result) for case, result in found if case.kind in kinds]
        inputs = {case.model: input_of(case) for case, _ in chosen}
        content = {
            "kvpress": KVPRESS,
            "models": {
                model: {
                    "recipe": MODELS[model],
                    "sha256": weights_sha256(models[model]),
                    **{part: " ".join(map(str, ids)) for part, ids in given._asdict().items()},
                }
                for model, given in inputs.items()
            },
            "cases": [entry(case, result["kept"]) for case, result in chosen],
        }
        (GOLDENS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def print_table(outcomes: Sequence[Outcome]) -> None:
    """Print one line per method."""
    print(f"{'method':<34}{'cases':>6}{'equal sets':>12}  max score difference (of the spread)")
    for key in dict.fromkeys((outcome.case.kind, outcome.case.method) for outcome in outcomes):
        group = [outcome for outcome in outcomes if (outcome.case.kind, outcome.case.method) == key]
        apart = [outcome.difference for outcome in group if outcome.difference is not None]
        name = f"decode {key[1]}, every step" if key[0] == "decode" else f"prefill {key[1]}"
        equal = sum(outcome.equal for outcome in group)
        print(f"{name:<34}{len(group):>6}{equal:>12}  {f'{max(apart):.1e}' if apart else '-'}")


def print_differences(differences: Sequence[Difference]) -> None:
    """Print each named difference in four lines."""
    for difference in differences:
        print(f"\n{difference.name}: {'reproduced' if difference.seen else 'NOT REPRODUCED'}")
        print(f"  kvpress: {difference.theirs}\n  ours:    {difference.ours}\n  {difference.why}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and return the exit status."""
    import transformers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write-goldens", action="store_true", help="store kvpress's sets in tests/data/parity")
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT, help="of kvpress; made if missing")
    options = parser.parse_args(arguments)
    python = environment(options.environment)
    transformers.utils.logging.disable_progress_bar()
    models = {name: build(recipe) for name, recipe in MODELS.items()}
    todo = cases()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        save_models(folder, models)
        named = known(folder)
        jobs = [job(case, folder) for case in todo] + [entry.job for entry in named]
        results = run_kvpress(python, folder, jobs)
    outcomes = [compare(models[case.model], case, result) for case, result in zip(todo, results, strict=False)]
    differences = [
        entry.read(models[MODEL], result) for entry, result in zip(named, results[len(todo) :], strict=True)
    ]
    print_table(outcomes)
    print_differences(differences)
    wrong = [outcome.case.name for outcome in outcomes if not outcome.equal]
    for name in wrong:
        print(f"\nDIFFERENT: {name}")
    if options.write_goldens and not wrong:
        write_goldens(list(zip(todo, results, strict=False)), models)
        print(f"\ngoldens written to {GOLDENS.relative_to(ROOT)}")
    return 1 if wrong or not all(difference.seen for difference in differences) else 0


if __name__ == "__main__":
    sys.exit(main())
