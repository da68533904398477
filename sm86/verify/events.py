"""What a server's log says, as typed events. Pure data; `sm86.verify.wordings` makes them, the rules judge them.

Every event has the physical line number (1-based) where its message began, the message without prefixes and header,
and the process that wrote it where a prefix names one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sm86.manifest import Value
from sm86.verify.lines import Source


@dataclass(frozen=True, slots=True)
class Event:
    """line: physical line, from 1; text: the message (bounded); source: who wrote it, None where no prefix says."""

    line: int
    text: str
    source: Source | None


# --- the launcher and the plugin -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ManifestMark(Event):
    """Begin (with its format version) or end of the launcher's manifest."""

    begin: bool
    version: int


@dataclass(frozen=True, slots=True)
class ManifestEntry(Event):
    """One `[sm86] key=value` line; section "manifest" is the launcher's, "backend" and "collectives" the plugin's."""

    section: str
    key: str
    value: Value


@dataclass(frozen=True, slots=True)
class LauncherRefused(Event):
    """The launcher says why it does not start the server."""

    what: str


@dataclass(frozen=True, slots=True)
class DispatchLine(Event):
    """One graph dispatch as the plugin reports it on demand: hit, miss, skip or eager.

    uniform: whether the batch was a uniform decode, None where the line does not say; said: all it says, by name
    (cg_mode, num_tokens, capture_sizes, reason and so on).
    """

    outcome: str
    uniform: bool | None
    said: Mapping[str, str]


# --- configuration as the engine states it ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VersionBanner(Event):
    """The version in the API server's start-up logo."""

    version: str


@dataclass(frozen=True, slots=True)
class NonDefaultArgs(Event):
    """The API server's arguments that differ from its defaults; values are Python text (`'fp8'`, `8`, `None`)."""

    args: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EngineInitialised(Event):
    """`Initializing a V1 LLM engine`: version and config, values as text; an unfinished last value is left out.

    `compilation` holds the entries of the compilation config in the same way.
    """

    version: str
    config: Mapping[str, str]
    compilation: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class KvCacheDtype(Event):
    """`Using X data type to store kv cache`, or the fp8_ds_mla format that plain fp8 is turned into."""

    dtype: str


@dataclass(frozen=True, slots=True)
class ContextChosen(Event):
    """`Using max model len N` (tokens)."""

    tokens: int


@dataclass(frozen=True, slots=True)
class ContextReduced(Event):
    """The engine fitted the context to its memory; both in tokens, equal where the whole context fits."""

    asked: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ContextRefused(Event):
    """The engine refuses a context that is longer than the model's (tokens)."""

    asked: int


@dataclass(frozen=True, slots=True)
class DecodeQueryLength(Event):
    """Tokens that one decode step asks of each sequence, as the attention indexer was built for: 1 without drafts."""

    tokens: int


@dataclass(frozen=True, slots=True)
class AttentionBackend(Event):
    """Name of the attention backend that was chosen."""

    name: str


@dataclass(frozen=True, slots=True)
class MoeBackend(Event):
    """Name of the mixture-of-experts backend that was chosen."""

    name: str


@dataclass(frozen=True, slots=True)
class WorkerStarted(Event):
    """A worker joined its process group: ranks in the world and its own rank."""

    world_size: int
    rank: int


@dataclass(frozen=True, slots=True)
class NcclVersion(Event):
    """The NCCL version that vLLM loaded."""

    version: str


@dataclass(frozen=True, slots=True)
class UnknownEnvironment(Event):
    """A `VLLM_` variable that this version does not know and ignores."""

    name: str


@dataclass(frozen=True, slots=True)
class HybridKvDisabled(Event):
    """The hybrid KV cache manager is off, or refused; `reason` is the message."""

    reason: str


@dataclass(frozen=True, slots=True)
class GraphModeChanged(Event):
    """vLLM replaced the requested graph mode by another ("NONE": no graphs)."""

    mode: str


@dataclass(frozen=True, slots=True)
class GraphSizesChanged(Event):
    """vLLM replaced or cut the requested capture sizes."""


# --- loading ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadStarted(Event):
    """`Starting to load model`."""


@dataclass(frozen=True, slots=True)
class WeightsProgress(Event):
    """The weight loader's bar: shards."""

    done: int
    total: int
    percent: int


