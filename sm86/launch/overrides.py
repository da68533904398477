"""What one run may choose otherwise, by name: the one list that the launcher, the renderer and the messages read. Pure.

An override comes from the environment or from `--set NAME=VALUE`, which wins. Here its words are checked; what it
means for the engine is decided in `translate`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sm86.errors import CouldNotRun
from sm86.json_text import parse as parse_json
from sm86.launch import nccl_lists

MAX_BATCHED_TOKENS = 131_072
MAX_BLOCKS = 1_000_000
MAX_DRAFT_TOKENS = 64
MAX_DEBUG_LINES = 1_000_000
MAX_CHANNELS = 64
MAX_PROFILED_STEPS = 1_000
"""A step of DeepSeek-V4 is about 1,400 GPU events and 1 MB of trace on each rank."""

_WHOLE = re.compile(r"[0-9]{1,9}")
_GPU = re.compile(r"GPU-[0-9a-fA-F-]{4,36}")


@dataclass(frozen=True, slots=True)
class Override:
    """One name a run may set. `form` says in words what a value looks like; `read` gives the value, or ValueError
    with the sentence that says what is wrong with the text."""

    name: str
    meaning: str
    form: str
    example: str
    read: Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Given:
    """An override as it was given. `source` is "environment" or "--set"."""

    override: Override
    text: str
    value: Any
    source: str

    @property
    def name(self) -> str:
        return self.override.name


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("it is neither 0 nor 1")
    return text == "1"


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        # int() would also take "+5", "5_000" and other scripts' digits, which vLLM's own checks then see as text
        if not _WHOLE.fullmatch(text):
            raise ValueError("it is not a whole number")
        if not low <= int(text) <= high:
            raise ValueError(f"it is not from {low} to {high}")
        return int(text)

    return read


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError("it is none of " + ", ".join(choices))
        return text

    return read


def _algorithms(text: str) -> tuple[nccl_lists.Choice, ...]:
    return nccl_lists.parse(text, nccl_lists.ALGORITHMS)


def _protocols(text: str) -> tuple[nccl_lists.Choice, ...]:
    return nccl_lists.parse(text, nccl_lists.PROTOCOLS)


def _speculative(text: str) -> dict[str, Any] | None:
    if text == "none":
        return None
    try:
        value = parse_json(text)
    except ValueError:
        raise ValueError("it is neither the word none nor JSON") from None
    if not isinstance(value, dict):
        raise ValueError("it is JSON, but no object")
    tokens = value.get("num_speculative_tokens")
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= MAX_DRAFT_TOKENS:
        # graph sizes and KV blocks follow from it, so it may not stay vLLM's guess
        raise ValueError(f"num_speculative_tokens must be a whole number from 1 to {MAX_DRAFT_TOKENS}")
    if not isinstance(value.get("method"), str):
        raise ValueError("method is missing")
    return value


def _gpus(text: str) -> tuple[str, ...] | None:
    if text == "all":
        return None
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not _GPU.fullmatch(part):
            raise ValueError(f"{part!r} is no GPU UUID")
    if len(set(parts)) != len(parts):
        raise ValueError("it names a GPU twice")
    return tuple(parts)


OVERRIDES: tuple[Override, ...] = (
    Override(
        "NCCL_ALGO",
        "algorithms NCCL may use for the all-reduce",
        "Ring or Tree, or NCCL's own list for each collective (allreduce:tree;allgather:ring)",
        "Ring",
        _algorithms,
    ),
    Override(
        "NCCL_PROTO",
        "protocols NCCL may use",
        "LL, LL128 or Simple, or NCCL's own list for each collective",
        "LL",
        _protocols,
    ),
    Override("NCCL_MAX_NCHANNELS", "most channels NCCL may use", f"1 to {MAX_CHANNELS}", "2", _whole(1, MAX_CHANNELS)),
    Override(
        "NCCL_NTHREADS",
        "threads of each of NCCL's blocks",
        "64, 128, 256 or 512",
        "128",
        _one_of("64", "128", "256", "512"),
    ),
    Override("NCCL_P2P_DISABLE", "keep NCCL from using peer access", "0 or 1", "1", _flag),
    Override(
        "NCCL_P2P_LEVEL",
        "how far apart two GPUs may be for NCCL to use peer access",
        "LOC, NVL, PIX, PXB, PHB or SYS",
        "SYS",
        _one_of("LOC", "NVL", "PIX", "PXB", "PHB", "SYS"),
    ),
    Override(
        "NCCL_DEBUG",
        "what NCCL logs: INFO names the algorithm, the channels and the links it uses",
        "VERSION, WARN, INFO or TRACE",
        "INFO",
        _one_of("VERSION", "WARN", "INFO", "TRACE"),
    ),
    Override(
        "SPECULATIVE_CONFIG",
        "drafting, for a probe",
        'none, or vLLM\'s JSON with "method" and "num_speculative_tokens"',
        "none",
        _speculative,
    ),
    Override("FUSE_ALLREDUCE_RMS", "fuse the all-reduce with the RMS norm behind it", "0 or 1", "1", _flag),
    Override("VLLM_ALLREDUCE_USE_FLASHINFER", "all-reduce through FlashInfer", "0 or 1", "1", _flag),
    Override(
        "VLLM_FLASHINFER_ALLREDUCE_BACKEND",
        "FlashInfer's all-reduce backend",
        "auto, trtllm or mnnvl",
        "trtllm",
        _one_of("auto", "trtllm", "mnnvl"),
    ),
    Override(
        "SM86_HOST_ALLREDUCE",
        "small all-reduces through host memory, for GPUs without peer access",
        "auto, 1 or 0",
        "auto",
        _one_of("auto", "1", "0"),
    ),
    Override(
        "SM86_INDEXER_QUERY",
        "how the indexer's query is rounded before keys are chosen",
        "bf16, or e4m3 as vLLM's own path does on other GPUs",
        "e4m3",
        _one_of("bf16", "e4m3"),
    ),
    Override("CUDAGRAPH_DISPATCH_DEBUG", "log how each batch was dispatched to a graph", "0 or 1", "1", _flag),
    Override(
        "SPEC_CUDAGRAPH_DEBUG",
        "log the first so many graph dispatches of a draft",
        f"0 to {MAX_DEBUG_LINES}",
        "4",
        _whole(0, MAX_DEBUG_LINES),
    ),
    Override(
        "SM86_PROFILE_STEPS",
        "be ready for invoke trace.capture, which then records so many steps",
        f"1 to {MAX_PROFILED_STEPS}",
        "50",
        _whole(1, MAX_PROFILED_STEPS),
    ),
    Override("SM86_GPUS", "the GPUs to serve on", "all, or GPU UUIDs joined by commas (nvidia-smi -L)", "all", _gpus),
    Override(
        "SM86_MAX_NUM_BATCHED_TOKENS",
        "tokens per engine step",
        f"1 to {MAX_BATCHED_TOKENS}",
        "512",
        _whole(1, MAX_BATCHED_TOKENS),
    ),
    Override("SM86_ASYNC_SCHEDULING", "asynchronous scheduling", "0 or 1", "0", _flag),
    Override("SM86_NUM_GPU_BLOCKS", "KV blocks of the pool", f"1 to {MAX_BLOCKS}", "1280", _whole(1, MAX_BLOCKS)),
)

BY_NAME: Mapping[str, Override] = {override.name: override for override in OVERRIDES}

SETTINGS: Mapping[str, str] = {
    "SM86_FORCE": "1 serves on GPUs of another compute capability than 8.x",
    "SM86_API_KEY_FILE": "file whose first line is the API key",
    "SM86_CACHE_DIR": "folder for compiled kernels",
    "SM86_LOCK_DIR": "folder of the locks that keep two servers off the same GPUs",
    "SM86_BUILD_FILE": "the image's build record",
    "SM86_IMAGE_ID": "the image's id, where whoever starts the container knows it",
}
"""The launcher's other settings. They change where it looks, not what is served."""

