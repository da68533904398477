"""Reading and changing the argument list of `vllm serve`, as vLLM's own parser would understand it. Pure.

vLLM takes `--flag value`, `--flag=value`, `_` for `-`, some short names, and `--flag.key value` for a key of a
JSON flag; the last of several wins. Source: vLLM 0.26.0, engine/arg_utils.py and utils/argparse_utils.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sm86.errors import CouldNotRun
from sm86.json_text import parse as parse_json
from sm86.spec.validate import avoided

_ALIASES = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-cc": "--compilation-config",
    "-ac": "--attention-config",
    "-sc": "--speculative-config",
    "-dcp": "--decode-context-parallel-size",
}

SWITCHES = (
    "--async-scheduling",
    "--enforce-eager",
    "--disable-hybrid-kv-cache-manager",
    "--cudagraph-metrics",
    "--disable-custom-all-reduce",
)
JSON_FLAGS = (
    "--compilation-config",
    "--attention-config",
    "--kernel-config",
    "--speculative-config",
    "--profiler-config",
)
VALUE_FLAGS = (
    "--model",
    "--served-model-name",
    "--host",
    "--port",
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--prefill-context-parallel-size",
    "--max-model-len",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--kv-cache-dtype",
    "--block-size",
    "--num-gpu-blocks-override",
    "--gpu-memory-utilization",
    "--attention-backend",
    "--moe-backend",
    "--cudagraph-capture-sizes",
    "--max-cudagraph-capture-size",
)
_READ = (*SWITCHES, *JSON_FLAGS, *VALUE_FLAGS)
_OFF = tuple("--no-" + switch[2:] for switch in SWITCHES)

DEFAULT_PORT = 8000
DEFAULT_UTILIZATION = 0.92
"""vLLM's own defaults where the flag is absent."""

_COUNT = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>[kKmMgG]?)")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True, slots=True)
class Item:
    """One flag of an argument list. `flag` is its long name, `key` what follows a dot; [start, end) are its places."""

    flag: str
    key: str
    value: str | None
    start: int
    end: int


def items(argv: Sequence[str]) -> Iterator[Item]:
    """Every flag after the subcommand, in order. A flag that is not read here keeps a value that looks like one."""
    at = 0
    while at < len(argv):
        token = argv[at]
        if not _is_flag(token):
            at += 1
            continue
        name, equals, value = token.partition("=")
        flag, _, key = name.partition(".")
        flag = _ALIASES.get(flag, flag)
        if flag.startswith("--"):
            flag = flag.lower().replace("_", "-")
        end = at + 1
        takes_value = flag not in SWITCHES and not flag.startswith("--no-")
        if not equals and takes_value and end < len(argv) and (flag in _READ or not _is_flag(argv[end])):
            value, equals, end = argv[end], "=", end + 1
        # a list flag takes all that follows; only the capture sizes among those read here are one
        while flag == "--cudagraph-capture-sizes" and end < len(argv) and not _is_flag(argv[end]):
            value, end = f"{value} {argv[end]}", end + 1
        yield Item(flag, key, value if equals else None, at, end)
        at = end


def _is_flag(token: str) -> bool:
    return len(token) > 1 and token[0] == "-" and not token[1].isdigit()


def require_allowed(argv: Sequence[str]) -> None:
    """Raise CouldNotRun for an argument on the "Avoid" list, a secret, or a shortened flag that is read here."""
    for item in items(argv):
        token = argv[item.start].split("=", 1)[0]
        reason = avoided(token)
        if reason and item.flag.startswith("--spec"):
            raise CouldNotRun(f"{token} is not taken: {reason}", "for one run set SPECULATIVE_CONFIG")
        if reason:
            raise CouldNotRun(f"{token} is not taken: {reason}", "leave it out")
        if len(item.flag) >= len("--api-k") and "--api-key".startswith(item.flag):
            raise CouldNotRun(
                f"{token} would show the API key to everyone who lists the processes",
                "write the key to a file and name that in SM86_API_KEY_FILE",
            )
        if len(item.flag) >= len("--hf-t") and "--hf-token".startswith(item.flag):
            raise CouldNotRun(
                f"{token} would show the token to everyone who lists the processes", "set HF_TOKEN in the environment"
            )
        longer = [flag for flag in (*_READ, *_OFF) if flag.startswith(item.flag)]
        if longer and item.flag not in longer and len(item.flag) > len("--no-"):
            raise CouldNotRun(f"{token} is a shortened flag", f"write {longer[0]} in full")


def value_of(argv: Sequence[str], flag: str) -> str | None:
    """The value of a flag, the last one given; None where it is absent."""
    value = None
    for item in items(argv):
        if item.flag == flag and not item.key:
            value = item.value
    return value


def switch_of(argv: Sequence[str], flag: str) -> bool | None:
    """True for `--flag`, False for `--no-flag`, None where neither stands; the last one given."""
    state = None
    for item in items(argv):
        if item.flag == flag:
            state = (item.value or "true").lower() == "true"
        elif item.flag == "--no-" + flag[2:]:
            state = False
    return state


def json_of(argv: Sequence[str], flag: str) -> dict[str, Any]:
    """A JSON flag's object. As in vLLM, dotted keys together make an object of their own that replaces the other.

    Raises CouldNotRun for a value that is no JSON object.
    """
    whole: dict[str, Any] = {}
    dotted: dict[str, Any] = {}
    for item in items(argv):
        if item.flag != flag:
            continue
        if item.key:
            _put(dotted, item.key.removesuffix("+").split("."), _loose(item.value or ""))
            continue
        try:
            value = parse_json(item.value or "")
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise CouldNotRun(
                f"{flag} is {item.value!r}, no JSON object", "write it as one argument: '{\"key\": value}'"
            )
        whole = value
    return dotted or whole


