"""What a boot's log says of its settings and its memory. Built on the verifier's reader; four lines more. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sm86.verify import events as ev
from sm86.verify import sniff
from sm86.verify.boots import Boot, Boots
from sm86.verify.config_text import integers, plain
from sm86.verify.reader import LogReader

_NUMBER = rb"(-?\d{1,9}(?:\.\d+)?)"
_GIB = _NUMBER + rb" GiB"
_CHECKPOINT = re.compile(rb"Checkpoint size: " + _GIB)
_ASYNC = re.compile(rb"Asynchronous scheduling is (enabled|disabled)\.")
_FREE = re.compile(rb"Free memory on device \(" + _NUMBER + rb"/" + _GIB + rb"\) on startup\.")
_USE = re.compile(
    rb"Actual usage is " + _GIB + rb" for weight, " + _GIB + rb" for peak activation, " + _GIB + rb" for non-torch "
    rb"memory, and " + _GIB + rb" for CUDAGraph"
)
_LONGEST_LINE = 1 << 16
_MOST = 10**12
"""Beyond it, and below one, no setting of a server lies: such a number is as good as none."""


@dataclass(frozen=True, slots=True)
class Printed:
    """A number as a line of the log has it; GiB are as rounded there, to two decimals."""

    line: int
    value: float


@dataclass(frozen=True, slots=True)
class Usage:
    """vLLM's summary of one worker, GiB: free and total at start, weights, activations, non-torch, graphs."""

    line: int
    free: float
    total: float
    weights: float
    activations: float
    non_torch: float
    graphs: float


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the boot and the line that says it; line 0: vLLM's default, since no line says otherwise."""

    value: int
    line: int


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The last boot of a log. Settings are None where neither the log nor a default of vLLM tells them.

    own: this product's backend says that it is active; rope_rows: as it says; capture_sizes: empty for no graphs;
    lines: physical lines of the log.
    """

    boot: Boot
    boots: int
    lines: int
    context: Setting | None
    sequences: Setting | None
    batched_tokens: Setting | None
    async_scheduling: Setting
    blocks: Setting | None
    ranks: Setting
    utilization: float
    capture_sizes: tuple[int, ...]
    own: bool
    rope_rows: int | None
    checkpoint: Printed | None
    usage: Usage | None


class _Extra:
    """The lines that the verifier has no use for, of the whole log; the last boot's are picked afterwards."""

    def __init__(self) -> None:
        self._rest, self._line = b"", 1
        self.checkpoints: list[Printed] = []
        self.schedulings: list[Setting] = []
        self.usages: list[Usage] = []

    def feed(self, data: bytes) -> None:
        block = self._rest + data
        cut = block.rfind(b"\n") + 1
        # a line without an end must not be kept for ever, nor looked through again with every chunk
        self._rest = block[cut:] if len(block) - cut <= _LONGEST_LINE else b""
        self._look(block[:cut])
        self._line += block.count(b"\n", 0, cut)

    def close(self) -> None:
        # an unfinished number may be cut, but each of these ends in a word behind it
        self._look(self._rest)

    def _look(self, block: bytes) -> None:
        for found in _CHECKPOINT.finditer(block):
            self.checkpoints.append(Printed(self._at(block, found), float(found[1])))
        for found in _ASYNC.finditer(block):
            self.schedulings.append(Setting(int(found[1] == b"enabled"), self._at(block, found)))
        for found in _FREE.finditer(block):
            use = _USE.search(block, found.end(), found.end() + 2000)
            if use:
                numbers = (float(value) for value in (*found.groups(), *use.groups()))
                self.usages.append(Usage(self._at(block, found), *numbers))

    def _at(self, block: bytes, found: re.Match[bytes]) -> int:
        return self._line + block.count(b"\n", 0, found.start())


