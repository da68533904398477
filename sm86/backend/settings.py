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
    without: names of hooks left out, for tests that show what a hook is for; serving with it is wrong.
    """

    force: bool = False
    indexer_query: str = "bf16"
    dispatch_debug: bool = False
    spec_debug: int = 0
    without: tuple[str, ...] = ()
    host_allreduce: str = "auto"
    deterministic_moe: bool = False


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
    return Settings(
        force=_flag(environment, "SM86_FORCE"),
        indexer_query=query,
        dispatch_debug=_flag(environment, "CUDAGRAPH_DISPATCH_DEBUG"),
        spec_debug=int(draft),
        without=tuple(name for name in names.split(",") if name),
        host_allreduce=reduce,
        deterministic_moe=_flag(environment, "SM86_DETERMINISTIC_MOE"),
    )


@cache
def settings() -> Settings:
    """This process's settings, read once."""
    return read(os.environ)
