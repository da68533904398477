"""Show which kernels the attention part of a decode step launches, and who launches them.

    SM86_FORCE=1 python -m sm86.backend.testing.step_trace CHECKPOINT [--nan] [--json FILE] [--budget-s S]

The engine runs in this process, eagerly: a captured step runs the same Python and records the same kernels. Every
layer's `attention_impl` (projections, cache writes, compressors, indexer, attention) and `_o_proj` is marked, and each
GPU kernel under a mark is listed with the torch operation that launched it, "-" where none did (Triton, CUDA).
Exit code 1 if a torch operation other than a GEMM, a view or an allocation launches a kernel there.

With --nan a weight is then made NaN, and the step must refuse to serve (exit code 1 if it serves).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from sm86.backend.testing.budget import add_option, budget_of, progress
from sm86.errors import CouldNotRun
from sm86.files import write_atomic

MARK = "sm86-attention"
GEMMS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "aten::matmul")
LAUNCHES = ("cuda_runtime", "cuda_driver")
WORK = ("kernel", "gpu_memcpy", "gpu_memset")

NAN_S = 30.0
"""The most that a refused step and its words take."""

Event = dict[str, Any]


def _ends(event: Event) -> float:
    return float(event["ts"]) + float(event.get("dur", 0))


def _above(spans: list[Event], moment: float, thread: object) -> Event | None:
    """The outermost of the spans (sorted by start) that contains the moment on the thread."""
    return next((s for s in spans if s["tid"] == thread and s["ts"] <= moment <= _ends(s)), None)


def kernels_under_marks(events: list[Event]) -> Counter[tuple[str, str]]:
    """(torch operation or "-", kernel) -> launches, of every kernel whose launch lies below a mark.

    events: `traceEvents` of a torch profiler trace. A kernel belongs to the call that launched it (they share a
    correlation id), and the call to what ran on its thread at that moment: the profiler's own link from kernels to
    operations leaves out launches through the driver, as Triton's are.
    """
    whole = [event for event in events if event.get("ph") == "X"]
    marks = [event for event in whole if event.get("name") == MARK and event.get("cat") == "user_annotation"]
    operations = sorted((e for e in whole if e.get("cat") == "cpu_op"), key=lambda e: (e["ts"], -e.get("dur", 0)))
    launches = {
        event["args"]["correlation"]: event
        for event in whole
        if event.get("cat") in LAUNCHES and "correlation" in event.get("args", {})
    }
    found: Counter[tuple[str, str]] = Counter()
    for mark in marks:
        below = [o for o in operations if o["tid"] == mark["tid"] and mark["ts"] <= o["ts"] and _ends(o) <= _ends(mark)]
        called = {
            key: call
            for key, call in launches.items()
            if call["tid"] == mark["tid"] and mark["ts"] <= call["ts"] <= _ends(mark)
        }
        for event in whole:
            call = called.get(event.get("args", {}).get("correlation")) if event.get("cat") in WORK else None
            if call is not None:
                operation = _above(below, call["ts"], call["tid"])
                found[(operation["name"] if operation else "-", event["name"])] += 1
    return found


def foreign(found: Counter[tuple[str, str]]) -> list[str]:
    """Kernels that torch's own operations (`aten::`) launch and that are no GEMM's."""
    return sorted(
        f"{operation}: {kernel}"
        for operation, kernel in found
        if operation.startswith("aten::") and operation not in GEMMS
    )


def _mark(layer: Any) -> None:
    import torch

    for name in ("attention_impl", "_o_proj"):
        original = getattr(layer, name)

        def marked(self: Any, *args: Any, original: Any = original, **kwargs: Any) -> Any:
            with torch.profiler.record_function(MARK):
                return original(self, *args, **kwargs)

        setattr(layer, name, marked)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m sm86.backend.testing.step_trace", description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--nan", action="store_true")
    parser.add_argument("--json", type=Path, help="also write what was found to this file")
    add_option(parser)
    given = parser.parse_args(arguments)
    try:
        budget = budget_of(given)
    except CouldNotRun as fault:
        print(f"{fault.what}\n{fault.mend}", file=sys.stderr)
        return fault.exit_code
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    # as the envelopes have it: FlashInfer's sampler would be compiled at the first step
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    import torch
    from torch.profiler import ProfilerActivity, profile
    from vllm import LLM, SamplingParams, TokensPrompt

    llm = LLM(
        model=given.checkpoint,
        max_model_len=4096,
        block_size=256,
        kv_cache_dtype="fp8_ds_mla",
        max_num_seqs=4,
        max_num_batched_tokens=512,
        num_gpu_blocks_override=512,
        gpu_memory_utilization=0.15,
        enforce_eager=True,
        async_scheduling=False,
    )
    progress("the engine is up; the prompt")
    models: list[Any] = []
    llm.apply_model(models.append)
    layers = [module for module in models[0].modules() if type(module).__name__ == "Sm86Attention"]
    _mark(type(layers[0]))
    engine = llm.llm_engine
    prompt = TokensPrompt(prompt_token_ids=[token % 256 for token in range(2600)])
    engine.add_request("trace", prompt, SamplingParams(temperature=0, max_tokens=64, ignore_eos=True))
    for _ in range(12):
        engine.step()
    progress("recording 4 decode steps")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        for _ in range(4):
            engine.step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(path))
        found = kernels_under_marks(json.loads(path.read_text())["traceEvents"])
    print(f"{len(layers)} layers, 4 decode steps after a prompt of 2600 tokens")
    print("| torch operation | kernel | launches |")
    print("|---|---|---|")
    for (operation, kernel), count in sorted(found.items()):
        print(f"| {operation} | {kernel[:90]} | {count} |")
    others = foreign(found)
    print("\n".join(f"torch operation in the attention part: {other}" for other in others))
    served = None
    if given.nan and not budget.allows(NAN_S):
        print(f"the step with NaN: {budget.words()}")
    elif given.nan:
        progress("a step with NaN")
        served = _serves_nan(llm, models[0])
        print("a step with NaN in its hidden states was served" if served else "a step with NaN was refused")
    if given.json:
        rows = [[operation, kernel, count] for (operation, kernel), count in sorted(found.items())]
        document = {"layers": len(layers), "launches": rows, "foreign": others, "nan_served": served}
        write_atomic(given.json, json.dumps({"schema": "sm86.step-trace", "version": 1, **document}, indent=1) + "\n")
    sys.stdout.flush()
    return 1 if others or not found or served or (given.nan and served is None) else 0


def _serves_nan(llm: Any, model: Any) -> bool:
    from vllm import SamplingParams, TokensPrompt

    weight = next(value for name, value in model.named_parameters() if name.endswith("wo_a.weight"))
    weight.data.fill_(float("nan"))
    try:
        llm.generate([TokensPrompt(prompt_token_ids=list(range(20)))], SamplingParams(temperature=0, max_tokens=4))
    except Exception as refusal:
        print(f"refused: {refusal}")
        return "NaN or infinity" not in str(refusal)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
