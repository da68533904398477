"""CUDA work of the probe, as a program of its own: prints one JSON object a line, and says what it is about to do
before it does it, so that a copy which never ends is named by whoever waits.

    {"cuda": "ok", "devices": ["0000:01:00.0", ...]}   or   {"cuda": "missing" | "error", "words": "..."}
    {"doing": "copy", "pair": [0, 1]}   {"copy": {"source": 0, "target": 1, "access": true, "state": "right", ...}}
    {"doing": "link", "gpu": 0}         {"link": {"gpu": 0, "to_gpu": 25.1, "from_gpu": 26.0, "generation": 4, ...}}
    {"doing": "together"}               {"together": {"0": 12.5, "1": 12.5}}
    {"end": true}

It speaks to the driver's own library, needs no CUDA toolkit and imports nothing of this package: any Python runs it,
also that of an image. Argument: the library's name, libcuda.so.1 by default.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

MIB = 1 << 20
CHECKED = 8 * MIB
ROUNDS = 4
ODD = ((0, CHECKED), (1, 4097), (4096 - 8, 16), (513, 3 * MIB + 5))
"""(offset, size) of the checked copies, one for each round: whole and aligned, and across pages at odd places."""

TIMED = 64 * MIB
TIMED_COPIES = 4
LOAD_S = 0.4
ALREADY_ENABLED = 704


class CudaError(Exception):
    """The driver's library refused; number: its CUresult."""

    def __init__(self, call: str, number: int, words: str) -> None:
        super().__init__(f"{call}: {words} ({number})")
        self.number = number