def _put(target: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        target = target.setdefault(key, {})
    target[keys[-1]] = value


def _loose(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text


def with_value(argv: Sequence[str], flag: str, value: str) -> tuple[str, ...]:
    """The list with that flag's value, in the place of the first one there was, else at the end."""
    found = [item for item in items(argv) if item.flag == flag]
    return _replaced(argv, found, (flag, value))


def with_switch(argv: Sequence[str], flag: str, on: bool) -> tuple[str, ...]:
    """The list with `--flag` or `--no-flag`."""
    off = "--no-" + flag[2:]
    found = [item for item in items(argv) if item.flag in (flag, off)]
    return _replaced(argv, found, (flag if on else off,))


def with_json(argv: Sequence[str], flag: str, value: dict[str, Any]) -> tuple[str, ...]:
    return with_value(argv, flag, json.dumps(value, separators=(",", ":"), ensure_ascii=False))


def _replaced(argv: Sequence[str], found: list[Item], new: tuple[str, ...]) -> tuple[str, ...]:
    if not found:
        return (*argv, *new)
    result = list(argv)
    for item in reversed(found[1:]):
        del result[item.start : item.end]
    result[found[0].start : found[0].end] = new
    return tuple(result)


def count_of(argv: Sequence[str], flag: str) -> int | None:
    """A flag's whole number; vLLM's 1k (1000) and 1K (1024) are understood. None: absent, or a word such as auto."""
    text = (value_of(argv, flag) or "").strip()
    match = _COUNT.fullmatch(text)
    return int(float(match["number"]) * _UNITS[match["unit"]]) if match else None


def number_of(argv: Sequence[str], flag: str) -> float | None:
    try:
        return float(value_of(argv, flag) or "")
    except ValueError:
        return None


def model_of(argv: Sequence[str]) -> str | None:
    """The model: the first argument after `serve`, or --model."""
    if len(argv) > 1 and not _is_flag(argv[1]):
        return argv[1]
    return value_of(argv, "--model")


@dataclass(frozen=True, slots=True)
class Graphs:
    """CUDA graphs as asked for: mode ("NONE" when eager), sizes and their maximum; None where vLLM chooses."""

    mode: str | None
    sizes: tuple[int, ...] | None
    largest: int | None


@dataclass(frozen=True, slots=True)
class Facts:
    """What an argument list asks of the engine. None: absent, vLLM chooses. Lengths in tokens.

    ranks: GPUs the server needs (tensor x pipeline x data x prefill context parallel).
    """

    model: str | None
    host: str | None
    port: int
    tensor_parallel: int
    ranks: int
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    async_scheduling: bool | None
    kv_cache_dtype: str | None
    block_size: int | None
    num_gpu_blocks_override: int | None
    gpu_memory_utilization: float
    hybrid_kv: bool | None
    attention_backend: str | None
    moe_backend: str | None
    graphs: Graphs
    speculative: dict[str, Any] | None

    @property
    def draft_tokens(self) -> int:
        return int((self.speculative or {}).get("num_speculative_tokens", 0))


def facts_of(argv: Sequence[str]) -> Facts:
    """The facts of an argument list that starts with "serve". Raises CouldNotRun: broken JSON in a JSON flag."""
    degrees = [
        count_of(argv, f"--{kind}-parallel-size") or 1 for kind in ("tensor", "pipeline", "data", "prefill-context")
    ]
    ranks = 1
    for degree in degrees:
        ranks *= degree
    disabled = switch_of(argv, "--disable-hybrid-kv-cache-manager")
    return Facts(
        model=model_of(argv),
        host=value_of(argv, "--host"),
        port=count_of(argv, "--port") or DEFAULT_PORT,
        tensor_parallel=degrees[0],
        ranks=ranks,
        max_model_len=count_of(argv, "--max-model-len"),
        max_num_seqs=count_of(argv, "--max-num-seqs"),
        max_num_batched_tokens=count_of(argv, "--max-num-batched-tokens"),
        async_scheduling=switch_of(argv, "--async-scheduling"),
        kv_cache_dtype=value_of(argv, "--kv-cache-dtype"),
        block_size=count_of(argv, "--block-size"),
        num_gpu_blocks_override=count_of(argv, "--num-gpu-blocks-override"),
        gpu_memory_utilization=number_of(argv, "--gpu-memory-utilization") or DEFAULT_UTILIZATION,
        hybrid_kv=None if disabled is None else not disabled,
        attention_backend=value_of(argv, "--attention-backend") or json_of(argv, "--attention-config").get("backend"),
        moe_backend=value_of(argv, "--moe-backend") or json_of(argv, "--kernel-config").get("moe_backend"),
        graphs=_graphs(argv),
        speculative=json_of(argv, "--speculative-config") or None,
    )


def _graphs(argv: Sequence[str]) -> Graphs:
    if switch_of(argv, "--enforce-eager"):
        return Graphs("NONE", None, None)
    config = json_of(argv, "--compilation-config")
    flat = (value_of(argv, "--cudagraph-capture-sizes") or "").split()
    sizes = [int(size) for size in flat if size.isdigit()] or config.get("cudagraph_capture_sizes")
    largest = count_of(argv, "--max-cudagraph-capture-size") or config.get("max_cudagraph_capture_size")
    mode = config.get("cudagraph_mode")
    return Graphs(
        str(mode).upper() if mode is not None else None,
        tuple(sizes) if isinstance(sizes, list) else None,
        largest if isinstance(largest, int) else None,
    )
