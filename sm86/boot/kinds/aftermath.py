"""What is left to say when no cause is in the log: consequences, hangs, ends without a word."""

from __future__ import annotations

from sm86.boot import deadline
from sm86.boot.kinds.case import ENGINE_ERROR, Case, Kind, died, gave_up, is_consequence
from sm86.boot.scan import Line
from sm86.boot.state import MISSING

_PROCESS_MISSED = (r"Engine core initialization failed", r"WorkerProc initialization failed")


def _died_silently(case: Case, lines: tuple[Line, ...]) -> bool:
    # a worker that is killed leaves no line of its own, only those of the processes that miss it
    told = case.scanner.matches(ENGINE_ERROR)
    return bool(lines) and all(is_consequence(line) for line in told)


def _died_silently_of_memory(case: Case, lines: tuple[Line, ...]) -> bool:
    return case.memory_ran_out and _died_silently(case, lines)


def _restarting(case: Case, lines: tuple[Line, ...]) -> bool:
    return case.state.restart_count > 0


def _by_signal(case: Case, lines: tuple[Line, ...]) -> bool:
    return died(case, lines) and (case.state.exit_code or 0) > 128


KINDS: tuple[Kind, ...] = (
    Kind(
        "bad health",
        "the log says that the API is up, but it answers {health}",
        "see its last lines: invoke logs --envelope {name} --tail 100; then invoke down and invoke up",
        sees=gave_up(deadline.UNREADY),
    ),
    Kind(
        "worker died",
        "a process of the engine died without saying why: {found}",
        "see dmesg for its number (Xid, segfault, out of memory); its last lines may say where it was",
        (
            r"[Ww]orker proc .* died unexpectedly",
            r"Engine core process .* died unexpectedly",
            r"Process .* died with exit code",
            r"Failed core proc\(s\): \{[^}]+: -\d+",
            r"!!!!!!! (?:Segfault|Aborted) encountered !!!!!!!",
            r"Segmentation fault",
        ),
    ),
    Kind(
        "host OOM",
        "a process of the engine died without a word while the machine's memory ran out",
        "close other programs or add swap, then start again: reading and repacking the weights needs it once",
        _PROCESS_MISSED,
        _died_silently_of_memory,
    ),
    Kind(
        "worker died",
        "a process of the engine died without a word",
        "see dmesg for its end (Xid, segfault, out of memory); its last lines may say where it was",
        _PROCESS_MISSED,
        _died_silently,
    ),
    Kind(
        "killed by a signal",
        "the server was ended by signal {signal} (exit code {code})",
        "if nobody stopped it, see dmesg and the last lines; then start it again",
        sees=_by_signal,
    ),
    Kind(
        ENGINE_ERROR,
        "the engine failed in phase {phase}: {found}",
        "the traceback above it in the log says where: invoke logs --envelope {name}",
        (r"^(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception)(?::|$)",),
        died,
    ),
    Kind(
        "restart loop",
        "the server died and was started again {restarts} times (at most {cap})",
        "its own lines say why it dies; invoke logs --envelope {name} has all of them",
        sees=_restarting,
    ),
    Kind(
        "silent hang",
        "the server said nothing for {seconds} s in phase {phase}",
        "see nvidia-smi: GPUs busy at low power means that ranks wait for each other; then invoke down and invoke up",
        sees=gave_up(deadline.SILENCE),
    ),
    Kind(
        "gave up",
        "the server was not ready after {seconds} s, in phase {phase}",
        "it may only be slow: see its last lines; raise limit_s under [boot] in the envelope's file if it still works",
        sees=gave_up(deadline.LIMIT),
    ),
    Kind(
        "ended early",
        "the server ended by itself with exit code {code} in phase {phase}, and named no error",
        "see its last lines: invoke logs --envelope {name} --tail 100",
        sees=lambda case, lines: died(case, lines) and case.state.kind != MISSING,
    ),
    Kind(
        "removed",
        "somebody removed the server while it started",
        "start it again: invoke up --envelope {name}",
        sees=lambda case, lines: case.state.kind == MISSING,
    ),
)
