"""The variables a user may set for `docker compose`, in the shell or in `.env`: names, defaults and meanings, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sm86.image.names import OFFICIAL_BASE, image_name
from sm86.launch import overrides
from sm86.spec.envelope import Envelope

IMAGE = {"gpu": "SM86_IMAGE", "cpu": "SM86_CPU_IMAGE"}
BASE_IMAGE = "SM86_BASE_IMAGE"
PULL = "SM86_PULL"
MODELS_DIR = "SM86_MODELS_DIR"
MODEL = "SM86_MODEL"
API_KEY_FILE = "SM86_API_KEY_FILE"
BIND = "SM86_BIND"
PORT = "SM86_PORT"
GPUS = "SM86_GPUS"

MODELS_DIR_DEFAULT = "./models"
NO_KEY_FILE = "/dev/null"
BIND_DEFAULT = "127.0.0.1"
PORT_DEFAULT = "8000"
PULL_DEFAULT = "never"
PULL_POLICIES = ("never", "missing", "always")
"""Compose's words. By default a missing image is built here: the default names are in no registry, and asking one
that does not answer takes minutes."""

GROUPS = ("Server", "Model", "GPUs", "One run", "Images")
"""Headings of `.env.example`, in order."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable. `default` is the value that holds when it is unset, None where unset means absent.

    `example` is what to write where there is no default; `unset` says then what holds. Neither is ever empty.
    """

    name: str
    group: str
    meaning: str
    default: str | None = None
    example: str = ""
    unset: str = ""

    @property
    def shown(self) -> str:
        return self.default if self.default is not None else self.example


_UNSET = {
    "SM86_GPUS": "all",
    "SM86_FORCE": "they are refused",
    "SM86_MAX_NUM_BATCHED_TOKENS": "the envelope's own",
    "SM86_ASYNC_SCHEDULING": "the envelope's own",
    "SM86_NUM_GPU_BLOCKS": "the envelope's own count",
    "NCCL_ALGO": "NCCL chooses",
    "NCCL_PROTO": "NCCL chooses",
    "NCCL_MAX_NCHANNELS": "NCCL chooses",
    "NCCL_NTHREADS": "NCCL chooses",
    "NCCL_P2P_DISABLE": "NCCL uses it where it is",
    "NCCL_P2P_LEVEL": "NCCL chooses",
    "NCCL_DEBUG": "NCCL is silent",
    "SPECULATIVE_CONFIG": "none",
    "FUSE_ALLREDUCE_RMS": "the envelope's own",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "vLLM's own default",
    "VLLM_FLASHINFER_ALLREDUCE_BACKEND": "vLLM's own default",
    "SM86_HOST_ALLREDUCE": "auto",
    "SM86_INDEXER_QUERY": "bf16",
    "CUDAGRAPH_DISPATCH_DEBUG": "off",
    "SPEC_CUDAGRAPH_DEBUG": "off",
    "SM86_PROFILE_STEPS": "no profiler",
}


def _per_run(name: str) -> Variable:
    group = "GPUs" if name in (GPUS, "SM86_FORCE") else "One run"
    unset = _UNSET.get(name, "the envelope's own")
    override = overrides.BY_NAME.get(name)
    if override is None:
        return Variable(name, group, overrides.SETTINGS[name], example="1", unset=unset)
    return Variable(name, group, f"{override.meaning}: {override.form}", example=override.example, unset=unset)


PER_RUN = tuple(map(_per_run, overrides.PASS_THROUGH_NAMES))
"""What one run may choose otherwise; the launcher reads them by name. Unset means absent, never empty."""


def settings(envelopes: Sequence[Envelope]) -> tuple[Variable, ...]:
    """Every variable that a rendered file reads, in the order of `.env.example`."""
    folders = sorted({envelope.model.folder for envelope in envelopes if envelope.uses_gpu})
    model = "the checkpoint's folder below it"
    own = (
        Variable(PORT, "Server", "host port of the API", default=PORT_DEFAULT),
        Variable(
            BIND,
            "Server",
            "host address of the API; 0.0.0.0 opens it to the network: set a key then",
            default=BIND_DEFAULT,
        ),
        Variable(API_KEY_FILE, "Server", overrides.SETTINGS[API_KEY_FILE], default=NO_KEY_FILE, unset="no key"),
        Variable(
            MODELS_DIR, "Model", "folder that holds the checkpoints, mounted read-only", default=MODELS_DIR_DEFAULT
        ),
        Variable(MODEL, "Model", model, default=folders[0])
        if len(folders) == 1
        else Variable(MODEL, "Model", model, example="MyCheckpoint", unset="each envelope's own"),
        Variable(IMAGE["gpu"], "Images", "image of the rig's envelopes", default=image_name("gpu")),
        Variable(IMAGE["cpu"], "Images", "image of cpu-smoke", default=image_name("cpu")),
        Variable(BASE_IMAGE, "Images", "image that both are built from", default=OFFICIAL_BASE),
        Variable(
            PULL,
            "Images",
            "never: a missing image is built here; missing or always: it comes from the registry that its name says",
            default=PULL_DEFAULT,
        ),
    )
    both = own + PER_RUN
    return tuple(variable for group in GROUPS for variable in both if variable.group == group)


def names(envelopes: Sequence[Envelope]) -> frozenset[str]:
    """The names of `settings`."""
    return frozenset(variable.name for variable in settings(envelopes))