class Cuda:
    """The few calls of the driver's library that the probe needs; every one raises CudaError when it is refused."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        """Raises OSError where the library is not there, CudaError where it finds no driver or no GPU."""
        self._lib = ctypes.CDLL(library)
        self._call("cuInit", ctypes.c_uint(0))
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        self._devices: list[int] = []
        self.buses: list[str] = []
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._peers: set[tuple[int, int]] = set()
        for ordinal in range(count.value):
            device, text = ctypes.c_int(), ctypes.create_string_buffer(32)
            self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
            self._call("cuDeviceGetPCIBusId", text, ctypes.c_int(32), device)
            self._devices.append(device.value)
            self.buses.append(text.value.decode().lower())

    def alloc(self, gpu: int, size: int) -> int:
        self._on(gpu)
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def free(self, gpu: int, pointer: int) -> None:
        self._on(gpu)
        self._call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def fill(self, gpu: int, pointer: int, value: int, size: int) -> None:
        self._on(gpu)
        self._call("cuMemsetD8_v2", ctypes.c_uint64(pointer), ctypes.c_ubyte(value), ctypes.c_size_t(size))
        self._call("cuCtxSynchronize")

    def upload(self, gpu: int, pointer: int, data: bytes) -> None:
        self._on(gpu)
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), ctypes.c_char_p(data), ctypes.c_size_t(len(data)))
        self._call("cuCtxSynchronize")

    def download(self, gpu: int, pointer: int, size: int) -> bytes:
        self._on(gpu)
        data = ctypes.create_string_buffer(size)
        self._call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(pointer), ctypes.c_size_t(size))
        return data.raw

    def can_access(self, gpu: int, peer: int) -> bool:
        """Whether `gpu` may reach the memory of `peer`, as the driver says."""
        found = ctypes.c_int()
        call = "cuDeviceCanAccessPeer"
        self._call(call, ctypes.byref(found), ctypes.c_int(self._devices[gpu]), ctypes.c_int(self._devices[peer]))
        return bool(found.value)

    def enable(self, gpu: int, peer: int) -> None:
        """Let `gpu` reach the memory of `peer`; once is enough."""
        if (gpu, peer) in self._peers:
            return
        far = self._on(peer)
        self._on(gpu)
        try:
            self._call("cuCtxEnablePeerAccess", far, ctypes.c_uint(0))
        except CudaError as error:
            if error.number != ALREADY_ENABLED:
                raise
        self._peers.add((gpu, peer))

    def peer_copy(self, target: int, to: int, source: int, start: int, size: int, times: int = 1) -> None:
        """Copy between two GPUs, `times` over, and wait for it."""
        here = self._on(source)
        there = self._on(target)
        arguments = (ctypes.c_uint64(to), there, ctypes.c_uint64(start), here, ctypes.c_size_t(size))
        for _ in range(times):
            self._call("cuMemcpyPeer", *arguments)
        for gpu in (source, target):
            self._on(gpu)
            self._call("cuCtxSynchronize")

    def pinned(self, gpu: int, size: int) -> int:
        """Page-locked memory of the host, touched by this thread."""
        self._on(gpu)
        pointer = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(pointer), ctypes.c_size_t(size), ctypes.c_uint(1))
        ctypes.memset(pointer, 0x5A, size)
        return int(pointer.value or 0)

    def stream(self, gpu: int) -> int:
        self._on(gpu)
        handle = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(handle), ctypes.c_uint(1))
        return int(handle.value or 0)

    def queue(self, gpu: int, stream: int, pointer: int, host: int, size: int, to_gpu: bool) -> None:
        """One copy between pinned host memory and the GPU, not waited for."""
        self._on(gpu)
        device, memory = ctypes.c_uint64(pointer), ctypes.c_void_p(host)
        order = (device, memory) if to_gpu else (memory, device)
        name = "cuMemcpyHtoDAsync_v2" if to_gpu else "cuMemcpyDtoHAsync_v2"
        self._call(name, *order, ctypes.c_size_t(size), ctypes.c_void_p(stream))

    def wait(self, gpu: int, stream: int) -> None:
        self._on(gpu)
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def _on(self, gpu: int) -> ctypes.c_void_p:
        if gpu not in self._contexts:
            context = ctypes.c_void_p()
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(self._devices[gpu]))
            self._contexts[gpu] = context
        self._call("cuCtxSetCurrent", self._contexts[gpu])
        return self._contexts[gpu]

    def _call(self, name: str, *arguments: Any) -> None:
        number = int(getattr(self._lib, name)(*arguments))
        if number:
            words = ctypes.c_char_p()
            told = self._lib.cuGetErrorString(ctypes.c_int(number), ctypes.byref(words)) == 0 and words.value
            raise CudaError(name, number, told.decode("utf-8", "replace") if told else "no words for it")


Say = Callable[[dict[str, Any]], None]


def try_copies(cuda: Any, say: Say) -> bool:
    """Every direction of every pair. False after a fault that leaves CUDA unusable in this process."""
    count = len(cuda.buses)
    for source in range(count):
        for target in range(count):
            if source == target:
                continue
            say({"doing": "copy", "pair": [source, target]})
            result: dict[str, Any] = {"source": source, "target": target}
            try:
                result |= _copy(cuda, source, target)
            except CudaError as error:
                say({"copy": {**result, "state": "error", "problem": str(error)}})
                if error.number != 2:  # out of memory leaves everything else as it was
                    return False
                continue
            say({"copy": result})
    return True


def _copy(cuda: Any, source: int, target: int) -> dict[str, Any]:
    access = cuda.can_access(target, source) and cuda.can_access(source, target)
    through = "host"
    if access:
        try:
            cuda.enable(target, source)
            cuda.enable(source, target)
            through = "peer"
        except CudaError as error:
            return {"access": access, "state": "refused", "problem": str(error)}
    start, to = cuda.alloc(source, TIMED), cuda.alloc(target, TIMED)
    try:
        wrong = _wrong_bytes(cuda, source, start, target, to)
        if wrong:
            return {"access": access, "through": through, "state": "wrong", "wrong": wrong}
        began = time.perf_counter()
        cuda.peer_copy(target, to, source, start, TIMED, TIMED_COPIES)
        seconds = max(time.perf_counter() - began, 1e-9)
        rate = TIMED * TIMED_COPIES / seconds / 1e9
        return {"access": access, "through": through, "state": "right", "rate": round(rate, 2)}
    finally:
        with contextlib.suppress(CudaError):
            cuda.free(source, start)
            cuda.free(target, to)


def _wrong_bytes(cuda: Any, source: int, start: int, target: int, to: int) -> int:
    """How many bytes came other than they were sent, or were touched around what was sent. New values each round, in
    the same places: what an earlier round left behind is then a wrong value, too."""
    made = random.Random(f"{source}-{target}")
    wrong = 0
    for number in range(ROUNDS):
        offset, size = ODD[number % len(ODD)]
        sent, before = made.randbytes(size), (0x3C ^ number * 0x11) & 0xFF
        cuda.fill(target, to, before, CHECKED)
        cuda.upload(source, start + offset, sent)
        cuda.peer_copy(target, to + offset, source, start + offset, size)
        got = cuda.download(target, to, CHECKED)
        expected = bytes([before]) * offset + sent + bytes([before]) * (CHECKED - offset - size)
        if got != expected:
            wrong += sum(1 for one, other in zip(got, expected, strict=True) if one != other)
    return wrong


def try_links(cuda: Any, say: Say, look: Callable[[str], dict[str, Any]], load_s: float = LOAD_S) -> None:
    """Each GPU's link alone, with what the driver tells of it meanwhile; then all at once."""
    parts: dict[int, tuple[int, int, int]] = {}
    for gpu, bus in enumerate(cuda.buses):
        say({"doing": "link", "gpu": gpu})
        try:
            _go_near(bus)
            parts[gpu] = (cuda.alloc(gpu, TIMED), cuda.pinned(gpu, TIMED), cuda.stream(gpu))
            before = look(bus)
            to_gpu, under_load = _rate(cuda, gpu, parts[gpu], True, load_s, partial(look, bus))
            from_gpu, _ = _rate(cuda, gpu, parts[gpu], False, load_s, dict)
            after = look(bus)
        except CudaError as error:
            say({"link": {"gpu": gpu, "problem": str(error)}})
            parts.pop(gpu, None)
            if error.number != 2:
                return
            continue
        grown = after["replays"] - before["replays"] if "replays" in after and "replays" in before else None
        say({"link": {"gpu": gpu, "to_gpu": to_gpu, "from_gpu": from_gpu, "replays": grown,
                      "generation": under_load.get("generation"), "width": under_load.get("width")}})  # fmt: skip
    if len(parts) > 1:
        say({"doing": "together"})
        with contextlib.suppress(CudaError):
            say({"together": _together(cuda, parts, load_s)})


