"""What a hook is, and the check that vLLM still is what the hook was written for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sm86.backend.hooks.source import digest, imported_names
from sm86.backend.refusal import Refused

VLLM_VERSION = "0.26.0"


@dataclass(frozen=True, slots=True)
class Expected:
    """A function of vLLM as the hook knows it: replaced by it, or relied upon by its replacement."""

    module: str
    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class Hook:
    """One replacement.

    name: short, for the log; module: whose import triggers it; why: one sentence;
    expects: the functions that must be unchanged; imports: names that `module` must bind by an import, since the
    hook replaces them there; apply: gets the imported module and replaces.
    """

    name: str
    module: str
    why: str
    expects: tuple[Expected, ...]
    apply: Callable[[Any], None]
    imports: tuple[str, ...] = ()


def faults_of(hook: Hook, read: Callable[[str], str | None]) -> list[str]:
    """What differs from vLLM 0.26.0, one line each. `read` gives a module's source by name, or None."""
    faults = []
    for item in hook.expects:
        text = read(item.module)
        if text is None:
            faults.append(f"{item.module} does not exist")
            continue
        try:
            found = digest(text, item.name)
        except LookupError:
            faults.append(f"{item.module}.{item.name} does not exist")
            continue
        if found != item.digest:
            faults.append(f"{item.module}.{item.name} has hash {found}, known is {item.digest}")
    if hook.imports:
        text = read(hook.module)
        missing = set(hook.imports) - (imported_names(text) if text is not None else set())
        faults += [f"{hook.module} does not import {name}" for name in sorted(missing)]
    return faults


def verify(hooks: tuple[Hook, ...], version: str, read: Callable[[str], str | None]) -> None:
    """Raise Refused unless vLLM has the known version and every function the known source."""
    if version.split("+")[0] != VLLM_VERSION:
        raise Refused(
            f"this is vLLM {version}, the SM86 backend is written for {VLLM_VERSION}",
            f"install vllm=={VLLM_VERSION}, or start without the plugin (VLLM_PLUGINS)",
        )
    faults = [f"{hook.name}: {fault}" for hook in hooks for fault in faults_of(hook, read)]
    if faults:
        shown = "; ".join(faults[:3]) + ("" if len(faults) <= 3 else f"; and {len(faults) - 3} more")
        raise Refused(f"vLLM's source is not the known {VLLM_VERSION}: {shown}", "install the unmodified wheel")
