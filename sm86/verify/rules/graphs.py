"""Rules on CUDA graphs: captured whole, in the expected shape, and used for decoding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sm86.verify import events as ev
from sm86.verify.case import MEND_CUT, Case, failed, is_on, not_applicable, not_seen, passed, text_of
from sm86.verify.config_text import integers
from sm86.verify.findings import Finding

_NEEDED = {
    "FULL_DECODE_ONLY": ("decode, FULL",),
    "FULL": ("mixed prefill-decode, FULL",),
    "PIECEWISE": ("mixed prefill-decode, PIECEWISE",),
    "FULL_AND_PIECEWISE": ("decode, FULL", "mixed prefill-decode, PIECEWISE"),
}
"""Graph families that a mode captures, as the V1 runner's bars name them."""

_MEND_CAPTURE = "look for the cause just below the bar; CUDAGRAPH_DISPATCH_DEBUG=1 shows how batches are dispatched"


def graphs_captured(case: Case) -> Finding:
    """Every graph family reached 100 % for the requested sizes, and the family that the mode needs is among them."""
    graphs = case.envelope.graphs
    if not graphs.capture_sizes:
        return not_applicable("the spec captures no graphs")
    sizes = len(graphs.capture_sizes)
    families = {bar.family: bar for bar in case.boot.all(ev.GraphProgress)}
    finished = case.boot.last(ev.GraphCaptureFinished)
    ended = finished is not None or bool(case.boot.troubles) or case.boot.count(ev.EngineInitTook) > 0
    for family, bar in families.items():
        name = f"({family})" if family else "(the one bar)"
        if bar.done < bar.total or bar.percent < 100:
            text = f"capture of {name} stands at {bar.percent} %, {bar.done} of {bar.total}"
            if ended:
                return failed(f"{text}, and went no further", _MEND_CAPTURE, [bar, finished])
            return not_seen(f"{text}, where the log ends", MEND_CUT, [bar])
        if bar.total != sizes and _is_main(family):
            return failed(
                f"capture of {name} covers {bar.total} sizes, {sizes} were requested ({_listed(graphs.capture_sizes)})",
                "see which sizes vLLM left out: the largest may not exceed the number of sequences",
                [bar],
            )
    missing = [need for need in _NEEDED[graphs.mode] if not any(_covers(family, need) for family in families)]
    if missing:
        planned = case.boot.last(ev.GraphProfile)
        also = "; that capturing finished does not say of what" if finished else ""
        return not_seen(
            f"no bar for ({missing[0]}), which {graphs.mode} needs{also}",
            MEND_CUT if finished is None else "start the server with its progress bars on (use_tqdm_on_load)",
            [planned, finished, *families.values()],
        )
    if finished is None:
        return not_seen(
            "the bars are full, but the line that capturing finished is not in the log", MEND_CUT, families.values()
        )
    names = ", ".join(f"({family})" if family else "one family" for family in families)
    return passed(
        f"100 % of {names} for sizes {_listed(graphs.capture_sizes)}, {finished.gib:.2f} GiB",
        [*families.values(), finished],
    )


def _covers(family: str, need: str) -> bool:
    # the V2 runner names the mode only; the oldest bars name nothing
    return family in (need, need.rpartition(", ")[2], "")


def _is_main(family: str) -> bool:
    # a draft model's graphs have sizes of their own
    return any(_covers(family, need) for needs in _NEEDED.values() for need in needs)


@dataclass(frozen=True, slots=True)
class _Said:
    """One statement about the capture shape: by whom, what, on which line, and the word to show in a long line."""

    by: str
    name: str
    value: str
    line: ev.Event | None
    focus: str


def capture_shape(case: Case) -> Finding:
    """No drafts, one token of each sequence in a decode step, and the spec's graph mode and sizes."""
    graphs, engine = case.envelope.graphs, case.engine
    changed = case.boot.last(ev.GraphModeChanged) or case.boot.last(ev.GraphSizesChanged)
    if changed is not None and graphs.capture_sizes:
        what = f"graph mode by {changed.mode}" if isinstance(changed, ev.GraphModeChanged) else "capture sizes"
        return failed(
            f"vLLM replaced the requested {what}", "ask for a mode and sizes that vLLM takes as they are", [changed]
        )
    wanted = {
        "num_spec_tokens": "0",
        "uniform_decode_query_len": "1",
        "cudagraph_mode": graphs.mode,
        "cudagraph_capture_sizes": str(list(graphs.capture_sizes)),
        "max_cudagraph_capture_size": str(graphs.max_capture_size),
    }
    statements = [*_said_by_engine(case), *_said_by_others(case)]
    drafting = case.override("SPECULATIVE_CONFIG")
    because = f" (override SPECULATIVE_CONFIG={drafting.value})" if drafting is not None else ""
    for said in statements:
        if said.value != wanted[said.name]:
            return failed(
                f"{said.name} is {said.value} ({said.by}), the expected capture shape has {wanted[said.name]}{because}",
                "start the envelope as it is: no drafts, its graph mode and its sizes",
                [said.line],
                said.focus,
            )
    missing = [name for name in wanted if not any(said.name == name and said.by != _MANIFEST for said in statements)]
    if missing:
        return not_seen(f"the engine does not say {', '.join(missing)} in this log", MEND_CUT, [engine])
    return passed(
        f"num_spec_tokens 0, decode query length 1, {graphs.mode}, sizes {_listed(graphs.capture_sizes)}",
        [engine, case.boot.last(ev.DecodeQueryLength)],
        "'cudagraph_mode'",
    )


