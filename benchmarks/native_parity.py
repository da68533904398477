"""The natively built libraries against the published ones: the same inputs through both, each in its own process.

    python benchmarks/native_parity.py --native DIR --wheel DIR [--budget-s S] [--json]

Run it in the wheel variant of the image (torch and vLLM's Python code are the same in both), on a GPU. Each folder
holds `_C_stable_libtorch.abi3.so` and `_moe_C_stable_libtorch.abi3.so`, as `vllm/` of either image does. On an SM 8.6
GPU give the native image's own libraries; on a newer one those built with PTX (docs/build.md says how), as code for
SM 8.6 alone does not run there. Exit code 0: every operation agrees; 1: one does not; 2: it could not run.

Marlin's linear and expert GEMMs are held against a float64 product as well: the native result may not be farther from
it than the wheel's by more than a twentieth. What is stored or chosen (KV records, top-k indices) must be the same.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sm86.backend.testing.budget import add_option, budget_of, progress  # noqa: E402
from sm86.errors import CouldNotRun  # noqa: E402

MODULES = ("_C_stable_libtorch", "_moe_C_stable_libtorch")
GROUP = 128
FARTHER = 1.05
CLOSE = 2e-3
"""Relative distance between two results in bfloat16 that only the order of additions may set apart."""


def judge(name: str, facts: dict[str, float]) -> tuple[bool, str]:
    """(agrees, words) for one operation.

    facts: "between", the relative distance of both results; for a GEMM also "native" and "wheel", the distance of
    each to the float64 product; for what is chosen or stored "differing", how many entries are not equal.
    """
    if facts.get("differing"):
        return False, f"{name}: {facts['differing']:.0f} entries differ"
    # asked this way round, what is not a number does not pass
    if not facts.get("between", 0.0) <= CLOSE:
        return False, f"{name}: the results are {facts['between']:.2e} apart, at most {CLOSE:.0e}"
    if "native" in facts and not facts["native"] <= FARTHER * facts["wheel"]:
        return False, f"{name}: native is {facts['native']:.2e} from float64, the wheel {facts['wheel']:.2e}"
    return True, f"{name}: {', '.join(f'{key} {value:.2e}' for key, value in facts.items())}"


class _Libraries:
    """Imports vLLM's two extension modules from a folder of choice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        parent, _, last = name.rpartition(".")
        if parent != "vllm" or last not in MODULES:
            return None
        file = str(self.folder / f"{last}.abi3.so")
        return importlib.util.spec_from_file_location(
            name, file, loader=importlib.machinery.ExtensionFileLoader(name, file)
        )


def run_one(folder: Path, out: Path) -> None:
    """Every operation with the libraries in `folder`; results and references to `out`, on the CPU."""
    sys.meta_path.insert(0, _Libraries(folder))  # type: ignore[arg-type]
    import torch

    torch.manual_seed(86)
    results: dict[str, Any] = {}
    for name, operation in (
        ("marlin linear", _linear),
        ("marlin experts", _experts),
        ("q-norm, RoPE, KV insert", _insert),
        ("top-k of the indexer", _top_k),
        ("top-k of the router", _router),
    ):
        progress(name)
        results[name] = {key: value.cpu() for key, value in operation(torch).items()}
    import vllm._C_stable_libtorch as loaded

    assert Path(loaded.__file__).parent == folder.resolve() or Path(loaded.__file__).parent == folder, loaded.__file__
    torch.save(results, out)


