"""The backend's own switches, all from the environment. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from sm86.backend.refusal import Refused


@dataclass(frozen=True, slots=True)
class Settings:
    """force: act on any CUDA GPU and let vLLM believe it is SM86 (tests, comparisons with the native path).

    indexer_query: "bf16", or "e4m3" to round the indexer's query as the native path does.
    dispatch_debug: CUDAGRAPH_DISPATCH_DEBUG; spec_debug: SPEC_CUDAGRAPH_DEBUG, draft steps to print.
    deterministic_moe: SM86_DETERMINISTIC_MOE: the routed experts in a fixed order, slow, for tests that compare bits.
    host_allreduce: SM86_HOST_ALLREDUCE, "auto", "1" or "0": all-reduce through host memory.
    share_gpu: SM86_TEST_SHARE_GPU: all ranks on one GPU, to test tensor parallel; wants force and host_allreduce "1".
    without: names of hooks left out, for tests that show what a hook is for; serving with it is wrong.
    """

    force: bool = False
    indexer_query: str = "bf16"
    dispatch_debug: bool = False
    spec_debug: int = 0
    without: tuple[str, ...] = ()
    host_allreduce: str = "auto"
    deterministic_moe: bool = False
    share_gpu: bool = False


def _flag(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name, "0")
    if value not in ("0", "1"):
        raise Refused(f"{name}={value!r} is neither 0 nor 1", f"set {name}=1 or unset it")
    return value == "1"


def read(environment: Mapping[str, str]) -> Settings:
    """Settings from an environment. Raises Refused for a value that means nothing."""
    query = environment.get("SM86_INDEXER_QUERY", "bf16")
    if query not in ("bf16", "e4m3"):
        raise Refused(f"SM86_INDEXER_QUERY={query!r} is unknown", "set it to bf16 or e4m3, or unset it")
    draft = environment.get("SPEC_CUDAGRAPH_DEBUG", "0")
    if not re.fullmatch("[0-9]{1,9}", draft):
        raise Refused(f"SPEC_CUDAGRAPH_DEBUG={draft!r} is not a number of steps", "set it to a number such as 4")
    reduce = environment.get("SM86_HOST_ALLREDUCE") or "auto"
    if reduce not in ("auto", "1", "0"):
        raise Refused(f"SM86_HOST_ALLREDUCE={reduce!r} is unknown", "set it to auto, 1 or 0, or unset it")
    names = environment.get("SM86_TEST_WITHOUT_HOOKS", "")
    force, share = _flag(environment, "SM86_FORCE"), _flag(environment, "SM86_TEST_SHARE_GPU")
    if share and not force:
        raise Refused("SM86_TEST_SHARE_GPU=1 is for proofs alone, and SM86_FORCE is not 1", "unset it")
    if share and reduce != "1":
        raise Refused(
            f"SM86_TEST_SHARE_GPU=1 has no NCCL, and SM86_HOST_ALLREDUCE is {reduce}", "set SM86_HOST_ALLREDUCE=1"
        )
    return Settings(
        force=force,
        indexer_query=query,
        dispatch_debug=_flag(environment, "CUDAGRAPH_DISPATCH_DEBUG"),
        spec_debug=int(draft),
        without=tuple(name for name in names.split(",") if name),
        host_allreduce=reduce,
        deterministic_moe=_flag(environment, "SM86_DETERMINISTIC_MOE"),
        share_gpu=share,
    )


@cache
def settings() -> Settings:
    """This process's settings, read once."""
    return read(os.environ)
