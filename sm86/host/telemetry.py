"""Watching the GPUs beside a run: a child process asks NVML, a thread takes down what it says. Nothing waits for it.

A driver that hangs, a GPU that falls off the bus, a machine without NVML: the run goes on, and what was not seen is
told as such by `sm86.measure.telemetry`.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sm86.json_text import parse as parse_json

QUERY = Path(__file__).with_name("telemetry_query.py")
INTERVAL_S = 1.0

MOST_SAMPLES = 4096
"""More than an hour of seconds; beyond it every second sample is given up, and only every second one taken."""

END_S = 0.5
"""How long the child may take to end by itself. One that is stuck inside the driver is killed and not waited for."""


class Watcher:
    """`gpus`: what does not change, by GPU; `taken`: one mapping a second (see `telemetry_query`); `problem`: why there
    is nothing, "" where there is. Lists are complete after `stop`."""

    def __init__(self, interval_s: float = INTERVAL_S, uuids: Sequence[str] = ()) -> None:
        """uuids: see `only`; all GPUs by default."""
        self.interval_s = interval_s
        self._uuids = tuple(uuids)
        self.gpus: list[Mapping[str, Any]] = []
        self.taken: list[dict[str, Any]] = []
        self.problem = ""
        self._stride = 1
        self._seen = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Returns at once; raises nothing."""
        try:
            self._child = subprocess.Popen(
                (sys.executable, "-P", str(QUERY), str(self.interval_s)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self.problem = f"the question to NVML cannot be started: {error.strerror or error}"
            return
        self._thread = threading.Thread(target=self._read, args=(self._child,), daemon=True, name="telemetry")
        self._thread.start()

    def stop(self) -> None:
        """Ends within about a second, whatever the driver does; twice is once."""
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(OSError):
            assert child.stdin is not None
            child.stdin.close()
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            # no waiting for its end: stuck inside the driver it cannot even be killed
            child.kill()
        if self._thread is not None:
            self._thread.join(END_S)
        if not self.gpus and not self.problem:
            self.problem = "NVML did not answer"
        self.only(self._uuids)

    def only(self, uuids: Sequence[str]) -> None:
        """Forget the GPUs of other UUIDs: one that serves nothing would look like a slow one. Nothing is forgotten
        where none is named or none is known by these. For a watcher that has stopped."""
        places = [place for place, gpu in enumerate(self.gpus) if gpu.get("uuid") in uuids]
        if not places:
            return
        self.gpus = [self.gpus[place] for place in places]
        for sample in self.taken:
            gpus = sample.get("gpus", ())
            sample["gpus"] = [gpus[place] for place in places if place < len(gpus)]

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        # the thread owns the pipe: closing it elsewhere would wait for a read that never ends
        with child.stdout as lines:
            for line in lines:
                try:
                    values = parse_json(line)
                except ValueError:
                    continue
                if isinstance(values, dict):
                    self._take(values)

    def _take(self, values: dict[str, Any]) -> None:
        if "problem" in values:
            self.problem = str(values["problem"])
        elif "at" not in values:
            self.gpus = list(values.get("gpus", ()))
        else:
            self._seen += 1
            if self._seen % self._stride == 0:
                self.taken.append(values)
            if len(self.taken) > MOST_SAMPLES:
                self.taken = self.taken[1::2]
                self._stride *= 2
