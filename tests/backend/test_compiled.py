"""Every kernel compiled for SM86 without a GPU: it fits, does not spill, and names nothing SM86 lacks."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sm86.backend.attention.build import dynamic_shared_bytes
from sm86.backend.nvcc import find_nvcc
from sm86.backend.testing.compiled import SHARED_LIMIT, _triton_cases, faults_of

PACKAGE = Path(__file__).resolve().parents[2] / "sm86/backend"


@pytest.fixture(scope="module")
def report() -> list[dict]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "sm86.backend.testing.compiled", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_kernel_fits(report: list[dict]) -> None:
    assert all(not row["faults"] for row in report), report
    assert all(row["spill_bytes"] == 0 and row["shared_bytes"] <= SHARED_LIMIT for row in report)


def launched_kernels() -> set[str]:
    """Names of the functions under `triton.jit` that Python launches; the others are parts of them."""
    found, launched = set(), ""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        launched += text
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and any("'jit'" in ast.dump(one) for one in node.decorator_list):
                found.add(node.name)
    return {name for name in found if re.search(rf"\b{name}\[", launched) and not name.startswith("_")}


def test_every_triton_kernel_is_compiled() -> None:
    assert {"compress_kernel", "count_bad_rows_kernel", "down_kernel"} <= launched_kernels()
    assert launched_kernels() == {function.__name__ for _, _, function, *_ in _triton_cases()}


def test_every_form_is_in_the_report(report: list[dict]) -> None:
    known = {(kernel, form) for kernel, form, *_ in _triton_cases()}
    assert known <= {(row["kernel"], row["form"]) for row in report} and len(known) >= 15


def test_the_table_in_the_docs_is_the_report(report: list[dict]) -> None:
    """Registers follow the compilers' versions; which kernels there are, their shared memory and warps do not."""
    text = (PACKAGE.parents[1] / "docs/backend.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    told = {(row[0], row[1]): row[3:] for row in rows if len(row) == 6 and row[2].isdigit()}
    here = {
        (row["kernel"], row["form"]): [str(row[key]) for key in ("spill_bytes", "shared_bytes", "warps")]
        for row in report
        if row["kernel"] != "host_allreduce"
    }
    assert here and {name: told.get(name) for name in here} == here


def test_what_changes_between_requests_compiles_nothing_anew() -> None:
    """Triton compiles again where an integer becomes 1 or a multiple of 16, or a pointer begins elsewhere: the warm-up
    has one form of each kernel, so what follows the batch must not count."""
    program = """
import json
from sm86.backend.testing.compiled import _triton_cases
told = {}
for kernel, form, function, *_ in _triton_cases():
    told[kernel + " " + form] = [
        sorted(function.arg_names[at] if isinstance(at, int) else at for at in names or ())
        for names in (function.do_not_specialize, function.do_not_specialize_on_alignment)
    ]
print(json.dumps(told))
"""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    varies = {
        "compress C4 main": ["block_table_stride"],
        "key_index 64 entries": ["first", "table_stride", "width"],
        "indexer_logits decode": ["block_table_stride", "out_stride", "topk_stride", "width"],
        "indexer_logits prefill": ["block_table_stride", "out_stride", "requests", "rows"],
        "mhc_gemm 24 x 4096": ["per_split", "tokens"],
        "nan_watch 4096": ["stride"],
    }
    assert {name: told[name][0] for name in varies} == varies
    assert told["indexer_logits prefill"][1] == ["block_table"], "a chunk's is a slice of the batch's"


@pytest.mark.skipif(find_nvcc() is None, reason="no nvcc on this machine: CUDA sources not compiled")
def test_the_cuda_kernel_is_in_the_report_and_lets_two_blocks_share_a_multiprocessor(report: list[dict]) -> None:
    rows = [row for row in report if row["kernel"] == "sparse_mla"]
    assert len(rows) == 6
    for row in rows:
        assert 2 * row["registers"] * 256 <= 65536
        assert 2 * (row["shared_bytes"] + 1024) <= 100 * 1024
    assert dynamic_shared_bytes(64) == 49920


@pytest.mark.parametrize(
    ("text", "spills", "shared", "fault"),
    [
        ("cvt.rn.satfinite.e4m3x2.f32 %r1", 0, 0, "e4m3"),
        ("cp.async.bulk.tensor.2d", 0, 0, "cp.async.bulk"),
        ("wgmma.mma_async", 0, 0, "wgmma"),
        ("add.s32", 4, 0, "spills"),
        ("add.s32", 0, 99 * 1024 + 1, "shared"),
    ],
)
def test_the_check_can_fail(text: str, spills: int, shared: int, fault: str) -> None:
    assert any(fault in found for found in faults_of(32, spills, shared, text))
    assert faults_of(32, 0, 1024, "// e4m3 in a comment\nadd.s32 %r1") == ()
