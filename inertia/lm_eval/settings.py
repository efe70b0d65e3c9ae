"""What `--model_args` says: a backbone, a policy, and how answers are decoded.

Nothing here loads torch or lm-eval, so that a bad setting is refused at once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from inertia import backbones
from inertia.backbones import BackboneConfig
from inertia.eviction import checks
from inertia.eviction.policy import Policy
from inertia.methods import preset
from inertia.paths import config_dir

GENERATION = "generate_until"
ROLLING = "loglikelihood_rolling"


@dataclass(frozen=True)
class Settings:
    """A model for lm-eval, described.

    Attributes:
        backbone: the model.
        method: the policy's name.
        policy: what decides which tokens stay.
        seed: seed of scorers that draw.
        max_gen_toks: new tokens where a task does not say.
        context_field: field of a task's document that holds what a compressor may read before the question.
    """

    backbone: BackboneConfig
    method: str
    policy: Policy
    seed: int
    max_gen_toks: int
    context_field: str

    def __post_init__(self) -> None:
        checks.integer("seed", self.seed, low=0)
        checks.integer("max_gen_toks", self.max_gen_toks, low=1)


def settings(
    *,
    backbone: str = "smollm2-135m",
    backbone_path: str | None = None,
    dtype: str | None = None,
    device: str | None = None,
    method: str = "full_cache",
    seed: int = 0,
    max_gen_toks: int = 256,
    context_field: str = "context",
    **method_settings: Any,
) -> Settings:
    """Return the checked settings of `--model_args`.

    Args:
        backbone: a name in configs/backbone, or the path of such a YAML file.
        backbone_path: local files of the backbone, as its field `path`.
        dtype: replaces the backbone's.
        device: replaces the backbone's.
        method: a name that `python -m inertia.methods` lists.
        seed: see `Settings`.
        max_gen_toks: see `Settings`.
        context_field: see `Settings`.
        **method_settings: the method's own, such as compression_ratio or alpha.

    Raises:
        ValueError: an unknown name or setting, or a value that is not allowed.
    """
    return Settings(
        backbone_config(backbone, backbone_path, dtype, device),
        method,
        preset(method, **method_settings),
        seed,
        max_gen_toks,
        context_field,
    )


def backbone_config(
    backbone: str = "smollm2-135m", path: str | None = None, dtype: str | None = None, device: str | None = None
) -> BackboneConfig:
    """Return the backbone of a name or YAML file, some of its fields replaced.

    Raises:
        ValueError: there is no such backbone, or a field's value is not allowed.
    """
    folder = config_dir() / "backbone"
    file = Path(backbone).expanduser() if str(backbone).endswith((".yaml", ".yml")) else folder / f"{backbone}.yaml"
    if not file.is_file():
        names = ", ".join(sorted(each.stem for each in folder.glob("*.yaml")))
        raise ValueError(f"backbone={backbone!r} is unknown; give one of {names}, or the path of a YAML file.")
    config = backbones.read(file)
    given = {"path": path, "dtype": dtype, "device": device}
    stated = {each.name: getattr(config, each.name) for each in fields(config)}
    return backbones.from_mapping({**stated, **{name: value for name, value in given.items() if value is not None}})


def check_requests(policy: Policy, kind: str) -> None:
    """Refuse a kind of request that a policy cannot answer truly.

    A log-likelihood is read from forward passes over prompt and continuation. Where a policy does not act there, the
    number would be the full cache's under the policy's name.

    Args:
        policy: the policy.
        kind: an output type of lm-eval, such as "generate_until" or "multiple_choice".

    Raises:
        ValueError: saying why, and what to do instead.
    """
    if kind == GENERATION:
        return
    if policy.evicts:
        reason = (
            "evicts while decoding, and a log-likelihood has no decode steps: every budget would get the full cache's "
            "number. Take a generation task, or method=full_cache"
        )
    elif policy.prefill.compressor is None:
        return
    elif kind == ROLLING:
        reason = "compresses a context before a question, and a rolling log-likelihood has neither. Take another task"
    elif policy.prefill.question_visible:
        reason = (
            "compresses only after the whole prompt was read, so the first token of every continuation would get the "
            "full cache's number. Set question_visible=false, or take a generation task"
        )
    else:
        return
    raise ValueError(f"{kind} requests under this policy are refused: it {reason}.")
