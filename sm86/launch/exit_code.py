"""A server whose engine died ends with code 1, so that a restart policy sees a failure.

vLLM's API process notices that its engine died, ends in good order, and so with code 0; Docker's `on-failure` then
restarts nothing. vLLM tells the death in its log alone (0.26.0: core_client.py, async_llm.py); what is logged there is
noted here, and the code is set at the very end, after vLLM's own clean-up. Nothing of vLLM is imported: the order of
its imports is what the backend's hooks depend on.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import sys

FAILED = 1

CLIENT = "vllm.v1.engine.core_client"
FRONT_END = "vllm.v1.engine.async_llm"
EXITED = "engine core exited unexpectedly"
DEAD = "EngineDeadError"

_died: list[str] = []


def watch() -> None:
    """Watch this process for the death of its engine (entry point `vllm.general_plugins`).

    The engine and its workers are children; they end with codes of their own and are left alone.
    """
    if multiprocessing.parent_process() is not None or _filters():
        return
    for name in (CLIENT, FRONT_END):
        # a filter on the logger itself, because vLLM's logging configuration replaces handlers
        logging.getLogger(name).addFilter(_Note())
    atexit.register(_end)


class _Note(logging.Filter):
    """Notes what tells of an engine's death, and lets every record pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        if tells_of_death(record):
            _died.append(record.name)
        return True


def tells_of_death(record: logging.LogRecord) -> bool:
    """Whether this log record says that the engine is dead."""
    kind = record.exc_info[0] if record.exc_info else None
    return EXITED in record.getMessage() or (kind is not None and kind.__name__ == DEAD)


def _filters() -> bool:
    return any(isinstance(each, _Note) for each in logging.getLogger(CLIENT).filters)


def _end() -> None:
    """Runs among the last things of the process: its children are ended, then the code is set."""
    if not _died:
        return
    for child in multiprocessing.active_children():
        child.terminate()
    for child in multiprocessing.active_children():
        child.join(timeout=5)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(FAILED)
