"""Decoding under the profiler: streams, start in the middle of them, stop. Effects: network.

Started while decoding and not before: CUPTI can lose kernels after the GPU has idled, and a prefill would be in it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sm86.errors import CheckFailed
from sm86.measure.client import REFUSED, Cancellation, Client, Request, ServerFault
from sm86.measure.progress import Progress

START, STOP = "/start_profile", "/stop_profile"
TICK_S = 0.02


@dataclass(frozen=True, slots=True)
class Profiled:
    """What was done. started: seconds since the epoch before the profiler was armed; tokens: decoded by all together;
    recording_s: from the start to the end of the streams; export_s: the answer to the stop."""

    started: float
    tokens: int
    recording_s: float
    export_s: float


def record(
    client: Client, stopper: Client, requests: Sequence[Request], settled: int, envelope: str, progress: Progress
) -> Profiled:
    """Send all requests, arm the profiler when each has `settled` tokens, follow them to their end, stop it.

    stopper: the same server with the patience that writing a trace takes. The profiler is stopped in every case, also
    after an interrupt. Raises CheckFailed: the server failed, or ended its streams before it could be armed.
    """
    cancelled = Cancellation()
    counts = [0] * len(requests)
    faults: list[ServerFault] = []
    progress.stage("decode under the profiler", sum(request.max_tokens for request in requests), "tokens")

    def follow(index: int) -> None:
        def came(tokens: int) -> None:
            counts[index] += tokens
            progress.advance(tokens)

        try:
            client.stream(requests[index], came, cancelled)
        except ServerFault as fault:
            if not cancelled.is_set():
                faults.append(fault)
                cancelled.set()

    threads = [threading.Thread(target=follow, args=(index,), daemon=True) for index in range(len(requests))]
    armed = False
    try:
        for thread in threads:
            thread.start()
        while min(counts) < settled and not faults and all(thread.is_alive() for thread in threads):
            time.sleep(TICK_S)
        _raise(faults, envelope)
        if not all(thread.is_alive() for thread in threads):
            raise CheckFailed(
                "a sequence ended before all of them decoded, so there was nothing to record",
                "see whether the server is shared, or its context is full: invoke logs",
            )
        started, began = time.time(), time.monotonic()
        armed = True
        _call(stopper, START, envelope)
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
        _raise(faults, envelope)
        recorded = time.monotonic() - began
        progress.stage("write the trace", 1, "")
        began = time.monotonic()
        _call(stopper, STOP, envelope)
        armed = False
        progress.advance(1)
        return Profiled(started, sum(counts), recorded, time.monotonic() - began)
    finally:
        cancelled.set()
        if armed:
            # a server that goes on recording would slow down for everyone
            with contextlib.suppress(Exception):
                stopper.post(STOP)


def _call(client: Client, path: str, envelope: str) -> None:
    try:
        client.post(path)
    except ServerFault as fault:
        _raise([fault], envelope)


def _raise(faults: Sequence[ServerFault], envelope: str) -> None:
    if not faults:
        return
    fault = faults[0]
    said = (fault.server_said,) if fault.server_said else ()
    if fault.kind == REFUSED and fault.status == 404:
        raise CheckFailed(
            f"the server has no {START}: {fault.problem}",
            "it runs without a profiler: start it with SM86_PROFILE_STEPS=50 as an override",
            said,
        )
    raise CheckFailed(
        f"the server failed while it was profiled: {fault.problem}",
        f"its log has the reason: invoke logs --envelope {envelope}",
        said,
    )
