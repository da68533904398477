"""It never ran, was stopped, or was refused before vLLM; the installation."""

from __future__ import annotations

from sm86.boot.kinds.case import MEND, REFUSED, STOPPED, Case, Kind, died
from sm86.boot.scan import Line
from sm86.boot.state import CREATED, EXITED


def _launcher_refused(case: Case, lines: tuple[Line, ...]) -> bool:
    return died(case, lines) and bool(case.scanner.matches(MEND))


def _stopped(case: Case, lines: tuple[Line, ...]) -> bool:
    return died(case, lines) and case.state.exit_code in (0, 143, None) and bool(case.scanner.matches(STOPPED))


def _never_ran(case: Case, lines: tuple[Line, ...]) -> bool:
    return case.state.kind == CREATED or (bool(case.state.error) and case.state.kind == EXITED)


KINDS: tuple[Kind, ...] = (
    Kind(
        "container not started",
        "the engine could not start the container: {detail}",
        "mend what it names; docker inspect {name} has the rest",
        sees=_never_ran,
        could_not_run=True,
    ),
    Kind(
        "stopped from outside",
        "somebody stopped the server while it started, in phase {phase}",
        "start it again: invoke up --envelope {name}",
        sees=_stopped,
    ),
    Kind(
        "unknown argument",
        "vLLM does not take an argument it was given: {found}",
        "see that the image's vLLM is the pinned one (invoke build), and what the envelope's extra_args say",
        (
            r"error: unrecognized arguments",
            r"error: argument .*(?:invalid|expected)",
            r"error: the following arguments are required",
        ),
    ),
    Kind(REFUSED, "{found}", "mend what it names", (r"^sm86: ",), _launcher_refused, could_not_run=True),
    Kind(
        "wrong vLLM or broken import",
        "the engine's Python cannot import what it needs: {found}",
        "use the image of invoke build; with --engine local, the environment that has the pinned vLLM",
        (
            r"^(?:ModuleNotFoundError|ImportError): ",
            r"undefined symbol: ",
            r"cannot open shared object file",
            r"version `(?:GLIBC|CXXABI|GLIBCXX)_[\d.]+' not found",
            r"ModuleNotFoundError: No module named '(?:vllm|torch|flashinfer|sm86)",
        ),
    ),
)
