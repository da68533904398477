"""The end of a server that a command started for itself: its log is kept, and it is stopped, whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sm86.errors import Sm86Error
from sm86.files import write_atomic
from sm86.record.store import RESULTS_DIR, results_dir

if TYPE_CHECKING:
    from sm86.boot.state import EngineState
    from sm86.host.engine import ServerEngine

Say = Callable[[str], object]


def was_started(server: ServerEngine, before: EngineState) -> bool:
    """Whether there is a server, or what is left of one, that was not there `before`. One that cannot be asked counts
    as started: it may hold the GPUs."""
    from sm86.boot.state import MISSING

    try:
        now = server.state()
    except Sm86Error:
        return True
    return now.kind != MISSING and now != before


def keep_log(server: ServerEngine, say: Say, results: Path = RESULTS_DIR) -> Path | None:
    """The server's log, beside the records of its envelope: stopping a container takes its log with it, and a fault
    needs it. `say` is told where it lies, or why there is none; None then, or where the server said nothing."""
    path = results_dir(results) / server.envelope.name / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-server.log"
    try:
        text = b"".join(server.log_chunks(follow=False, this_run=True))
        if not text:
            return None
        write_atomic(path, text)
    except Sm86Error as error:
        say(f"the server's log cannot be kept: {error.what}")
        return None
    say(f"the server's log is kept: {path}")
    return path


def end(
    server: ServerEngine, before: EngineState, say: Say, results: Path = RESULTS_DIR, stop: bool = True
) -> Path | None:
    """Keep the log of what this command started and stop it; gives the log's place. before: the state ahead of the
    start; nothing is stopped, and nothing said, where that start came to nothing. stop: False lets it run on."""
    if not was_started(server, before):
        return None
    try:
        log = keep_log(server, say, results)
        if stop:
            say(f"stopping {server.describe()}")
            server.stop()
    except KeyboardInterrupt:
        # who is impatient must not leave a server on the GPUs
        if stop:
            server.stop()
        raise
    return log
