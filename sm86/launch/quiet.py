"""What the launcher adds to every argument list: the questions of our own tools stay out of the server's log. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sm86.launch import arguments
from sm86.spec.argv import QUIET, QUIET_PATHS

OF_THE_SAME_KIND = (QUIET, "--log-config-file", "--disable-uvicorn-access-log", "--no-disable-uvicorn-access-log")
"""Who gives one of these has decided what the access log holds."""


def added(argv: Sequence[str]) -> tuple[str, ...]:
    """The arguments to add, () where the list decides for itself.

    The health check asks every ten seconds and a benchmark reads the counters four times a second: without it most
    lines of a long log are theirs. Every other request keeps its line. Source: vLLM 0.26.0 and 0.28.0,
    entrypoints/openai/cli_args.py.
    """
    if any(item.flag in OF_THE_SAME_KIND for item in arguments.items(argv)):
        return ()
    return (QUIET, QUIET_PATHS)
