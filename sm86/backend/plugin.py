"""Switching the backend on: is it this GPU's turn, is vLLM the known one, then the hooks."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sm86.backend.refusal import Refused
from sm86.backend.settings import Settings, settings


def applies_to(capability: tuple[int, int] | None, chosen: Settings) -> bool:
    """True on compute capability 8.x, or anywhere when forced."""
    return chosen.force or (capability is not None and capability[0] == 8)


def vllm_version() -> str:
    """The installed distribution's version. Raises Refused when vLLM is not installed under its own name."""
    try:
        return version("vllm")
    except PackageNotFoundError as error:
        raise Refused("no distribution named vllm is installed", "install vllm==0.26.0") from error


def activate(platform: Any) -> None:
    """Verify and install the hooks; the second call in a process does nothing, or raises what the first one raised."""
    chosen = settings()
    found = platform.get_device_capability()
    capability = (found.major, found.minor) if found is not None else None
    if not applies_to(capability, chosen):
        return
    from sm86.backend.hooks import shared_gpu
    from sm86.backend.hooks.catalogue import HOOKS
    from sm86.backend.hooks.hook import verify
    from sm86.backend.hooks.install import install, installed, read_source
    from sm86.backend.report import report

    present = installed()
    if present is not None:
        if present.fault is not None:
            raise present.fault
        return
    unknown = set(chosen.without) - {hook.name for hook in HOOKS}
    if unknown:
        raise Refused(f"SM86_TEST_WITHOUT_HOOKS names no hook: {', '.join(sorted(unknown))}", "unset it")
    number = vllm_version()
    known = (*shared_gpu.HOOKS, *HOOKS) if chosen.share_gpu else HOOKS
    verify(known, number, read_source)
    if chosen.share_gpu:
        shared_gpu.prepare()
    if chosen.force:
        from sm86.backend.force import pretend_sm86

        pretend_sm86(platform)
    hooks = tuple(hook for hook in known if hook.name not in chosen.without)
    install(hooks)
    report("active", True)
    report("vllm", number)
    report("capability", ".".join(map(str, capability)) if capability else "unknown")
    report("forced", chosen.force)
    report("indexer_query", chosen.indexer_query)
    report("hooks", [hook.name for hook in hooks])
    if chosen.without:
        report("left_out_for_a_test", list(chosen.without))
    if chosen.share_gpu:
        report("gpu_shared_for_a_test", True)