IMAGE_ID = "SM86_IMAGE_ID"

PASS_THROUGH_NAMES: tuple[str, ...] = (*BY_NAME, "SM86_FORCE")
"""Names that a rendered service passes on from the host when they are set there. IMAGE_ID is passed on as well, and is
no setting: a command that starts the container sets it, and in `.env` it would go on naming an image of the past."""

_HOST_NAMES = (
    "SM86_IMAGE",
    "SM86_CPU_IMAGE",
    "SM86_BASE_IMAGE",
    "SM86_PULL",
    "SM86_MODELS_DIR",
    "SM86_MODEL",
    "SM86_BIND",
    "SM86_PORT",
    "SM86_TRACEBACK",
    "SM86_RESULTS",
    "SM86_RUN_ID",
    "SM86_LOCK_FILES",
    "SM86_BUILD_NETWORK",
    "SM86_CA_BUNDLE",
    "SM86_DEBIAN_MIRROR",
    "SM86_DOCKER",
    "SM86_TORCH_CPU_INDEX",
    "SM86_WHEELS",
)
"""Read by the Compose files and the commands on the host, or set by the launcher itself; a server started as a
process inherits the former."""

_BACKEND_NAMES = (
    "SM86_COLLECTIVES_LIBRARY",
    "SM86_DETERMINISTIC_MOE",
    "SM86_NATIVE_LIBRARY",
    "SM86_TEST_DEVICE",
    "SM86_TEST_SHARE_GPU",
    "SM86_TEST_WITHOUT_HOOKS",
)
"""Read by the vLLM plugin in the engine's processes (docs/backend.md); SM86_TEST_DEVICE by the backend's tests, in
whose shell a server may be started too."""

