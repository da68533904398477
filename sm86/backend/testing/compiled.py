"""Compile every kernel for SM86 without a GPU and report what each needs: the proof that it fits the chip.

    python -m sm86.backend.testing.compiled            # a table; exit code 1 if a limit is broken

Triton kernels are compiled by Triton for (cuda, 86); CUDA sources by nvcc for sm_86 where nvcc is installed.
Checked: no e4m3 type, no bulk copies, barriers or warp-group products of later chips, no spills, and shared memory
of at most 99 KiB.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from sm86.backend.attention.build import cuda_resources
from sm86.backend.collectives.build import cuda_resources as collective_resources
from sm86.backend.nvcc import find_nvcc

SHARED_LIMIT = 99 * 1024
REGISTER_LIMIT = 255
FORBIDDEN = ("e4m3", "e5m2", "cp.async.bulk", "mbarrier", "wgmma", "tcgen05", "tensormap", "cvt.rn.satfinite")


@dataclass(frozen=True, slots=True)
class Resources:
    """One kernel on SM86: registers per thread, bytes of spills and of shared memory, warps, and its faults."""

    kernel: str
    form: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    warps: int
    faults: tuple[str, ...] = field(default=())


def faults_of(registers: int, spills: int, shared: int, text: str) -> tuple[str, ...]:
    """What breaks a limit; `text` is the kernel's PTX."""
    found = []
    if spills:
        found.append(f"{spills} bytes of spills")
    if shared > SHARED_LIMIT:
        found.append(f"{shared} bytes of shared memory, SM86 has {SHARED_LIMIT}")
    if registers > REGISTER_LIMIT:
        found.append(f"{registers} registers")
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("//", ".file", ".loc")))
    found += [f"uses {word}" for word in FORBIDDEN if word in code]
    return tuple(found)


Case = tuple[str, str, Any, dict[str, str], dict[str, Any], dict[str, int]]


def _triton_cases() -> Iterator[Case]:
    """(kernel, form, function, signature, constexprs, options): the shapes that serving launches."""
    from sm86.backend.diagnostics import nan_watch
    from sm86.backend.kernels import compress, indexer_logits, indexer_query, key_index, mhc_gemm, output_projection

    compress_args = {
        "state": "*fp32",
        "state_block_stride": "i64",
        "state_row_stride": "i32",
        "requests": "*i32",
        "positions": "*i64",
        "state_slots": "*i64",
        "block_table": "*i32",
        "block_table_stride": "i32",
        "entry_slots": "*i64",
        "weight": "*bf16",
        "epsilon": "fp32",
        "table": "*fp32",
        "table_stride": "i32",
        "cache": "*u8",
        "cache_block_stride": "i64",
    }
    for form, dims, width, ratio, rows, state_rows, entries in (
        ("C4 main", 512, 1024, 4, 8, 4, 64),
        ("C128 main", 512, 512, 128, 128, 8, 2),
        ("C4 indexer", 128, 256, 4, 8, 4, 64),
    ):
        constants: dict[str, Any] = {
            "DIMS": dims,
            "WIDTH": width,
            "RATIO": ratio,
            "ROWS": rows,
            "CHUNK": 8,
            "STATE_ROWS": state_rows,
            "ENTRIES": entries,
            "MAIN": dims == 512,
        }
        yield (
            "compress",
            form,
            compress.compress_kernel,
            compress_args,
            constants,
            {"num_warps": 8 if dims == 512 else 2},
        )
    query_args = {
        "query": "*bf16",
        "query_token_stride": "i32",
        "query_head_stride": "i32",
        "weights": "*bf16",
        "weights_stride": "i32",
        "positions": "*i64",
        "table": "*fp32",
        "table_stride": "i32",
        "out": "*bf16",
        "out_weights": "*fp32",
        "scale": "fp32",
    }
    for through in (False, True):
        constants = {"HEADS": 64, "BLOCK": 16, "THROUGH_E4M3": through}
        form = "through e4m3" if through else "bf16"
        yield "indexer_query", form, indexer_query.indexer_query_kernel, query_args, constants, {"num_warps": 4}
    decode_args = {
        "query": "*bf16",
        "weights": "*fp32",
        "cache": "*u8",
        "cache_block_stride": "i64",
        "lengths": "*i32",
        "block_table": "*i32",
        "block_table_stride": "i32",
        "out": "*fp32",
        "out_stride": "i32",
        "topk": "*i32",
        "topk_stride": "i32",
        "width": "i32",
    }
    constants = {"PER": 1, "HEADS": 64, "PADDED_HEADS": 64, "ENTRIES": 64, "TOPK": 512}
    options = {"num_warps": 4, "num_stages": 2}
    yield "indexer_logits", "decode", indexer_logits.indexer_decode_kernel, decode_args, constants, options
    prefill_args = {
        "query": "*bf16",
        "query_stride": "i32",
        "weights": "*fp32",
        "weights_stride": "i32",
        "cache": "*u8",
        "cache_block_stride": "i64",
        "request_of": "*i32",
        "starts": "*i32",
        "requests": "i32",
        "block_table": "*i32",
        "block_table_stride": "i32",
        "row_start": "*i32",
        "row_end": "*i32",
        "rows": "i32",
        "out": "*fp32",
        "out_stride": "i32",
    }
    constants = {"HEADS": 64, "PADDED_HEADS": 64, "ENTRIES": 64, "TILE": 64, "ROWS": 32}
    options = {"num_warps": 4, "num_stages": 1}
    yield "indexer_logits", "prefill", indexer_logits.indexer_prefill_kernel, prefill_args, constants, options
    rope_args = {
        "attention": "*bf16",
        "token_stride": "i32",
        "head_stride": "i32",
        "positions": "*i64",
        "table": "*fp32",
        "table_stride": "i32",
    }
    for heads in (8, 64):
        constants = {"HEADS": heads, "BLOCK": min(16, heads)}
        kernel = output_projection.inverse_rope_kernel
        yield "inverse_rope", f"{heads} heads", kernel, rope_args, constants, {"num_warps": 2}
    index_args = {
        "local": "*i32",
        "local_stride": "i32",
        "requests": "*i32",
        "valid": "*i1",
        "table": "*i32",
        "table_stride": "i32",
        "out": "*i32",
        "lengths": "*i32",
        "first": "i32",
        "width": "i32",
    }
    for entries in (64, 2):
        constants = {"ENTRIES": entries, "BLOCK": 512}
        yield "key_index", f"{entries} entries", key_index.key_index_kernel, index_args, constants, {"num_warps": 4}
    watch_args = {"hidden": "*bf16", "stride": "i32", "count": "*i32"}
    constants = {"SIZE": 4096, "BLOCK": 1024}
    yield "nan_watch", "4096", nan_watch.count_bad_rows_kernel, watch_args, constants, {"num_warps": 4}
    gemm_args = {
        "hidden": "*bf16",
        "hidden_stride": "i32",
        "matrix": "*fp32",
        "matrix_stride": "i32",
        "out": "*fp32",
        "squares": "*fp32",
        "tokens": "i32",
        "size": "i32",
        "per_split": "i32",
    }
    constants = {"MIXES": 24, "PADDED": 32, "BLOCK": 128}
    yield "mhc_gemm", "24 x 4096", mhc_gemm.mhc_gemm_kernel, gemm_args, constants, {"num_warps": 4}
    yield from _expert_cases()


