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
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import transformers

from bench.kvpress_client import ENVIRONMENT, SCRIPTS, VERSION, KVPress, environment
from inertia.backbones.tiny import tiny_model
from inertia.backbones.tiny_tokenizer import tiny_tokenizer
from parity_cases import (
    MODELS,
    PREFILL,
    PROMPT,
    Case,
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
from parity_known import KNOWN, MODEL

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROOT = SCRIPTS.parent
GOLDENS = ROOT / "tests" / "data" / "parity"
# Scores this close, relative to their spread, would let rounding decide; no case may depend on it.
ROUNDING = 2e-6


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
    model = tiny_model(**recipe)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter *= 1 + ROUNDING * (torch.rand(parameter.shape, generator=generator) - 0.5)
    return model


def compare(model: PreTrainedModel, case: Case, result: dict[str, Any]) -> Outcome:
    """Return whether we keep what kvpress keeps, and how far the scores are apart.

    Raises:
        RuntimeError: rounding decides what is kept, so the case proves nothing.
    """
    given = input_of(case)
    kept, difference = ours(model, case, given), None
    if case.kind == "decode":
        nearby = [ours(shaken(MODELS[case.model]), case, given)]
    elif case.method == "streaming_llm":
        # Theirs is 1 or 0, so only what stays can be compared.
        nearby = []
    else:
        compressor = compressor_of(case)
        scores, theirs = torch.stack(our_scores(model, given.ids, compressor)), torch.tensor(result["scores"])
        finite = scores.isfinite()
        spread = float(theirs[finite].max() - theirs[finite].min())
        difference = float((scores - theirs)[finite].abs().max()) / spread
        generator = torch.Generator().manual_seed(0)
        noises = [torch.rand(scores.shape, generator=generator) - 0.5 for _ in range(4)]
        shifted = [list(scores + noise * 2 * ROUNDING * spread) for noise in noises]
        nearby = [positions_of(compressor.keep(each, case.budget)) for each in shifted]
    if any(other != kept for other in nearby):
        raise RuntimeError(f"{case.name}: two scores are so close that rounding decides; take another seed.")
    return Outcome(case, kept == result["kept"], difference)


def job(case: Case) -> dict[str, Any]:
    """Return what kvpress is asked for a case, but for the model."""
    ids, tokens = input_of(case)
    if case.kind == "decode":
        return {"method": case.method, "ids": ids, "settings": {}, "target": case.budget, "tokens": tokens}
    shared = {"ids": ids, "ratio": 1 - case.budget / PROMPT}
    if case.kind == "prefill":
        theirs = {method: settings for method, _, settings in PREFILL}
        return {**shared, "method": case.method, "settings": theirs[case.method]}
    found = replays_of(compressor_of(case), ids)
    pairs = [[ids[replay.start : replay.end], list(replay.ids)] for replay in found]
    return {**shared, "settings": {"chunk_size": case.settings["chunk"]}, "replays": pairs}


def write_goldens(found: Sequence[tuple[Case, dict[str, Any]]], models: dict[str, PreTrainedModel]) -> None:
    """Write what kvpress kept, with all that is needed to do it again without kvpress; one file per phase."""
    GOLDENS.mkdir(parents=True, exist_ok=True)
    for name, kinds in (("prefill", ("prefill", "kvzip")), ("decode", ("decode",))):
        chosen = [(case, result) for case, result in found if case.kind in kinds]
        inputs = {case.model: input_of(case) for case, _ in chosen}
        content = {
            "kvpress": VERSION,
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
    for kind, method in dict.fromkeys((outcome.case.kind, outcome.case.method) for outcome in outcomes):
        group = [outcome for outcome in outcomes if outcome.case[:2] == (kind, method)]
        apart = [outcome.difference for outcome in group if outcome.difference is not None]
        name = f"decode {method}, every step" if kind == "decode" else f"prefill {method}"
        equal = sum(outcome.equal for outcome in group)
        print(f"{name:<34}{len(group):>6}{equal:>12}  {f'{max(apart):.1e}' if apart else '-'}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write-goldens", action="store_true", help="store kvpress's sets in tests/data/parity")
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT, help="of kvpress; made if missing")
    options = parser.parse_args(arguments)
    python = environment(options.environment)
    transformers.utils.logging.disable_progress_bar()
    models, todo = {name: tiny_model(**recipe) for name, recipe in MODELS.items()}, cases()
    with tempfile.TemporaryDirectory() as folder, KVPress(python, SCRIPTS / "parity_kvpress.py") as kvpress:
        for name, model in models.items():
            model.save_pretrained(Path(folder) / name)
            # KVzip loads it by itself.
            tiny_tokenizer().save_pretrained(Path(folder) / name)
        results = [kvpress.ask(case.kind, model=f"{folder}/{case.model}", **job(case)) for case in todo]
        shown = [kvpress.ask(known.command, model=f"{folder}/{MODEL}", **known.job()) for known in KNOWN]
    outcomes = [compare(models[case.model], case, result) for case, result in zip(todo, results, strict=True)]
    print_table(outcomes)
    unseen = 0
    for known, result in zip(KNOWN, shown, strict=True):
        seen, theirs, mine = known.show(models[MODEL], result)
        unseen += not seen
        print(f"\n{known.name}: {'reproduced' if seen else 'NOT REPRODUCED'}")
        print(f"  kvpress: {theirs}\n  ours:    {mine}\n  {known.why}")
    wrong = [outcome.case.name for outcome in outcomes if not outcome.equal]
    for name in wrong:
        print(f"\nDIFFERENT: {name}")
    if options.write_goldens and not wrong:
        write_goldens(list(zip(todo, results, strict=True)), models)
        print(f"\ngoldens written to {GOLDENS.relative_to(ROOT)}")
    return 1 if wrong or unseen else 0


if __name__ == "__main__":
    sys.exit(main())
