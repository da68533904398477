"""Refusals at start: configuration and checkpoint must be what the kernels were written and tested for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sm86.backend.quant.checkpoint import quantization_faults, ratios_of, tensor_faults
from sm86.backend.refusal import Refused
from sm86.backend.report import report_once
from sm86.files import open_regular
from sm86.weights import folder as folders
from sm86.weights import header

BACKENDS = (None, "FLASHINFER_MLA_SPARSE_DSV4")
KV_DTYPES = ("fp8_ds_mla", "fp8")
SHAPES = {
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "sliding_window": 128,
}
MAX_TENSOR_PARALLEL = 8
MAX_BATCHED_TOKENS = 65535
"""A launch has one block column per token, and CUDA's grid is no deeper."""


def shape_faults(config: Mapping[str, Any]) -> list[str]:
    """Model shapes that no kernel here takes."""
    faults = [
        f"{key} is {config.get(key)!r}, the kernels are for {value}"
        for key, value in SHAPES.items()
        if config.get(key) != value
    ]
    unknown = sorted({ratio for ratio in ratios_of(config) if ratio not in (0, 1, 4, 128)})
    if unknown:
        faults.append(f"compression ratio {unknown[0]} is unknown")
    return faults


def parallel_faults(heads: int, groups: int, tensor_parallel: int) -> list[str]:
    """Tensor parallel sizes that do not divide the model, or leave a rank fewer heads than a block computes."""
    faults = []
    if not 1 <= tensor_parallel <= MAX_TENSOR_PARALLEL:
        return [f"tensor parallel {tensor_parallel} is not between 1 and {MAX_TENSOR_PARALLEL}"]
    if heads % tensor_parallel:
        faults.append(f"{heads} attention heads do not divide by tensor parallel {tensor_parallel}")
    if groups % tensor_parallel:
        faults.append(f"{groups} output groups do not divide by tensor parallel {tensor_parallel}")
    if not faults and heads // tensor_parallel > 128:
        faults.append(f"{heads // tensor_parallel} heads per rank are more than 128")
    return faults


def config_mapping(config: Any) -> dict[str, Any]:
    """A model config object (or mapping) as a plain mapping."""
    return dict(config) if isinstance(config, Mapping) else config.to_dict()


def check_config(vllm_config: Any) -> None:
    """Raise Refused for an engine configuration that the backend does not serve."""
    chosen = vllm_config.attention_config.backend
    name = getattr(chosen, "name", chosen)
    if name not in BACKENDS:
        raise Refused(
            f"--attention-backend {name} has no kernels for this GPU", "use FLASHINFER_MLA_SPARSE_DSV4 or leave it out"
        )
    dtype = vllm_config.cache_config.cache_dtype
    if dtype not in KV_DTYPES:
        raise Refused(f"--kv-cache-dtype {dtype} is not served", "start with --kv-cache-dtype fp8_ds_mla")
    if vllm_config.attention_config.use_fp4_indexer_cache:
        raise Refused("the MXFP4 indexer cache needs Blackwell", "leave use_fp4_indexer_cache off")
    parallel = vllm_config.parallel_config
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        raise Refused("context parallel destroys the hybrid KV compression", "leave context parallel at 1")
    config = config_mapping(vllm_config.model_config.hf_config)
    faults = shape_faults(config)
    faults += parallel_faults(
        int(config["num_attention_heads"]), int(config["o_groups"]), int(parallel.tensor_parallel_size)
    )
    batched = int(vllm_config.scheduler_config.max_num_batched_tokens)
    if batched > MAX_BATCHED_TOKENS:
        faults.append(f"{batched} batched tokens are more than {MAX_BATCHED_TOKENS}")
    positions = int(config["max_position_embeddings"])
    if vllm_config.model_config.max_model_len > positions:
        faults.append(f"the context of {vllm_config.model_config.max_model_len} is beyond {positions} positions")
    if faults:
        raise Refused("; ".join(faults), "serve DeepSeek-V4-Flash, tensor parallel 1, 2, 4 or 8, within these limits")


def names_in(folder: Path) -> set[str] | None:
    """Tensor names of a checkpoint folder, from its index or else its files' headers; None where there is neither.

    Raises Refused for an index or a header that cannot be read.
    """
    if os.path.lexists(folder / folders.INDEX):
        data, problem = folders.read(folder / folders.INDEX, folders.MAX_INDEX)
        value, problem = folders.json_object(data, folders.INDEX) if data is not None else (None, problem)
        names = (value or {}).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise Refused(f"{folder}: {problem or f'{folders.INDEX} has no weight_map'}", "download the file again")
        return set(names)
    files = sorted(folder.glob(f"*{folders.SUFFIX}"))
    return {name for file in files for name in _names_of(file)} if files else None


def _names_of(path: Path) -> list[str]:
    """Tensor names in the header of one weight file. Raises Refused when it cannot be read."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            text = file.read(header.length_of(file.read(header.LENGTH_BYTES), size))
        return list(header.parse(text, size).tensors)
    except OSError as error:
        raise Refused(f"{path} {folders.why(path, error)}", "download the file again") from error
    except header.HeaderFault as fault:
        raise Refused(f"{path} {fault}", "download the file again") from fault


def check_model_folder(model: str, hf_config: Any) -> None:
    """Raise Refused for a checkpoint that is not W4A16 AutoRound in the public layout.

    A model given by repository name is not on disk yet; then only its config is judged, and the log says so.
    """
    config = config_mapping(hf_config)
    faults = quantization_faults(config.get("quantization_config"))
    folder = Path(model)
    names = names_in(folder) if folder.is_dir() else None
    report_once("checkpoint_tensors", "not checked, no local index" if names is None else len(names))
    if not faults and names is not None:
        faults = tensor_faults(config, names)
    if faults:
        raise Refused(
            f"{model}: " + "; ".join(faults),
            "use the W4A16 AutoRound checkpoint with gate, embeddings, compressors and wo_a unquantized",
        )