def read(chunks: Iterable[bytes], where: str = "the log") -> LogFacts:
    """The facts of the last boot in a log; chunks: its bytes in order.

    Raises CouldNotRun where there is nothing to read: empty, binary, or not vLLM's.
    """
    reader, boots, extra = LogReader(), Boots(), _Extra()
    head, blank = b"", True
    for chunk in chunks:
        head = head or chunk[: sniff.SNIFF_BYTES]
        blank = blank and not chunk.strip()
        boots.add_all(reader.feed(chunk))
        extra.feed(chunk)
    boots.add_all(reader.close())
    extra.close()
    if blank:
        raise sniff.empty(where)
    sniff.refuse_if_binary(head, where)
    if boots.count == 0:
        raise sniff.foreign(where)
    return _facts(boots, extra, reader.lines)


def _facts(boots: Boots, extra: _Extra, lines: int) -> LogFacts:
    boot = boots.boot
    start = boot.start.line if boot.start else 1
    scheduling = next((s for s in reversed(extra.schedulings) if s.line >= start), None)
    given = _setting(boot, "async_scheduling")
    rows = boot.reported("backend", "rope_table_rows")
    active = boot.reported("backend", "active")
    eager = _engine(boot, "enforce_eager") == "True"
    mode = plain(_compilation(boot, "cudagraph_mode") or "")
    sizes = tuple(integers(_compilation(boot, "cudagraph_capture_sizes") or "") or ())
    return LogFacts(
        boot=boot,
        boots=boots.count,
        lines=lines,
        context=_engine_number(boot, "max_seq_len") or _setting(boot, "max_model_len"),
        sequences=_setting(boot, "max_num_seqs"),
        batched_tokens=_setting(boot, "max_num_batched_tokens"),
        # vLLM turns it on unless something forbids it, and then says so
        async_scheduling=scheduling or given or Setting(1, 0),
        blocks=_setting(boot, "num_gpu_blocks_override") or _override(boot),
        ranks=_engine_number(boot, "tensor_parallel_size") or _setting(boot, "tensor_parallel_size") or Setting(1, 0),
        utilization=_utilization(boot),
        capture_sizes=() if eager or mode == "NONE" else sizes,
        own=any(str(entry.value).lower() == "true" for entry in active),
        rope_rows=_whole(str(rows[-1].value)) if rows else None,
        checkpoint=next((c for c in reversed(extra.checkpoints) if c.line >= start), None),
        usage=next((u for u in reversed(extra.usages) if u.line >= start), None),
    )


def _arguments(boot: Boot, key: str) -> tuple[str, int] | None:
    event = boot.last(ev.NonDefaultArgs)
    return (plain(event.args[key]), event.line) if event is not None and key in event.args else None


def _setting(boot: Boot, key: str) -> Setting | None:
    found = _arguments(boot, key)
    if found is None:
        return None
    text, line = found
    if text in ("True", "False"):
        return Setting(int(text == "True"), line)
    number = _whole(text)
    return None if number is None else Setting(number, line)


def _engine(boot: Boot, key: str) -> str | None:
    event = boot.last(ev.EngineInitialised)
    return plain(event.config[key]) if event is not None and key in event.config else None


def _engine_number(boot: Boot, key: str) -> Setting | None:
    event, number = boot.last(ev.EngineInitialised), _whole(_engine(boot, key) or "")
    return Setting(number, event.line) if event is not None and number is not None else None


def _whole(text: str) -> int | None:
    """The whole number that a setting could have, or None."""
    if not text.isdecimal() or len(text) > len(str(_MOST)):
        return None
    return int(text) if 1 <= int(text) <= _MOST else None


def _compilation(boot: Boot, key: str) -> str | None:
    event = boot.last(ev.EngineInitialised)
    return event.compilation.get(key) if event is not None else None


def _override(boot: Boot) -> Setting | None:
    line = boot.last(ev.KvOverride)
    return Setting(line.to, line.line) if line is not None else None


def _utilization(boot: Boot) -> float:
    found = _arguments(boot, "gpu_memory_utilization")
    try:
        return float(found[0]) if found else 0.92
    except ValueError:
        return 0.92
