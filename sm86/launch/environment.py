"""The environment as it was given: what is unknown is refused, what is empty is taken out. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sm86.errors import CouldNotRun
from sm86.launch.overrides import BY_NAME, KNOWN_SM86_NAMES, nearest

READ_PREFIXES = ("VLLM_", "NCCL_", "SM86_")

SHOWN_PREFIXES = (
    *READ_PREFIXES,
    "CUDA_",
    "NVIDIA_",
    "TORCH_",
    "PYTORCH_",
    "TORCHINDUCTOR_",
    "TRITON_",
    "TILELANG_",
    "FLASHINFER_",
    "OMP_",
)
SHOWN_NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "HF_HOME", "XDG_CACHE_HOME")
"""What the manifest shows of the environment: what the engine, its libraries and its imports react to."""

_SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)S?(_|$)")
_NOT_SECRET = frozenset({"SM86_API_KEY_FILE"})


@dataclass(frozen=True, slots=True)
class Checked:
    """The environment without its empty variables, and their names."""

    environment: Mapping[str, str]
    removed: tuple[str, ...]


def check(environment: Mapping[str, str], vllm_table: Mapping[str, Callable[[], object]] | None) -> Checked:
    """The environment to go on with.

    vllm_table: vLLM's own table of variables, name to a function that reads it from this process's environment;
    None where it cannot be read (nothing is then said about VLLM_ names).

    An empty override, SM86_, NCCL_ or VLLM_ variable is taken out: a Compose file or an `.env` cannot leave a name
    out under a condition, so empty means "not set" there, while NCCL would take it for a value that masks
    /etc/nccl.conf and vLLM would end on int(""). Raises CouldNotRun: unknown name, blank or broken value, secret.
    """
    kept, removed = dict(environment), []
    for name, value in sorted(environment.items()):
        if not (name in BY_NAME or name.startswith(READ_PREFIXES)):
            continue
        if name.startswith("SM86_") and name not in KNOWN_SM86_NAMES:
            raise CouldNotRun(f"{name} is no variable of this product", nearest(name, KNOWN_SM86_NAMES, "it knows"))
        if name == "VLLM_API_KEY":
            raise CouldNotRun(
                "VLLM_API_KEY is in the environment, where the container's inspection shows it",
                "write the key to a file and name that in SM86_API_KEY_FILE",
            )
        if vllm_table is not None and name.startswith("VLLM_") and name not in vllm_table:
            raise CouldNotRun(
                f"{name} is no variable of the installed vLLM, which would only warn and go on",
                _near_vllm(name, vllm_table),
            )
        if not value:
            del kept[name]
            removed.append(name)
        else:
            _require_clean(name, value)
    if vllm_table is not None:
        _require_readable(kept, vllm_table)
    return Checked(kept, tuple(removed))


def _near_vllm(name: str, table: Mapping[str, object]) -> str:
    hint = nearest(name, {known: None for known in table if known.startswith("VLLM_")}, "")
    return hint if hint.startswith("did") else "leave it out, or see vLLM's list of environment variables"


def _require_clean(name: str, value: str) -> None:
    if not value.strip():
        raise CouldNotRun(f"{name} is blank", "give it a value, or leave it out")
    if "\r" in value or "\n" in value:
        raise CouldNotRun(
            f"{name} is {value!r}: it holds a line end", "save the .env file with Unix line ends, one variable a line"
        )


def _require_readable(environment: Mapping[str, str], table: Mapping[str, Callable[[], object]]) -> None:
    for name in sorted(environment):
        if not name.startswith("VLLM_"):
            continue
        try:
            table[name]()
        except (ValueError, KeyError) as error:
            raise CouldNotRun(
                f"{name}={environment[name]} is nothing that vLLM can read: {error}",
                "give it a value of its kind (most are 0 or 1, or a whole number)",
            ) from None
        except Exception:
            # some read the device or import vLLM for it; that is the engine's to say, not the value's fault
            continue


def is_secret(name: str) -> bool:
    return name not in _NOT_SECRET and bool(_SECRET.search(name))


def shown(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of the environment that goes into the manifest; never a secret."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name in BY_NAME or name in SHOWN_NAMES or name.startswith(SHOWN_PREFIXES)) and not is_secret(name)
    }