def _weights(torch: Any, k: int, n: int) -> tuple[Any, Any, Any]:
    """(packed int32 [k/8, n], scales [k/GROUP, n] bfloat16, the float64 matrix [k, n]) of random 4-bit weights."""
    codes = torch.randint(0, 16, (k, n), dtype=torch.int32)
    scales = (torch.rand(k // GROUP, n) * 0.02 + 0.01).to(torch.bfloat16)
    packed = torch.zeros(k // 8, n, dtype=torch.int32)
    for place in range(8):
        packed |= codes[place::8] << (4 * place)
    whole = (codes - 8).double() * scales.double().repeat_interleave(GROUP, 0)
    return packed.cuda(), scales.cuda(), whole


def _linear(torch: Any) -> dict[str, Any]:
    from vllm import _custom_ops as ops
    from vllm.model_executor.layers.quantization.utils import marlin_utils
    from vllm.scalar_type import scalar_types

    found = {}
    for rows in (1, 17, 256):
        k, n = 4096, 1536
        packed, scales, whole = _weights(torch, k, n)
        a = torch.randn(rows, k).to(torch.bfloat16)
        none = marlin_utils.marlin_make_empty_g_idx(packed.device)
        weight = ops.gptq_marlin_repack(packed, none, k, n, 4)
        permuted = marlin_utils.marlin_permute_scales(scales, k, n, GROUP)
        workspace = marlin_utils.marlin_make_workspace_new(torch.device("cuda", 0))
        found[f"result {rows}"] = ops.marlin_gemm(
            a.cuda(), None, weight, None, permuted, None, None, None, none, none, workspace,
            scalar_types.uint4b8, rows, n, k, use_fp32_reduce=True,
        )  # fmt: skip
        found[f"exact {rows}"] = a.double() @ whole
    return found


def _experts(torch: Any) -> dict[str, Any]:
    from vllm import _custom_ops as ops
    from vllm.model_executor.layers.fused_moe.experts.marlin_moe import fused_marlin_moe
    from vllm.model_executor.layers.quantization.utils import marlin_utils
    from vllm.scalar_type import scalar_types

    experts, hidden, inner, chosen = 16, 1024, 512, 6
    shapes = ((hidden, 2 * inner), (inner, hidden))
    made = [[_weights(torch, k, n) for _ in range(experts)] for k, n in shapes]
    none = torch.empty((experts, 0), dtype=torch.int32, device="cuda")
    weights, scales = [], []
    for (k, n), parts in zip(shapes, made, strict=True):
        packed = torch.stack([part[0] for part in parts])
        weights.append(ops.gptq_marlin_moe_repack(packed, none, k, n, 4))
        stacked = torch.stack([part[1] for part in parts])
        scales.append(marlin_utils.marlin_moe_permute_scales(stacked, k, n, GROUP))
    found = {}
    for rows in (1, 8, 64):
        a = torch.randn(rows, hidden).to(torch.bfloat16)
        share, ids = torch.rand(rows, experts).softmax(-1).topk(chosen)
        found[f"result {rows}"] = fused_marlin_moe(
            a.cuda(), *weights, None, None, *scales, share.cuda(), ids.to(torch.int32).cuda(),
            quant_type_id=scalar_types.uint4b8.id, global_num_experts=experts,
        )  # fmt: skip
        exact = torch.zeros(rows, hidden, dtype=torch.float64)
        for row in range(rows):
            for weight, expert in zip(share[row].tolist(), ids[row].tolist(), strict=True):
                gate, up = (a[row].double() @ made[0][expert][2]).chunk(2)
                exact[row] += weight * ((torch.nn.functional.silu(gate) * up) @ made[1][expert][2])
        found[f"exact {rows}"] = exact
    return found


def _insert(torch: Any) -> dict[str, Any]:
    import vllm._custom_ops  # noqa: F401  (registers the operations)

    found = {}
    heads, head, block, record = 64, 512, 64, 584
    for tokens in (1, 5, 130):
        q = torch.randn(tokens, heads, head).to(torch.bfloat16).cuda()
        kv = torch.randn(tokens, head).to(torch.bfloat16).cuda()
        cache = torch.zeros(8, block * record, dtype=torch.uint8, device="cuda")
        slots = torch.randperm(8 * block)[:tokens].cuda()
        positions = torch.randint(0, 4096, (tokens,)).cuda()
        angles = torch.arange(4096).double()[:, None] / 10000 ** (torch.arange(0, 64, 2).double() / 64)
        table = torch.cat([angles.cos(), angles.sin()], -1).float().cuda()
        padded = torch.ops._C.fused_deepseek_v4_qnorm_rope_kv_rope_quant_insert(
            q, kv, cache, slots, positions, table, heads, 1e-6, block
        )
        found |= {f"result {tokens}": padded, f"stored {tokens}": cache}
    return found


def _top_k(torch: Any) -> dict[str, Any]:
    from vllm.model_executor.layers.sparse_attn_indexer import RADIX_TOPK_WORKSPACE_SIZE

    found = {}
    for rows, length in ((1, 1024), (4, 20000), (2, 131072)):
        # distinct values: which of two equal ones is chosen is nobody's promise
        logits = torch.stack([torch.randperm(length) for _ in range(rows)]).float().cuda()
        lengths = torch.full((rows,), length, dtype=torch.int32, device="cuda")
        chosen = torch.full((rows, 512), -1, dtype=torch.int32, device="cuda")
        workspace = torch.zeros(RADIX_TOPK_WORKSPACE_SIZE, dtype=torch.uint8, device="cuda")
        torch.ops._C.persistent_topk(logits, lengths, chosen, workspace, 512, length)
        found[f"stored {length}"] = chosen.sort(-1).values
        found[f"wanted {length}"] = logits.topk(512, -1).indices.to(torch.int32).sort(-1).values
    return found


def _router(torch: Any) -> dict[str, Any]:
    from vllm import _custom_ops as ops

    rows, experts, chosen = 64, 256, 6
    logits, bias = torch.randn(rows, experts).cuda(), torch.randn(experts).cuda() * 0.1
    share = torch.empty(rows, chosen, device="cuda")
    ids, source = (torch.empty(rows, chosen, dtype=torch.int32, device="cuda") for _ in range(2))
    ops.topk_hash_softplus_sqrt(share, ids, source, logits, True, 1.5, bias)
    return {"result": share, "stored": ids}


def compare(torch: Any, native: dict[str, Any], wheel: dict[str, Any]) -> list[tuple[bool, str]]:
    """A judgement for each result of each operation."""
    judged = []
    for name, ours in native.items():
        for key, value in ours.items():
            kind, _, size = key.partition(" ")
            other = wheel[name][key]
            if kind in ("exact", "wanted"):
                if not torch.equal(value, other):
                    judged.append((False, f"{name} {size}: the two runs had different inputs"))
                continue
            facts = {"differing": float((value != other).sum())} if kind == "stored" else {}
            if kind == "result":
                facts["between"] = _distance(value, other)
                if f"exact {size}" in ours:
                    facts |= {"native": _distance(value, ours[f"exact {size}"])}
                    facts |= {"wheel": _distance(other, ours[f"exact {size}"])}
            elif f"wanted {size}" in ours:
                facts["differing"] += float((value != ours[f"wanted {size}"]).sum())
            judged.append(judge(f"{name} {size}".strip(), facts))
    return judged


def _distance(got: Any, want: Any) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python benchmarks/native_parity.py")
    parser.add_argument("--native", type=Path, required=True)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    add_option(parser)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for folder in (options.native, options.wheel):
        missing = [name for name in MODULES if not (folder / f"{name}.abi3.so").is_file()]
        if missing:
            print(f"{folder} has no {missing[0]}.abi3.so\nmend: name the folder vllm/ of an image", file=sys.stderr)
            return 2
    if options.one:
        run_one(options.native, options.one)
        return 0
    try:
        import torch
    except ImportError:
        print("torch is not installed\nmend: run this inside the GPU image", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("there is no GPU\nmend: run this where one is (docker run --gpus all)", file=sys.stderr)
        return 2
    try:
        budget = budget_of(options)
    except CouldNotRun as fault:
        print(f"{fault.what}\nmend: {fault.mend}", file=sys.stderr)
        return 2
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for name, folder in (("native", options.native), ("wheel", options.wheel)):
            out = Path(place) / f"{name}.pt"
            argv = [sys.executable, __file__, "--native", str(folder), "--wheel", str(folder), "--one", str(out)]
            progress(f"the {name} libraries")
            limit = None if budget.seconds is None else max(1.0, budget.left())
            try:
                code = subprocess.run(argv, check=False, timeout=limit).returncode
            except subprocess.TimeoutExpired:
                print(f"the {name} libraries: {budget.words()}\nmend: give it more", file=sys.stderr)
                return 2
            if code:
                print(f"the {name} libraries do not run here\nmend: see the words above", file=sys.stderr)
                return 2
            found[name] = torch.load(out)
    judged = compare(torch, found["native"], found["wheel"])
    if options.json:
        gpu, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
        rows = [{"agrees": good, "words": words} for good, words in judged]
        print(json.dumps({"schema": "sm86.native-parity", "version": 1, "gpu": gpu, "sm": capability, "rows": rows}))
    else:
        print("\n".join(f"{'pass' if good else 'fail'}  {words}" for good, words in judged))
    return 0 if judged and all(good for good, _ in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