_MANIFEST = "the manifest"
_GRAPH_KEYS = ("cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size")
_PLUGIN_KEYS = {
    "num_spec_tokens": "num_spec_tokens",
    "uniform_decode_query_len": "uniform_decode_query_len",
    "capture_sizes": "cudagraph_capture_sizes",
    **{key: key for key in _GRAPH_KEYS},
}


def _said_by_engine(case: Case) -> Iterator[_Said]:
    engine, drafts = case.engine, case.config("speculative_config")
    if drafts is not None:
        tokens = _draft_tokens(drafts)
        yield _Said("the engine", "num_spec_tokens", tokens, engine, "speculative_config")
        length = str(int(tokens) + 1) if tokens.isdecimal() else tokens
        yield _Said("the engine", "uniform_decode_query_len", length, engine, "speculative_config")
    for key in _GRAPH_KEYS:
        value = case.compilation(key)
        if value is not None:
            yield _Said("the engine", key, _normal(value), engine, f"'{key}'")
    for line in case.boot.all(ev.DecodeQueryLength):
        yield _Said("the indexer", "uniform_decode_query_len", str(line.tokens), line, "next_n")


def _said_by_others(case: Case) -> Iterator[_Said]:
    for key, name in _PLUGIN_KEYS.items():
        for entry in case.boot.reported("backend", key):
            yield _Said("the plugin", name, _normal(text_of(entry.value)), entry, key)
    for line in case.boot.all(ev.DispatchLine):
        for key, name in _PLUGIN_KEYS.items():
            if key in line.said:
                yield _Said("the plugin", name, _normal(line.said[key]), line, key)
    for key in _GRAPH_KEYS:
        claim = case.entry(key)
        if claim is not None:
            yield _Said(_MANIFEST, key, _normal(text_of(claim.value)), claim, key)
    drafts = case.entry("speculative_config")
    if drafts is not None:
        yield _Said(_MANIFEST, "num_spec_tokens", _draft_tokens(text_of(drafts.value)), drafts, "")


def _draft_tokens(config: str) -> str:
    if config.lower() in ("none", "null"):
        return "0"
    found = re.search(r"num_spec(?:ulative)?_tokens\"?[=:] ?(\d+)", config)
    return found[1] if found else "more than 0"


def _normal(value: str) -> str:
    listed = integers(value)
    return value if listed is None else str(sorted(listed))


def _listed(sizes: tuple[int, ...]) -> str:
    return ",".join(map(str, sizes))


def dispatch(case: Case) -> Finding:
    """With dispatch diagnostics on: uniform decode batches replay graphs, none is skipped or missed."""
    override, lines = case.overrides().get("CUDAGRAPH_DISPATCH_DEBUG"), case.boot.all(ev.DispatchLine)
    if not lines and (override is None or not is_on(override.value)):
        return not_applicable("CUDAGRAPH_DISPATCH_DEBUG is off in this run")
    entry = override.entry if override is not None else None
    # a line that does not say what the batch was counts against it: it may have been a uniform decode
    lost = [line for line in lines if line.outcome in ("skip", "miss") and line.uniform is not False]
    lost += [line for line in lines if line.outcome == "eager" and line.uniform]
    lost.sort(key=lambda line: line.line)
    if lost:
        return failed(
            f"a uniform decode batch was dispatched without a graph ({lost[0].outcome})",
            "that line's reason is the next root cause (roadmap, Context Ladder)",
            [*lost, entry],
        )
    hits = [line for line in lines if line.outcome == "hit" and line.uniform is not False]
    if not hits:
        inert = (
            f"; the launcher says it is inert: {override.entry.text}" if override and override.state == "inert" else ""
        )
        return not_seen(
            f"CUDAGRAPH_DISPATCH_DEBUG is on, but no decode batch was reported{inert}",
            "send a request that decodes some tokens, then verify again",
            [entry],
        )
    others = [line for line in hits if line.said.get("cg_mode", "FULL") != "FULL"]
    if others and case.envelope.graphs.mode.startswith("FULL"):
        replayed = others[0].said["cg_mode"]
        return failed(
            f"a uniform decode batch replayed {replayed} graphs, {case.envelope.graphs.mode} replays FULL ones",
            "start the envelope as it is: its graph mode and its sizes",
            [*others, entry],
        )
    return passed("uniform decode batches replay graphs; none was skipped or missed", [*hits[:2], entry])
