"""Judgement over gathered facts: each check returns, or raises CouldNotRun with what was found. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sm86.errors import CouldNotRun
from sm86.spec.envelope import Model
from sm86.weights import quantization as stored
from sm86.weights.folder import ModelFolder

DRIVER_FLOOR = 580
"""Major version of the first driver for CUDA 13, which the pinned torch is built for."""

MIN_SHM_BYTES = 1 << 30
"""Eight ranks without peer access exchange through /dev/shm: NCCL's buffers and vLLM's message queues together
take some hundred MiB; Docker's own default of 64 MiB ends in a bus error or a vanished container."""

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as NVML tells it. index: its place in PCI bus order; memory in bytes."""

    index: int
    uuid: str
    name: str
    capability: tuple[int, int]
    memory_total: int
    memory_free: int


def require_model(folder: ModelFolder, model: Model | None) -> None:
    """The checkpoint can be read whole and is the one the envelope means. model None: only that it can be read."""
    where = folder.path
    if folder.problem:
        raise CouldNotRun(
            f"the model folder {where} {folder.problem}",
            "give the folder that holds the checkpoint's config.json and weights (SM86_MODELS_DIR, --model-path)",
        )
    for problem in (folder.config_problem, folder.index_problem):
        if problem:
            raise CouldNotRun(f"{where}: {problem}", _mend_file(problem))
    for shard in folder.shards:
        if shard.problem:
            raise CouldNotRun(f"{where}: {shard.name} {shard.problem}", _mend_file(shard.problem))
    if model is not None:
        require_right_model(folder, model)


def _mend_file(problem: str) -> str:
    if "link" in problem:
        return "the link leads out of the mounted folder: copy the real files there (hf download --local-dir FOLDER)"
    if "permission" in problem.lower():
        return "let the server's user read it (chmod -R a+rX)"
    return "download the checkpoint again, whole"


def require_right_model(folder: ModelFolder, model: Model) -> None:
    config = folder.config or {}
    architectures = config.get("architectures")
    found = architectures[0] if isinstance(architectures, list) and architectures else None
    if model.architecture and found != model.architecture:
        holds = found or "a model of no named architecture"
        raise CouldNotRun(
            f"{folder.path} holds {holds}, the envelope serves {model.architecture}",
            f"use {model.repository}",
        )
    if not model.quant_method:
        return
    wanted = f"{model.quant_method} with {model.bits} bits and group size {model.group_size}"
    mend = f"use {model.repository}"
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        dtype = config.get("torch_dtype") or config.get("dtype") or "of an unnamed type"
        raise CouldNotRun(f"{folder.path} is not quantized ({dtype}), the envelope needs {wanted}", mend)
    facts = (quantization.get("quant_method"), quantization.get("bits"), quantization.get("group_size"))
    if facts != (model.quant_method, model.bits, model.group_size):
        raise CouldNotRun(
            f"{folder.path} is quantized as {stored.words(quantization)}, the envelope needs {wanted}", mend
        )


def require_draft_layers(folder: ModelFolder, speculative: Mapping[str, Any] | None) -> None:
    """MTP drafting needs the checkpoint's own draft layers."""
    if not speculative or "mtp" not in str(speculative.get("method")) or folder.config is None:
        return
    if not folder.config.get("num_nextn_predict_layers"):
        raise CouldNotRun(
            f"SPECULATIVE_CONFIG asks for {speculative['method']}, but {folder.path} has no MTP layers",
            'use SPECULATIVE_CONFIG=none, or another method such as "ngram"',
        )


