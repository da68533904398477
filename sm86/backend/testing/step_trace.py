"""Show which kernels the attention part of a decode step launches, and who launches them.

    SM86_FORCE=1 python -m sm86.backend.testing.step_trace CHECKPOINT [--nan]

The engine runs in this process, eagerly: a captured step runs the same Python and records the same kernels. Every
layer's `attention_impl` (projections, cache writes, compressors, indexer, attention) and `_o_proj` is marked, and each
GPU kernel under a mark is listed with the torch operation it belongs to, "-" where none launched it.
Exit code 1 if a torch operation other than a GEMM, a view or an allocation launches a kernel there.

With --nan a weight is then made NaN, and the step must refuse to serve (exit code 1 if it serves).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from typing import Any

MARK = "sm86-attention"
GEMMS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "aten::matmul")


def owner_of(event: Any) -> tuple[bool, str]:
    """(whether a mark is above the event, the outermost torch operation between the event and the mark or "-")."""
    operation = "-"
    while event is not None:
        if event.name == MARK:
            return True, operation
        if event.name.startswith("aten::"):
            operation = event.name
        event = event.cpu_parent
    return False, operation


def kernels_under_marks(events: Any) -> Counter[tuple[str, str]]:
    """(torch operation or "-", kernel) -> launches, of every kernel launched below a mark."""
    found: Counter[tuple[str, str]] = Counter()
    for event in events:
        if event.kernels:
            inside, operation = owner_of(event)
            if inside:
                found.update((operation, kernel.name) for kernel in event.kernels)
    return found


def foreign(found: Counter[tuple[str, str]]) -> list[str]:
    """Kernels that torch operations launch and that are no GEMM's."""
    return sorted(f"{operation}: {kernel}" for operation, kernel in found if operation not in ("-", *GEMMS))


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
    given = parser.parse_args(arguments)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
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
    models: list[Any] = []
    llm.apply_model(models.append)
    layers = [module for module in models[0].modules() if type(module).__name__ == "Sm86Attention"]
    _mark(type(layers[0]))
    engine = llm.llm_engine
    prompt = TokensPrompt(prompt_token_ids=[token % 256 for token in range(2600)])
    engine.add_request("trace", prompt, SamplingParams(temperature=0, max_tokens=64, ignore_eos=True))
    for _ in range(12):
        engine.step()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        for _ in range(4):
            engine.step()
        torch.cuda.synchronize()
    found = kernels_under_marks(trace.events())
    print(f"{len(layers)} layers, 4 decode steps after a prompt of 2600 tokens")
    print("| torch operation | kernel | launches |")
    print("|---|---|---|")
    for (operation, kernel), count in sorted(found.items()):
        print(f"| {operation} | {kernel[:90]} | {count} |")
    others = foreign(found)
    print("\n".join(f"torch operation in the attention part: {other}" for other in others))
    if given.nan and _serves_nan(llm, models[0]):
        print("a step with NaN in its hidden states was served")
        return 1
    return 1 if others or not found else 0


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
