"""The comm matrix of the roadmap: which settings of the all-reduce are tried, and which have an effect here. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sm86.launch import overrides, translate
from sm86.spec.argv import serve_argv
from sm86.spec.envelope import Envelope

Settings = tuple[tuple[str, str], ...]

SERVER = "sm86-64k"
"""The matrix's server: it boots with the smallest pool."""

GATE = "sm86-262k"
"""The matrix is run only after this envelope's graph boot is coherent (roadmap, Comm Matrix)."""

BASELINE = "as it is"

COMM_MATRIX: tuple[tuple[str, Settings], ...] = (
    ("Tree, Simple", (("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "Simple"))),
    ("Ring, Simple", (("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple"))),
    ("Tree, LL128", (("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "LL128"))),
    (
        "FlashInfer's all-reduce",
        (("VLLM_ALLREDUCE_USE_FLASHINFER", "1"), ("VLLM_FLASHINFER_ALLREDUCE_BACKEND", "trtllm")),
    ),
    ("all-reduce fused with RMS norm", (("FUSE_ALLREDUCE_RMS", "1"),)),
)
"""The roadmap's comm matrix: title and overrides of each run."""

NO_LEVER = (
    "the matrix does not move the needle: the next material lever is peer access (a kernel module, driver or NCCL "
    "change that makes CUDA P2P true); vLLM's own all-reduce stays off on more than two PCIe GPUs without it"
)


@dataclass(frozen=True, slots=True)
class Effect:
    """What the launcher makes of one override: `state` is "effective" or "inert"."""

    name: str
    value: str
    state: str
    why: str

    @property
    def is_effective(self) -> bool:
        return self.state == translate.EFFECTIVE


def effects(
    envelope: Envelope, settings: Sequence[tuple[str, str]], capability: tuple[int, int] | None = None
) -> tuple[Effect, ...]:
    """What each setting would do for this envelope, by the launcher's own rules, before anything is started.

    capability: of the GPUs; None: SM 8.6. Raises CouldNotRun for a setting that would end the server, or is none.
    """
    given = overrides.collect(dict(envelope.environment), tuple(settings))
    setting = translate.Setting(envelope.engine, capability, plugin=envelope.uses_gpu)
    states = translate.apply(serve_argv(envelope), dict(envelope.environment), given, setting)[2]
    return tuple(Effect(name, value, states[name].state, states[name].why) for name, value in settings)
