"""Wordings of CUDA graphs: planned, captured, and dispatched."""

from __future__ import annotations

import re

from sm86.verify import events as ev
from sm86.verify.wordings.wording import GIB, At, Wording, values, wording


def _planned(at: At, found: re.Match[str]) -> ev.Event:
    graphs = {name: int(number) for name, number in re.findall(r"([A-Z_]+)=(\d+)", found[1])}
    return ev.GraphProfile(at.line, at.text, at.source, graphs)


def _progress(at: At, found: re.Match[str]) -> ev.Event:
    family = ", ".join(part for part in (found["what"], found["family"]) if part)
    done, total, percent = int(found["done"]), int(found["total"]), int(found["percent"])
    return ev.GraphProgress(at.line, at.text, at.source, family, done, total, percent)


def _dispatch(at: At, found: re.Match[str]) -> ev.Event:
    said = dict(re.findall(r"\b([a-z_]+)=(\S+)", found["rest"][:500]))
    uniform = {"true": True, "1": True, "false": False, "0": False}.get(said.get("uniform", "").lower())
    return ev.DispatchLine(at.line, at.text, at.source, found["outcome"], uniform, said)


GRAPHS: tuple[Wording, ...] = (
    wording("Profiling CUDA graph memory: ", r"Profiling CUDA graph memory: (.+)", _planned, open_end=True),
    wording("Estimated CUDA graph memory: ", rf"Estimated CUDA graph memory: {GIB}", values(ev.GraphEstimate, float)),
    wording(
        # (decode, FULL) in the V1 runner, (FULL) in the V2 runner, "graph shapes" before; drafts put a word before CUDA
        " CUDA graph",
        r"Capturing (?:(?P<what>[\w-]+) )?CUDA graph(?:s| shapes)(?: \((?P<family>[^()]*)\))?: +"
        r"(?P<percent>\d+)%\|[^|]*\| *(?P<done>\d+)/(?P<total>\d+) ",
        _progress,
        heads=("Capturing ",),
    ),
    wording(
        "Graph capturing finished in ",
        rf"Graph capturing finished in (\d+) secs, took {GIB}",
        values(ev.GraphCaptureFinished, float, float),
    ),
    wording(
        "CUDA graph pool memory: ",
        rf"CUDA graph pool memory: {GIB} \(actual\), {GIB} \(estimated\)",
        values(ev.GraphPool, float, float),
    ),
    wording(
        "SM86 cudagraph ",
        r"SM86 cudagraph (?P<outcome>hit|miss|skip|eager)\b(?P<rest>.*)",
        _dispatch,
        open_end=True,
    ),
)
