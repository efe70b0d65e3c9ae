"""From a config to a loaded backbone, its tokenizer alone, or its identity alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inertia.backbones import checks, embedded, hub
from inertia.backbones.artifacts import artifact
from inertia.backbones.backbone import Backbone
from inertia.backbones.config import DTYPES, BackboneConfig
from inertia.eviction.layers import layers_of
from inertia.network import online

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load(config: BackboneConfig) -> Backbone:
    """Return the backbone that `config` describes, on its device.

    An embedded model not yet in the cache is fetched first. Everything that can be refused is refused before
    any weight is read.

    Raises:
        ValueError: the model is not the declared one, or eviction cannot be right on it.
        FetchError: an embedded model cannot be had, or has changed.
        ConnectionError: a Hub model cannot be had.
        OSError: `path` holds no model, or the disk is full.
        RuntimeError: the files lack weights, or hold some that the model has no place for.
    """
    config = _pinned(config)
    tokenizer = load_tokenizer(config)
    who = identity(config)
    model = _tiny(config, tokenizer) if config.source == "tiny" else _pretrained(config, tokenizer)
    ends = _eos_token_ids(model, tokenizer)
    model.generation_config = _neutral(tokenizer, ends)
    return Backbone(
        name=config.name,
        model=model.eval().requires_grad_(False),
        tokenizer=tokenizer,
        label=label(config),
        identity=who,
        context_window=config.context_window,
        eos_token_ids=ends,
        eligible_layers=layers_of(model.config).eligible,
        chat_template=config.chat_template,
    )


def load_tokenizer(config: BackboneConfig) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a backbone, without its weights (an embedded model is fetched whole, once).

    Raises:
        ValueError: chat template and `chat_template` disagree.
    """
    if config.source == "tiny":
        from inertia.backbones.tiny_tokenizer import tiny_tokenizer

        tokenizer: PreTrainedTokenizerBase = tiny_tokenizer()
    else:
        from transformers import AutoTokenizer

        # mistral_format: else a Mistral model's tokenizer depends on whether mistral-common is installed.
        tokenizer = AutoTokenizer.from_pretrained(**_origin(config), mistral_format=False)
    checks.check_template(config, tokenizer)
    return tokenizer


def identity(config: BackboneConfig) -> dict[str, Any]:
    """Return everything of a backbone that can change an output, JSON-able, without loading weights.

    No names, paths or devices. An embedded model needs neither network nor cache for it, a Hub model the Hub
    or its cache unless `revision` is a commit, a local folder is hashed.
    """
    return {
        **_weights_identity(config),
        "dtype": config.dtype,
        "prefill_attention": config.prefill_attention,
        "chat_template": config.chat_template,
        "context_window": config.context_window,
    }


def label(config: BackboneConfig) -> str:
    """Return what a table prints, e.g. "SmolLM2-135M-Instruct, Q4_1 dequantised, fp32"."""
    precision = DTYPES[config.dtype]
    if config.source == "embedded":
        found = artifact(config.name)
        return f"{found.title}, {found.quantisation} dequantised, {precision}"
    if config.source == "tiny":
        shape = f"{config.layers} layers, {config.query_heads}/{config.kv_heads} heads"
        return f"random {config.architecture}, {shape}, {precision}"
    return f"{str(config.repo).rpartition('/')[2]}{' (local files)' if config.path else ''}, {precision}"


def _pinned(config: BackboneConfig) -> BackboneConfig:
    """Return the config with its branch resolved, once: a push between two resolutions cannot mix commits."""
    if config.source != "hub" or config.path is not None:
        return config
    return replace(config, revision=hub.resolve_revision(str(config.repo), str(config.revision)))


def _weights_identity(config: BackboneConfig) -> dict[str, Any]:
    if config.source == "embedded":
        return embedded.weights_identity(config.name)
    if config.source == "tiny":
        from inertia.backbones.tiny import RECIPE

        built = ("architecture", "layers", "query_heads", "kv_heads", "head_dim", "seed", "sliding_window")
        return {"source": "tiny", "recipe": RECIPE, **{name: getattr(config, name) for name in built}}
    if config.path is not None:
        return hub.content_identity(Path(config.path).expanduser())
    repo = str(config.repo)
    return {"source": "hub", "repo": repo, "revision": hub.resolve_revision(repo, str(config.revision))}


def _origin(config: BackboneConfig) -> dict[str, Any]:
    """Return where `from_pretrained` finds a backbone: a folder, or a repository at one commit."""
    # trust_remote_code is written out: a model's own code must not run, whatever a later default says.
    found: dict[str, Any] = {"trust_remote_code": False, "revision": "main", "local_files_only": True}
    path = None if config.path is None else Path(config.path).expanduser()
    if path is not None and not path.exists():
        raise FileNotFoundError(f"backbone.path={config.path} does not exist; give an existing one, or null")
    if config.source == "embedded":
        return found | {"pretrained_model_name_or_path": str(embedded.prepare(config.name, path))}
    if path is not None:
        hub.content_identity(path)
        return found | {"pretrained_model_name_or_path": str(path)}
    repo, revision = str(config.repo), hub.resolve_revision(str(config.repo), str(config.revision))
    return found | {
        "revision": revision,
        "local_files_only": not online(),
        "pretrained_model_name_or_path": repo,
    }


def _tiny(config: BackboneConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    from inertia.backbones.tiny import build

    model = build(config)
    checks.check_supported(model.config)
    checks.check_vocabulary(model.config, tokenizer)
    return model.to(config.device)


def _pretrained(config: BackboneConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from inertia.backbones.attention_adapters import adapt

    origin = _origin(config)
    found = AutoConfig.from_pretrained(**origin)
    checks.check_supported(found)
    checks.check_shape(config, found)
    checks.check_vocabulary(found, tokenizer)
    model, report = AutoModelForCausalLM.from_pretrained(
        **origin,
        dtype=getattr(torch, config.dtype),
        attn_implementation=config.prefill_attention,
        use_safetensors=True,
        output_loading_info=True,
        device_map=None if config.device == "cpu" else config.device,
    )
    checks.check_weights(config, [*report["missing_keys"], *report["mismatched_keys"]], report["unexpected_keys"])
    return adapt(model)


def _eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    stated = [model.generation_config.eos_token_id, model.config.eos_token_id, tokenizer.eos_token_id]
    ids = {each for value in stated for each in (value if isinstance(value, list | tuple) else [value])}
    return tuple(sorted(each for each in ids if each is not None))


def _neutral(tokenizer: PreTrainedTokenizerBase, ends: tuple[int, ...]) -> Any:
    from transformers import GenerationConfig

    # Published settings (repetition penalties, temperatures) act even under do_sample=False, on generate()
    # alone.
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else ends[0]
    return GenerationConfig(
        do_sample=False, eos_token_id=list(ends), pad_token_id=pad, bos_token_id=tokenizer.bos_token_id
    )
