"""Wordings of the server's life: ready, serving, ending, dying."""

from __future__ import annotations

import re

from sm86.verify import events as ev
from sm86.verify.wordings.wording import At, Build, Wording, fixed, values, wording


def _raised(at: At, found: re.Match[str]) -> ev.Event:
    return ev.ErrorRaised(at.line, at.text, at.source, found["exception"], found["message"])


def _dead(cause: str) -> Build:
    return fixed(ev.EngineDead, cause)


LIFE: tuple[Wording, ...] = (
    wording("init engine (", r"init engine \([^)]*\) took ([\d.]+) s", values(ev.EngineInitTook, float)),
    wording(
        "Starting vLLM ",
        r"Starting vLLM (?:API )?server(?: \d+)? on (\S+)",
        values(ev.ServerStarting, str),
        open_end=True,
    ),
    wording("Application startup complete", r"Application startup complete\.", fixed(ev.StartupComplete)),
    wording(
        "[shutdown] API server",
        r"\[shutdown\] API server: shutdown triggered",
        fixed(ev.ShutdownStarted, True),
        since=(0, 22),
    ),
    wording(
        "[shutdown] EngineCore",
        r"\[shutdown\] EngineCore: trigger received signal",
        fixed(ev.ShutdownStarted, True),
        since=(0, 22),
    ),
    wording("Shutdown initiated", r"Shutdown initiated", fixed(ev.ShutdownStarted, True), until=(0, 25)),
    wording("Shutting down", r"Shutting down\s*$", fixed(ev.ShutdownStarted, False)),
    wording("Traceback (most recent call last)", r"Traceback \(most recent call last\)", fixed(ev.Traceback)),
    *(
        wording(
            f"{kind}: ",
            rf"(?P<exception>(?:[A-Za-z_]\w*\.)*[A-Z]?\w*{kind}): (?P<message>.*)",
            _raised,
            trouble=True,
        )
        for kind in ("Error", "Exception")
    ),
    wording("EngineCore failed to start", r"EngineCore failed to start", _dead("start"), trouble=True),
    wording("WorkerProc failed to start", r"WorkerProc failed to start", _dead("start"), trouble=True),
    wording(
        "Engine core initialization failed",
        r"Engine core initialization failed",
        _dead("start"),
        anywhere=True,
        trouble=True,
    ),
    wording("encountered a fatal error", r"EngineCore encountered a fatal error", _dead("engine"), trouble=True),
    wording("EngineDeadError", r"(?:[\w.]+\.)?EngineDeadError\b", _dead("engine"), trouble=True),
    wording(
        "engine core exited unexpectedly",
        r"\[shutdown\] MPClient: engine core exited",
        _dead("engine"),
        heads=("[shutdown] MPClient: ",),
    ),
    wording(
        "died unexpectedly",
        r"(?:Worker proc|Engine core proc(?:ess)?) .*died unexpectedly",
        _dead("worker"),
        anywhere=True,
        trouble=True,
    ),
    wording("died with exit code", r"Process .* died with exit code", _dead("worker"), anywhere=True, trouble=True),
    wording("WorkerProc hit an exception", r"WorkerProc hit an exception", _dead("worker"), trouble=True),
    wording("Application startup failed", r"Application startup failed\.", _dead("server")),
    wording(
        "No available shared memory broadcast block",
        r"No available shared memory broadcast block found",
        fixed(ev.CollectiveStall),
    ),
)

TRAFFIC: tuple[Wording, ...] = (
    wording("GET /health ", r'\S+ - "GET /health HTTP/[\d.]+" (\d+)', values(ev.HealthLine, int), traffic=True),
    wording(
        " throughput: ",
        r"Engine \d+: Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s, "
        r"Running: (\d+) reqs, Waiting: (\d+) reqs,.*KV cache usage: ([\d.]+)%",
        values(ev.EngineStats, float, float, int, int, float),
        heads=("Engine ",),
        traffic=True,
    ),
)
