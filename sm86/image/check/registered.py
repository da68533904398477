"""Which operators vLLM's kernel libraries register, and which of them have a kernel. Runs inside an image."""

from __future__ import annotations

import importlib

from sm86.image.judge.operators import LIBRARIES, NAMESPACES

KEYS = ("CUDA", "CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd")


def operators() -> dict[str, bool]:
    """Every registered operator, as "namespace::name" -> whether any of torch's dispatch keys has a kernel for it.

    Raises ImportError where a library does not load.
    """
    torch = importlib.import_module("torch")
    for target in LIBRARIES:
        importlib.import_module(f"vllm.{target}")
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.split("::")[0] in NAMESPACES]
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return {name: any(has_kernel(name, key) for key in KEYS) for name in sorted(names)}
