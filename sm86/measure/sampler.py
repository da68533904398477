"""Reading /metrics beside a run: before, while it goes on, after. Effects: network, a thread."""

from __future__ import annotations

import threading
import time

from sm86.measure.client import Client, ServerFault
from sm86.measure.metrics import Counters, counters

INTERVAL_S = 1.0
"""Rendering the metrics costs the server's front end some milliseconds; more often would disturb what is measured."""

SETTLE_S = 5.0


def read(client: Client) -> Counters | None:
    """The counters now, timed in the middle of the request; None where the server has no /metrics."""
    sent = time.perf_counter()
    try:
        text = client.get_text("/metrics")
    except ServerFault:
        return None
    took = time.perf_counter() - sent
    return counters(text, sent + took / 2, took / 2)


def read_idle(client: Client, settle_s: float = SETTLE_S) -> Counters | None:
    """The counters once no request is running any more, or as they are after `settle_s` seconds."""
    deadline = time.perf_counter() + settle_s
    while True:
        now = read(client)
        idle = now is None or not (now.running or now.waiting)
        if idle or time.perf_counter() > deadline:
            return now
        time.sleep(0.03)


class Sampler:
    """Reads the counters every `interval_s` seconds between `__enter__` and `__exit__`; `taken` holds them in order."""

    def __init__(self, client: Client, interval_s: float = INTERVAL_S) -> None:
        self._client = client
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.taken: list[Counters] = []

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(self._client.limits.answer_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            now = read(self._client)
            if now is not None:
                self.taken.append(now)
            self._stop.wait(self._interval_s)