def _rate(
    cuda: Any, gpu: int, part: tuple[int, int, int], to_gpu: bool, load_s: float, look: Callable[[], dict[str, Any]]
) -> tuple[float, dict[str, Any]]:
    """GB/s of copies for at least `load_s` seconds, and what `look` saw while copies were under way."""
    pointer, host, stream = part
    cuda.queue(gpu, stream, pointer, host, TIMED, to_gpu)
    cuda.wait(gpu, stream)
    copied, spent = 0, 0.0
    seen: dict[str, Any] = {}
    while spent < load_s:
        began = time.perf_counter()
        for _ in range(8):
            cuda.queue(gpu, stream, pointer, host, TIMED, to_gpu)
        # in the middle of the load: a link needs some milliseconds to train up
        looked = look() if spent > load_s / 4 and not seen else {}
        cuda.wait(gpu, stream)
        spent += max(time.perf_counter() - began, 1e-9)
        copied += 8
        seen = seen or looked
    return round(copied * TIMED / spent / 1e9, 2), seen or look()


def _together(cuda: Any, parts: dict[int, tuple[int, int, int]], load_s: float) -> dict[str, float]:
    began, copies, done = time.perf_counter(), 0, {}
    while time.perf_counter() - began < load_s:
        copies += 4
        for _ in range(4):
            for gpu, (pointer, host, stream) in parts.items():
                cuda.queue(gpu, stream, pointer, host, TIMED, True)
        for gpu, (_, _, stream) in parts.items():
            cuda.wait(gpu, stream)
            done[gpu] = time.perf_counter()
    return {str(gpu): round(copies * TIMED / max(done[gpu] - began, 1e-9) / 1e9, 2) for gpu in parts}


def _go_near(bus: str) -> None:
    """Run on the CPUs of the GPU's NUMA node, so that its pinned memory lies there."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        with open(f"/sys/bus/pci/devices/{bus}/local_cpulist", encoding="ascii") as file:
            runs = [part.partition("-") for part in file.read().strip().split(",")]
        os.sched_setaffinity(0, {cpu for low, _, high in runs for cpu in range(int(low), int(high or low) + 1)})


def nvml_look() -> Callable[[str], dict[str, Any]]:
    """A question to NVML about one GPU's link; one that answers nothing where NVML is not there."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception:
        return lambda bus: {}

    def look(bus: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with contextlib.suppress(Exception):
            gpu = nvml.nvmlDeviceGetHandleByPciBusId(bus.encode())
            for name, ask in (
                ("generation", nvml.nvmlDeviceGetCurrPcieLinkGeneration),
                ("width", nvml.nvmlDeviceGetCurrPcieLinkWidth),
                ("replays", nvml.nvmlDeviceGetPcieReplayCounter),
            ):
                with contextlib.suppress(Exception):
                    found[name] = int(ask(gpu))
        return found

    return look


def main(library: str) -> None:
    def say(line: dict[str, Any]) -> None:
        print(json.dumps(line), flush=True)

    # CUDA's own order is by speed; the driver's tools count in bus order
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    try:
        cuda = Cuda(library)
    except OSError as error:
        say({"cuda": "missing", "words": str(error)})
        return
    except (CudaError, AttributeError) as error:
        say({"cuda": "error", "words": str(error)})
        return
    say({"cuda": "ok", "devices": cuda.buses})
    # links first: a wrong or hanging peer copy may be the last thing this process does
    try_links(cuda, say, nvml_look())
    try_copies(cuda, say)
    say({"end": True})


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "libcuda.so.1")