KNOWN_SM86_NAMES: frozenset[str] = frozenset((*BY_NAME, *SETTINGS, *_HOST_NAMES, *_BACKEND_NAMES))


def read(name: str, text: str, source: str) -> Given:
    """One override. Raises CouldNotRun: unknown name (with the nearest), or a text that is not of its form."""
    override = BY_NAME.get(name)
    if override is None:
        raise CouldNotRun(f"there is no override {name!r}", nearest(name, BY_NAME, "the overrides are"))
    if not text.strip():
        raise CouldNotRun(f"{name} is blank ({source})", f"give it a value ({override.form}), or leave it out")
    try:
        return Given(override, text, override.read(text), source)
    except ValueError as error:
        raise CouldNotRun(f"{name}={text} ({source}): {error}", f"use {override.form}") from None


def collect(environment: Mapping[str, str], settings: Sequence[tuple[str, str]]) -> dict[str, Given]:
    """Every override of this run by name, in the list's order; `settings` (from --set) win over the environment.

    An override that the environment defines but leaves empty counts as not given: a Compose file or an `.env`
    cannot leave a name out under a condition. One that holds only blanks is a mistake and refused.
    """
    given = {name: read(name, text, "--set") for name, text in settings}
    for name in BY_NAME:
        if name not in given and environment.get(name):
            given[name] = read(name, environment[name], "environment")
    return {name: given[name] for name in BY_NAME if name in given}


def parse_setting(text: str) -> tuple[str, str]:
    """NAME=VALUE of one --set."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CouldNotRun(f"--set {text!r} is not NAME=VALUE", "write for example --set NCCL_ALGO=Ring")
    return name, value


def nearest(name: str, known: Mapping[str, Any] | frozenset[str], otherwise: str) -> str:
    """ "did you mean X?", or the known names where none is near."""
    prefix, _, tail = name.upper().partition("_")
    # a shared VLLM_ or SM86_ would make any two names look alike: what follows it must be near
    tails = {known_name.removeprefix(f"{prefix}_"): known_name for known_name in sorted(known)}
    near = difflib.get_close_matches(tail or prefix, list(tails), 1, cutoff=0.7)
    return f"did you mean {tails[near[0]]}?" if near else f"{otherwise} {', '.join(sorted(known))}"
