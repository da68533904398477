"""A boot's log against the prediction for the settings it ran with: line by line, and where it is off. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sm86.errors import EXIT_FINDING, EXIT_OK
from sm86.fit.log_facts import LogFacts, Setting
from sm86.plan import memory
from sm86.plan.engine_lines import KvLines, predict
from sm86.plan.groups import Pool, pool_of
from sm86.plan.memory import SM86, STOCK, Server
from sm86.plan.shape import FLASH, Shape
from sm86.plan.units import GIB, Bytes, exactly, gib_as_printed, total
from sm86.plan.weights import SLACK_PER_LAYER, checkpoint_bytes, divides, draft_bytes, weights
from sm86.spec import Envelope
from sm86.verify import events as ev
from sm86.verify.findings import FAIL, NOT_APPLICABLE, NOT_SEEN, PASS

__all__ = ["FAIL", "NOT_APPLICABLE", "NOT_SEEN", "PASS", "LineCheck", "LogCheck", "check"]

_HALF = GIB // 200
"""Half of the last digit that vLLM prints of a size in GiB."""

MEND_MODEL = "give the served checkpoint with --model FOLDER; the prediction is for DeepSeek-V4-Flash otherwise"
MEND_LOG = "give the whole log of the boot"
MEND_MEMORY = "another process may hold the GPU (`invoke doctor` names it), or the estimate is wrong: report the log"


@dataclass(frozen=True, slots=True)
class LineCheck:
    """One line of the log against its prediction. line: physical line, 0 where none was seen; predicted, printed: as
    vLLM writes them; mend: for FAIL and NOT_SEEN only."""

    name: str
    state: str
    predicted: str
    printed: str
    line: int
    mend: str = ""


@dataclass(frozen=True, slots=True)
class LogCheck:
    """All checks of one boot. settings: what the prediction was made for, each with its line (0: vLLM's default, or the
    envelope's); notes: what a reader must know."""

    checks: tuple[LineCheck, ...]
    settings: tuple[tuple[str, str, int], ...]
    notes: tuple[str, ...]
    boots: int
    lines: int

    @property
    def exit_code(self) -> int:
        good = all(check.state in (PASS, NOT_APPLICABLE) for check in self.checks)
        return EXIT_OK if good and any(check.state == PASS for check in self.checks) else EXIT_FINDING


def check(
    facts: LogFacts, shape: Shape = FLASH, envelope: Envelope | None = None, multiprocessors: int = 82
) -> LogCheck:
    """Compare. envelope: what the boot should have been, for settings that the log does not name and as the first
    thing to compare; multiprocessors: of the GPU, for a few MiB."""
    given = _settings(facts, envelope)
    notes = []
    if facts.usage is not None:
        notes.append(
            f"estimates are for an RTX 3090; this boot's GPU has {facts.usage.total:g} GiB"
            + ("" if 20 < facts.usage.total < 50 else ", another kind")
        )
    if not facts.own:
        notes.append("this product's backend does not speak in this log: its part of the memory is not predicted")
    checks = list(_against_envelope(facts, envelope)) if envelope is not None else []
    checks += _size_checks(facts, shape, given, multiprocessors)
    checks += _cache_checks(facts, shape, given)
    checks += _memory_checks(facts, shape, given)
    shown = tuple((name, str(setting.value), setting.line) for name, setting in given.items())
    return LogCheck(tuple(checks), shown, tuple(notes), facts.boots, facts.lines)


def _settings(facts: LogFacts, envelope: Envelope | None) -> dict[str, Setting]:
    """Every setting that is known, by vLLM's name, from the log or else from the envelope."""
    serve = envelope.serve if envelope is not None else None
    found: dict[str, Setting] = {}
    for name, seen, wanted in (
        ("max_model_len", facts.context, serve.context if serve else None),
        ("max_num_seqs", facts.sequences, serve.sequences if serve else None),
        ("max_num_batched_tokens", facts.batched_tokens, serve.max_num_batched_tokens if serve else None),
        ("num_gpu_blocks_override", facts.blocks, serve.num_gpu_blocks_override if serve else None),
    ):
        if seen is not None:
            found[name] = seen
        elif wanted is not None:
            found[name] = Setting(wanted, 0)
    scheduling = facts.async_scheduling
    if scheduling.line == 0 and serve is not None:
        scheduling = Setting(int(serve.async_scheduling), 0)
    found["async_scheduling"] = scheduling
    found["tensor_parallel_size"] = facts.ranks
    return found


def _against_envelope(facts: LogFacts, envelope: Envelope) -> Iterator[LineCheck]:
    serve = envelope.serve
    wanted = {
        "max_model_len": (facts.context, serve.context),
        "max_num_seqs": (facts.sequences, serve.sequences),
        "max_num_batched_tokens": (facts.batched_tokens, serve.max_num_batched_tokens),
        "async_scheduling": (facts.async_scheduling, int(serve.async_scheduling)),
        "num_gpu_blocks_override": (facts.blocks, serve.num_gpu_blocks_override),
        "tensor_parallel_size": (facts.ranks, serve.tensor_parallel),
    }
    for name, (seen, value) in wanted.items():
        if seen is None or seen.line == 0:
            mend = "give the log from the server's arguments on"
            yield LineCheck(name, NOT_SEEN, str(value), "", 0, mend)
        else:
            state = PASS if seen.value == value else FAIL
            mend = f"the boot was not {envelope.name}'s: start it again, or compare it with its own envelope"
            yield LineCheck(name, state, str(value), str(seen.value), seen.line, "" if state == PASS else mend)


# --- the checkpoint and the weights ----------------------------------------------------------------------------------


def _size_checks(facts: LogFacts, shape: Shape, given: dict[str, Setting], multiprocessors: int) -> Iterator[LineCheck]:
    stored = checkpoint_bytes(shape)
    # whether a draft layer lies in the files cannot be told from the config
    yield _in_gib(
        "checkpoint size",
        Bytes(stored, stored + draft_bytes(shape)),
        None if facts.checkpoint is None else (facts.checkpoint.line, facts.checkpoint.value),
        MEND_MODEL,
    )
    loaded = facts.boot.last(ev.ModelLoaded)
    ranks = given["tensor_parallel_size"].value
    tokens, context = given.get("max_num_batched_tokens"), given.get("max_model_len")
    if tokens is None or context is None or not divides(shape, ranks):
        seen = (loaded.line, loaded.gib) if loaded else None
        yield _unknown("model loading", seen, "a setting that decides it is not in the log")
        return
    size = weights(shape, ranks, multiprocessors).total + memory.load_buffer_bytes(shape, tokens.value)
    slack = Bytes(SLACK_PER_LAYER.low * shape.layers, SLACK_PER_LAYER.high * shape.layers)
    rows = _rows(facts, shape, context.value)
    tables = Bytes(memory.rope_bytes(shape, rows.low), memory.rope_bytes(shape, rows.high))
    workspace = exactly(memory.attention_workspace_bytes(multiprocessors)) if facts.own else exactly(0)
    predicted = total((exactly(size), slack, tables, workspace))
    yield _in_gib("model loading", predicted, (loaded.line, loaded.gib) if loaded else None, MEND_MODEL)
    if facts.own:
        wanted = memory.rope_rows(shape, context.value, SM86)
        entries = facts.boot.reported("backend", "rope_table_rows")
        printed = str(facts.rope_rows) if facts.rope_rows is not None else ""
        state = NOT_SEEN if not printed else PASS if facts.rope_rows == wanted else FAIL
        mend = (
            "" if state == PASS else "the backend cuts the tables to the context: give the log of an unchanged backend"
        )
        yield LineCheck("RoPE table rows", state, str(wanted), printed, entries[-1].line if entries else 0, mend)


def _rows(facts: LogFacts, shape: Shape, context: int) -> Bytes:
    """Rows of the RoPE tables: cut where the backend says so, unknown where another one speaks."""
    if facts.rope_rows is not None:
        return exactly(facts.rope_rows)
    cut, full = memory.rope_rows(shape, context, SM86), memory.rope_rows(shape, context, STOCK)
    return exactly(cut) if facts.own else Bytes(cut, full)


# --- the cache's lines -----------------------------------------------------------------------------------------------


def _cache_checks(facts: LogFacts, shape: Shape, given: dict[str, Setting]) -> Iterator[LineCheck]:
    boot, pool = facts.boot, pool_of(shape)
    context, tokens, override = (
        given.get(name) for name in ("max_model_len", "max_num_batched_tokens", "num_gpu_blocks_override")
    )
    available = boot.last(ev.AvailableKv)
    if context is None or tokens is None or (override is None and available is None):
        why = "the context, the batch size or the size of the pool is not in the log"
        yield LineCheck("KV cache", NOT_SEEN, why, "", 0, MEND_LOG + ", or name its envelope")
        return
    m = tokens.value * (2 if given["async_scheduling"].value else 1)
    fixed = override.value if override else None
    # the pool's bytes are printed to two decimals: everything that follows from them is an interval
    bounds = None
    if available is not None:
        centre = round(available.gib * GIB)
        bounds = (centre - _HALF, centre + _HALF)
    low = predict(pool, context.value, m, fixed, bounds[0] if bounds else None)
    high = predict(pool, context.value, m, fixed, bounds[1] if bounds else None)
    yield from _override_check(facts, pool, override, bounds)
    yield _minimum_check(facts, low, high)
    yield from _capacity_checks(facts, pool, context.value, m, low, high)


def _override_check(
    facts: LogFacts, pool: Pool, override: Setting | None, bounds: tuple[int, int] | None
) -> Iterator[LineCheck]:
    lines = facts.boot.all(ev.KvOverride)
    if override is None:
        return
    name = "override"
    if not lines:
        ended = facts.boot.count(ev.EngineInitTook) or facts.boot.count(ev.KvCacheSize)
        yield LineCheck(name, FAIL if ended else NOT_SEEN, f"to {override.value}", "", 0, MEND_LOG)
        return
    low, high = (size // pool.bytes_per_block for size in bounds) if bounds else (0, 0)
    replaced = f"from {_range(low, high)} " if bounds else ""
    off = [
        line
        for line in lines
        # each worker measures its own memory, but the line about it is printed once
        if line.to != override.value or (bounds and len(lines) == 1 and not low <= line.applied_from <= high)
    ]
    shown = off[0] if off else lines[0]
    printed = f"from {shown.applied_from} to {shown.to}"
    state = FAIL if off else PASS
    yield LineCheck(name, state, f"{replaced}to {override.value}", printed, shown.line, MEND_MODEL if off else "")


def _minimum_check(facts: LogFacts, low: KvLines, high: KvLines) -> LineCheck:
    """Whether vLLM's check at start passes, as predicted."""
    boot, name = facts.boot, "engine minimum"
    refused = boot.last(ev.KvTooSmall)
    size = boot.last(ev.KvCacheSize)
    passes = f"at least {low.minimum} blocks; {_range(low.blocks, high.blocks)}: "
    passes += "starts" if low.passes and high.passes else "refused" if not high.passes else "starts or is refused"
    mend = MEND_MODEL
    if refused is not None:
        printed = f"refused: needs {refused.needed_gib} GiB of {refused.available_gib}"
        if refused.possible_tokens is not None:
            printed += f", estimated maximum length {refused.possible_tokens}"
        wanted = high if not low.passes else low
        texts = [line.refusal for line in (low, high) if line.refusal]
        if not texts:
            return LineCheck(name, FAIL, passes, printed, refused.line, mend)
        lengths = sorted(line.longest for line in (low, high))
        needed = wanted.refusal and f"({refused.needed_gib} GiB KV cache is needed" in wanted.refusal
        passes += f"; estimated maximum length {_range(lengths[0], lengths[1])}"
        if needed and refused.possible_tokens is None and lengths[0]:
            return LineCheck(name, NOT_SEEN, passes, printed, refused.line, MEND_LOG)
        right = bool(needed) and lengths[0] <= (refused.possible_tokens or 0) <= lengths[1]
        return LineCheck(name, PASS if right else FAIL, passes, printed, refused.line, "" if right else mend)
    if size is not None:
        right = low.passes or high.passes
        return LineCheck(name, PASS if right else FAIL, passes, "starts", size.line, "" if right else mend)
    return LineCheck(name, NOT_SEEN, passes, "", 0, MEND_LOG)


def _capacity_checks(
    facts: LogFacts, pool: Pool, context: int, m: int, low: KvLines, high: KvLines
) -> Iterator[LineCheck]:
    boot = facts.boot
    size, concurrency = boot.last(ev.KvCacheSize), boot.last(ev.MaxConcurrency)
    names = ("GPU KV cache size", "maximum concurrency")
    if size is None and concurrency is None:
        refused = boot.count(ev.KvTooSmall) > 0
        for name in names:
            if refused:
                yield LineCheck(name, NOT_APPLICABLE, "not printed by a boot that is refused", "", 0)
            else:
                yield LineCheck(name, NOT_SEEN, _range(low.tokens, high.tokens), "", 0, MEND_LOG)
        return
    if size is None:
        yield LineCheck(names[0], NOT_SEEN, f"{_range(low.tokens, high.tokens)} tokens", "", 0, MEND_LOG)
    else:
        blocks = _blocks_of(pool, context, m, size.tokens, low.blocks, high.blocks)
        state = FAIL if blocks is None else PASS
        also = f" ({blocks} blocks)" if blocks is not None and low.blocks != high.blocks else ""
        yield LineCheck(
            names[0],
            state,
            f"{_range(low.tokens, high.tokens)} tokens",
            f"{size.tokens:,} tokens{also}",
            size.line,
            MEND_MODEL if state == FAIL else "",
        )
    if concurrency is None:
        yield LineCheck(names[1], NOT_SEEN, f"{low.times:.2f}x", "", 0, MEND_LOG)
        return
    right = concurrency.tokens == context and round(low.times, 2) <= concurrency.times <= round(high.times, 2)
    yield LineCheck(
        names[1],
        PASS if right else FAIL,
        f"{_range(round(low.times, 2), round(high.times, 2))}x of {context:,} tokens",
        f"{concurrency.times:.2f}x of {concurrency.tokens:,} tokens",
        concurrency.line,
        "" if right else MEND_MODEL,
    )


def _blocks_of(pool: Pool, context: int, m: int, tokens: int, low: int, high: int) -> int | None:
    """The number of blocks, between low and high, for which vLLM prints exactly so many tokens; None: there is none."""
    request = pool.blocks_per_request(context, m)
    near = tokens * request // context
    return next(
        (n for n in range(near - 1, near + 3) if low <= n <= high and int(n / request * context) == tokens), None
    )


# --- what was measured of a GPU's memory -----------------------------------------------------------------------------


def _memory_checks(facts: LogFacts, shape: Shape, given: dict[str, Setting]) -> Iterator[LineCheck]:
    names = ("CUDA context, NCCL", "non-torch memory", "peak activations", "CUDA graphs")
    context, sequences, tokens = (
        given.get(name) for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
    )
    captured = facts.boot.last(ev.GraphCaptureFinished)
    if not facts.own:
        for name in names:
            yield LineCheck(name, NOT_APPLICABLE, "only of this product's backend", "", 0)
        return
    if facts.boot.count(ev.KvTooSmall):
        for name in names:
            yield LineCheck(name, NOT_APPLICABLE, "not printed by a boot that is refused", "", 0)
        return
    if context is None or sequences is None or tokens is None:
        yield _unknown("memory", None, "a setting that decides it is not in the log")
        return
    ranks = given["tensor_parallel_size"].value
    server = Server(context.value, sequences.value, ranks, tokens.value, False, 1, facts.capture_sizes)
    use = facts.usage
    sizes = {part.name: part.size for part in memory.other_parts(shape, server)}
    start = sizes["CUDA context"] + sizes["NCCL"]
    yield _in_gib(names[0], start, None if use is None else (use.line, use.total - use.free), MEND_MEMORY)
    kernels = sizes["kernels, libraries"]
    yield _in_gib(names[1], kernels, None if use is None else (use.line, use.non_torch), MEND_MEMORY)
    activations = sizes["indexer's logits"] + sizes["forward pass, sampler"]
    yield _in_gib(names[2], activations, None if use is None else (use.line, use.activations), MEND_MEMORY)
    if not facts.capture_sizes:
        yield LineCheck(names[3], NOT_APPLICABLE, "none are captured", "", 0)
        return
    seen = (captured.line, captured.gib) if captured else None
    yield _in_gib(names[3], sizes["CUDA graphs"], seen, MEND_MEMORY)


# --- words -----------------------------------------------------------------------------------------------------------


def _in_gib(name: str, predicted: Bytes, printed: tuple[int, float] | None, mend: str) -> LineCheck:
    """A size that vLLM prints in GiB to two decimals, against an interval."""
    low, high = gib_as_printed(predicted.low), gib_as_printed(predicted.high)
    shown = f"{low} GiB" if low == high else f"{low} to {high} GiB"
    if printed is None:
        return LineCheck(name, NOT_SEEN, shown, "", 0, MEND_LOG)
    line, value = printed
    right = float(low) <= round(value, 2) <= float(high)
    return LineCheck(name, PASS if right else FAIL, shown, f"{round(value, 2):g} GiB", line, "" if right else mend)


def _unknown(name: str, printed: tuple[int, float] | None, why: str) -> LineCheck:
    line, value = printed or (0, 0.0)
    return LineCheck(name, NOT_SEEN, why, f"{value:g} GiB" if printed else "", line, MEND_LOG)


def _range(low: float, high: float) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