def _expert_cases() -> Iterator[Case]:
    """The routed experts in a fixed order, at one rank's share of tensor parallel 8."""
    from sm86.backend.kernels import routed_experts

    packed = {"words": "*i32", "expert_stride": "i32", "scales": "*bf16", "scale_stride": "i32"}
    shape = {"CHOSEN": 6, "SIZE": 4096, "WIDTH": 256, "COLUMNS": routed_experts.COLUMNS, "GROUP": routed_experts.GROUP}
    first = {"hidden": "*bf16", "hidden_stride": "i32", "experts": "*i32"} | packed | {"out": "*bf16", "limit": "fp32"}
    kernel = routed_experts.gate_up_kernel
    yield "routed_experts", "gate and up", kernel, first, shape | {"LIMITED": True}, {"num_warps": 4}
    last = {"inner": "*bf16", "experts": "*i32", "weights": "*fp32"} | packed | {"out": "*bf16", "out_stride": "i32"}
    yield "routed_experts", "down", routed_experts.down_kernel, last, shape, {"num_warps": 4}


def _resource_usage(cubin: bytes) -> tuple[int, int]:
    """(registers, stack bytes) as the assembler recorded them in the binary."""
    import subprocess
    import tempfile
    from pathlib import Path

    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    used = re.search(r"REG:(\d+)\s+STACK:(\d+)", text)
    if used is None:
        raise RuntimeError(f"cuobjdump reports no resources: {text[:200]}")
    return int(used[1]), int(used[2])


def triton_resources() -> list[Resources]:
    """Every Triton kernel compiled for SM86. The interpreter must be off (TRITON_INTERPRET unset)."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if triton.knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set: nothing would be compiled")
    result = []
    for kernel, form, function, arguments, constants, options in _triton_cases():
        signature = dict(arguments) | {name: "constexpr" for name in constants}
        source = ASTSource(fn=function, signature=signature, constexprs=constants)
        built = triton.compile(source, target=GPUTarget("cuda", 86, 32), options=options)
        registers, stack = _resource_usage(built.asm["cubin"])
        shared = built.metadata.shared
        faults = faults_of(registers, stack, shared, built.asm["ptx"])
        result.append(Resources(kernel, form, registers, stack, shared, built.metadata.num_warps, faults))
    return result


def cuda_kernels() -> list[Resources]:
    """Every CUDA kernel compiled by nvcc for SM86."""
    return [
        Resources(kernel, form, registers, spills, shared, warps, faults_of(registers, spills, shared, ptx))
        for kernel, form, registers, spills, shared, warps, ptx in [*cuda_resources(), *collective_resources()]
    ]


def table(rows: list[Resources]) -> str:
    """Markdown, one line per kernel."""
    lines = ["| kernel | form | registers | spills | shared memory B | warps |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {r.kernel} | {r.form} | {r.registers} | {r.spill_bytes} | {r.shared_bytes} | {r.warps} |" for r in rows
    ]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    rows = triton_resources()
    if find_nvcc() is None:
        print("no nvcc: the CUDA sources were not compiled", file=sys.stderr)
    else:
        rows += cuda_kernels()
    print(json.dumps([asdict(row) for row in rows], indent=1) if "--json" in arguments else table(rows))
    broken = [f"{row.kernel} {row.form}: {fault}" for row in rows for fault in row.faults]
    print("\n".join(broken), file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
