"""What a capture needs and what came of it: the server's profiler, the tokens to decode, the files to take. Pure.

vLLM has a profiler only when it was started with one (`--profiler-config`); POST /start_profile arms it, it then skips
`delay_iterations` steps, records `max_iterations` + 1 and stops by itself; POST /stop_profile is due all the same.
Source: vLLM 0.26.0 and 0.28.0, profiler/wrapper.py, entrypoints/serve/profile/api_router.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sm86.errors import CouldNotRun

SETTING = "SM86_PROFILE_STEPS"

SETTLED_TOKENS = 8
"""Tokens that every sequence decodes before the profiler starts: by then all of them decode."""

SPARE_TOKENS = 96
"""Decoded beyond the recorded steps: the calls that arm and end the profiler take a few steps of a fast server."""

MIN_PROMPT_TOKENS = 32

LONGEST_NAME = 512

FRONTEND = "async_llm"
SUFFIXES = (".pt.trace.json.gz", ".pt.trace.json")
_DECODE = re.compile(rb'"execute_(?:\d+_)?context_0\([^"()]*\)_generation_[1-9]')
_RANK = re.compile(r"rank[_-]?(?P<rank>\d+)")


@dataclass(frozen=True, slots=True)
class Profiler:
    """The server's profiler. folder: where its workers write, as they see it; delay, steps: skipped, then recorded."""

    folder: str
    delay: int
    steps: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What is sent while it records: each of `sequences` prompts has `prompt_tokens` and decodes `decode_tokens`."""

    sequences: int
    prompt_tokens: int
    decode_tokens: int


def profiler_of(config: Mapping[str, Any], envelope: str, option: str = "") -> Profiler:
    """The profiler that `--profiler-config` of the running server describes; option: what `invoke up` needs beside the
    envelope. Raises CouldNotRun: none, not the torch one, without a limit, or one that writes elsewhere."""
    again = f"invoke up --envelope {envelope}{option} --override {SETTING}=50"
    if not config or config.get("profiler") is None:
        raise CouldNotRun(
            f"{envelope} was started without a profiler, and vLLM cannot add one while it runs",
            f"invoke down --envelope {envelope}{option}, then {again}",
        )
    if config.get("profiler") != "torch":
        raise CouldNotRun(f"its profiler is {config['profiler']!r}, not torch's", again)
    folder, steps, delay = (
        config.get("torch_profiler_dir"),
        config.get("max_iterations", 0),
        config.get("delay_iterations", 0),
    )
    if not isinstance(folder, str) or not folder.startswith("/"):
        raise CouldNotRun(f"its profiler writes to {folder!r}, which is no folder of that machine", again)
    if not all(isinstance(count, int) and not isinstance(count, bool) for count in (steps, delay)) or steps < 1:
        raise CouldNotRun("its profiler has no limit of steps, so a trace could fill the disk", again)
    return Profiler(folder, delay, steps)


def shape_of(profiler: Profiler, sequences: int, context: int, prompt_tokens: int) -> Shape:
    """How much to decode so that every recorded step is a decode step of all sequences. Raises CouldNotRun: it does
    not fit the context."""
    decode = SETTLED_TOKENS + profiler.delay + profiler.steps + 1 + SPARE_TOKENS
    # room for the prompt's own length to be a little off
    left = context - decode - 32
    if prompt_tokens > left:
        if left < MIN_PROMPT_TOKENS:
            what = f"{profiler.steps} steps need {decode} tokens of each sequence, and the context has {context}"
            raise CouldNotRun(what, f"start the server with a smaller {SETTING}")
        raise CouldNotRun(
            f"a prompt of {prompt_tokens} tokens and {decode} decoded ones exceed the context of {context}",
            f"give at most --prompt-tokens {left}",
        )
    return Shape(sequences, prompt_tokens, decode)


def worker_files(names: Sequence[str]) -> dict[int, str]:
    """Rank -> its newest trace among file names; the API server's own file (CPU only) and others are passed over."""
    found: dict[int, str] = {}
    for name in sorted(names, key=_time_in):
        match = _RANK.search(name)
        if match and name.endswith(SUFFIXES) and FRONTEND not in name:
            found[int(match["rank"])] = name
    return found


def _time_in(name: str) -> int:
    """The nanoseconds that the writer puts into the name; 0 where there are none."""
    return max((int(part) for part in name.split(".") if part.isdigit()), default=0)


def decode_steps(chunks: Iterable[bytes]) -> int:
    """Decode steps that vLLM annotated in a trace without GPU events, given as a stream.

    With GPU events an annotation stands once more for each stream that ran something of it: see `annotated_steps`.
    """
    count, rest = 0, b""
    for chunk in chunks:
        text, end = rest + chunk, 0
        for found in _DECODE.finditer(text):
            count, end = count + 1, found.end()
        # a name that the chunk's end cuts in two is found when the next one has come
        rest = text[max(end, len(text) - LONGEST_NAME) :]
    return count


def annotated_steps(annotations: Mapping[str, int]) -> int:
    """Decode steps among counted annotations of the host's own thread, whether their kernels are whole or not."""
    return sum(count for name, count in annotations.items() if _DECODE.match(b'"' + name.encode()))


def missing_ranks(files: Mapping[int, str], ranks: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(ranks) if rank not in files)