def select(gpus: Sequence[Gpu], wanted: Sequence[str] | None, source: str) -> tuple[Gpu, ...]:
    """The GPUs a run means. wanted: UUIDs or the unambiguous start of one, in the order of the ranks (`invoke doctor`
    says which one a topology asks for); None for all, in PCI bus order."""
    if not gpus:
        raise CouldNotRun("the driver shows no GPU", "give the container GPUs (--gpus all, or the service as rendered)")
    if wanted is None:
        return tuple(gpus)
    chosen = []
    for uuid in wanted:
        hits = [gpu for gpu in gpus if gpu.uuid.lower().startswith(uuid.lower())]
        if not hits:
            there = ", ".join(gpu.uuid for gpu in gpus)
            raise CouldNotRun(f"{source} names {uuid}, which is not here", f"the GPUs here are {there}")
        if len(hits) > 1:
            raise CouldNotRun(
                f"{source} names {uuid}, which fits {len(hits)} GPUs ({', '.join(gpu.uuid for gpu in hits)})",
                "write more of the UUID",
            )
        if hits[0] in chosen:
            raise CouldNotRun(f"{source} names {hits[0].uuid} twice", "name each GPU once")
        chosen.append(hits[0])
    return tuple(chosen)


def visible(gpus: Sequence[Gpu], text: str) -> tuple[str, ...]:
    """UUIDs that a CUDA_VISIBLE_DEVICES of indices (PCI bus order) or UUIDs means."""
    names = [part.strip() for part in text.split(",")]
    uuids = []
    for name in names:
        if re.fullmatch(r"[0-9]{1,3}", name):
            if int(name) >= len(gpus):
                raise CouldNotRun(f"CUDA_VISIBLE_DEVICES names GPU {name}, but there are {len(gpus)}", "use SM86_GPUS")
            uuids.append(gpus[int(name)].uuid)
        elif name.startswith("GPU-"):
            uuids.append(name)
        else:
            raise CouldNotRun(
                f"CUDA_VISIBLE_DEVICES={text} holds {name!r}", "name GPUs by index or UUID, or use SM86_GPUS"
            )
    return tuple(uuids)


def require_count(chosen: Sequence[Gpu], ranks: int) -> None:
    if len(chosen) != ranks:
        raise CouldNotRun(
            f"{len(chosen)} GPUs are selected, but the server needs {ranks} (tensor parallel)",
            f"name {ranks} of them in SM86_GPUS" if len(chosen) > ranks else f"give it {ranks} GPUs",
        )


def require_capability(chosen: Sequence[Gpu], force: bool) -> None:
    for gpu in chosen:
        if gpu.capability[0] != 8 and not force:
            major, minor = gpu.capability
            raise CouldNotRun(
                f"GPU {gpu.index} ({gpu.name}) has compute capability {major}.{minor}; these envelopes are for 8.x",
                "choose other GPUs in SM86_GPUS, or set SM86_FORCE=1 to try it",
            )


def require_driver(version: str) -> None:
    major = version.split(".", 1)[0]
    if not major.isdigit() or int(major) < DRIVER_FLOOR:
        raise CouldNotRun(
            f"the NVIDIA driver is {version}; CUDA 13 needs {DRIVER_FLOOR} or newer",
            f"install a driver of at least {DRIVER_FLOOR}",
        )


def short_of_memory(chosen: Sequence[Gpu], utilization: float) -> tuple[Gpu, ...]:
    """GPUs whose free memory is less than vLLM will claim; vLLM itself refuses those after loading its libraries."""
    return tuple(gpu for gpu in chosen if gpu.memory_free < utilization * gpu.memory_total)


def memory_refusal(short: Sequence[Gpu], utilization: float) -> CouldNotRun:
    gpu = short[0]
    others = f", and {len(short) - 1} more GPUs are short" if len(short) > 1 else ""
    return CouldNotRun(
        f"GPU {gpu.index} ({gpu.name}) has {gpu.memory_free / GIB:.2f} of {gpu.memory_total / GIB:.2f} GiB free, "
        f"the server claims {utilization * gpu.memory_total / GIB:.2f} (utilization {utilization}){others}",
        "end what uses it (nvidia-smi lists the processes; a dead server's workers may linger)",
    )


def require_shm(total_bytes: int, ranks: int) -> None:
    if ranks > 1 and total_bytes < MIN_SHM_BYTES:
        raise CouldNotRun(
            f"/dev/shm holds {total_bytes / (1 << 20):.0f} MiB; {ranks} ranks need at least 1024",
            "start the container with ipc: host, or with shm_size: 8gb",
        )
