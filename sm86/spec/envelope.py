"""An envelope: one shape of server (context x sequences) with everything needed to start, check and measure it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True, slots=True)
class Model:
    """The checkpoint. Empty strings and zeros in the three facts mean: not a quantized checkpoint, do not check.

    `folder` is the checkpoint's name below the models folder, which is /models in a container.
    """

    repository: str
    folder: str
    architecture: str
    quant_method: str = ""
    bits: int = 0
    group_size: int = 0


@dataclass(frozen=True, slots=True)
class Serve:
    """What `vllm serve` is told. Lengths in tokens.

    num_gpu_blocks_override: size of the KV pool in blocks; None where the engine sizes its pool itself.
    """

    served_model_name: str
    context: int
    sequences: int
    tensor_parallel: int
    kv_cache_dtype: str
    block_size: int
    num_gpu_blocks_override: int | None
    hybrid_kv_cache: bool
    max_num_batched_tokens: int
    async_scheduling: bool
    prefix_caching: bool
    gpu_memory_utilization: float
    attention_backend: str
    moe_backend: str
    speculative_config: str
    extra_args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Graphs:
    """CUDA graphs: the mode and the batch sizes (tokens) to capture; mode NONE has no sizes."""

    mode: str
    capture_sizes: tuple[int, ...]

    @property
    def max_capture_size(self) -> int:
        return max(self.capture_sizes, default=0)


@dataclass(frozen=True, slots=True)
class Boot:
    """Expected time from start to ready, and the time after which a boot is called failed; seconds."""

    expected_s: int
    limit_s: int


@dataclass(frozen=True, slots=True)
class Bench:
    """How it is measured: tokens each sequence decodes, repeats, prompt tokens (0: what the context leaves)."""

    decode_tokens: int
    repeats: int
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Published:
    """A published result, tok/s of decode: together, and of each sequence in the published order."""

    source: str
    aggregate_tok_s: float
    per_sequence_tok_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PublishedRig:
    """The rig of the published results: how many GPUs, how the driver's name of each ends, its usual power limit, W."""

    gpus: int
    gpu: str
    power_limit_w: float


@dataclass(frozen=True, slots=True)
class Envelope:
    """One server. `name` is the service name, file name, label and record key.

    engine: "cuda" (a rig) or "cpu" (the embedded default; its numbers are never compared with published ones).
    status: "published", "development", "experimental", "embedded", or "proof" (of the code path, on another GPU).
    environment: pairs in the order they are rendered; no value is ever empty.
    rules: names of the verification rules that apply to a log of this envelope.
    """

    name: str
    title: str
    status: str
    engine: str
    caveat: str
    runbook_script: str
    model: Model
    serve: Serve
    graphs: Graphs
    environment: tuple[tuple[str, str], ...]
    boot: Boot
    bench: Bench
    published: Published | None
    rules: tuple[str, ...]
    published_rig: PublishedRig | None = None

    @property
    def uses_gpu(self) -> bool:
        return self.engine == "cuda"

    @property
    def writes_text(self) -> bool:
        """False for proofs: they serve random checkpoints, whose tokens are no language."""
        return self.status != "proof"

    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 over everything that shapes the server (not title, rules or results)."""
        shape = {
            "name": self.name,
            "engine": self.engine,
            "model": asdict(self.model),
            "serve": asdict(self.serve),
            "graphs": asdict(self.graphs),
            "environment": self.environment,
        }
        return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]

    def with_serve(self, **changes: object) -> Envelope:
        """A copy with other serving values; the caller validates them (`sm86.spec.validate.check`)."""
        return replace(self, serve=replace(self.serve, **changes))  # type: ignore[arg-type]