@dataclass(frozen=True, slots=True)
class WeightsLoaded(Event):
    """`Loading weights took` seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ModelLoaded(Event):
    """`Model loading took`: GiB per GPU and seconds."""

    gib: float
    seconds: float


# --- memory ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AvailableKv(Event):
    """`Available KV cache memory`, GiB of one worker, before a block override."""

    gib: float


@dataclass(frozen=True, slots=True)
class KvOverride(Event):
    """A block override as applied: the number of blocks it replaced, and the one in force. Once per worker."""

    applied_from: int
    to: int


@dataclass(frozen=True, slots=True)
class KvCacheSize(Event):
    """`KV cache size` in tokens: derived by vLLM from concurrency times context, not a count of blocks."""

    tokens: int


@dataclass(frozen=True, slots=True)
class MaxConcurrency(Event):
    """`Maximum concurrency for N tokens per request: Xx`."""

    tokens: int
    times: float


@dataclass(frozen=True, slots=True)
class KvTooSmall(Event):
    """One sequence of the asked context does not fit the KV cache: tokens, GiB; None where the text was cut."""

    tokens: int
    needed_gib: float | None
    available_gib: float | None
    possible_tokens: int | None


@dataclass(frozen=True, slots=True)
class MemoryProfilerNotice(Event):
    """Whether vLLM subtracts its estimate of graph memory from the KV cache."""

    enabled: bool


@dataclass(frozen=True, slots=True)
class OutOfMemory(Event):
    """Memory ran out. kind: "gpu" (an allocation on the GPU), "kv" (KV cache too small or none), "busy" (less free
    than asked for at start), "host" (the machine's or the container's RAM), "shm" (shared memory), "killed"
    (ended from outside with signal 9, which is what an out-of-memory killer does)."""

    kind: str


# --- graphs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GraphProfile(Event):
    """`Profiling CUDA graph memory`: number of graphs by mode name."""

    graphs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class GraphEstimate(Event):
    """`Estimated CUDA graph memory`, GiB."""

    gib: float


@dataclass(frozen=True, slots=True)
class GraphProgress(Event):
    """The capture bar of one family: "decode, FULL", "mixed prefill-decode, PIECEWISE" (V1 runner), "FULL" (V2 runner),
    "prefill, FULL" (drafts); "" where the bar names none."""

    family: str
    done: int
    total: int
    percent: int


@dataclass(frozen=True, slots=True)
class GraphCaptureFinished(Event):
    """`Graph capturing finished`: seconds and GiB."""

    seconds: float
    gib: float


@dataclass(frozen=True, slots=True)
class GraphPool(Event):
    """`CUDA graph pool memory`: actual and estimated GiB of one worker."""

    actual_gib: float
    estimated_gib: float


# --- life and death --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EngineInitTook(Event):
    """`init engine (...) took` seconds: profiling, KV cache and graphs are done."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ServerStarting(Event):
    """`Starting vLLM server on` an address."""

    address: str


@dataclass(frozen=True, slots=True)
class StartupComplete(Event):
    """`Application startup complete`: the server answers."""


@dataclass(frozen=True, slots=True)
class ShutdownStarted(Event):
    """An end began. by_signal: somebody asked for it; else the server closes down, which it also does after a death."""

    by_signal: bool


@dataclass(frozen=True, slots=True)
class Traceback(Event):
    """A Python traceback begins. Alone it proves nothing: a refused request prints one too."""


@dataclass(frozen=True, slots=True)
class ErrorRaised(Event):
    """The last line of a traceback: exception name and message."""

    exception: str
    message: str


@dataclass(frozen=True, slots=True)
class EngineDead(Event):
    """The engine, a worker or the server died or could not start. cause: "start", "worker", "engine" or "server"."""

    cause: str


@dataclass(frozen=True, slots=True)
class CollectiveStall(Event):
    """Ranks wait for each other without progress for a minute."""


# --- traffic: only with LogReader(traffic=True) ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HealthLine(Event):
    """A health request and its HTTP status."""

    status: int


@dataclass(frozen=True, slots=True)
class EngineStats(Event):
    """The engine's regular line: tok/s of prompts and generation, requests running and waiting, KV use in percent."""

    prompt_tok_s: float
    generation_tok_s: float
    running: int
    waiting: int
    kv_percent: float
