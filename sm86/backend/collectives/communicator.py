"""The class to use: one process per GPU, outside vLLM as well as in it.

    exchange = SocketExchange(path, rank, world)             # or GroupExchange(gloo_group)
    reduce = HostAllReduce(exchange, device=0)               # collective; SetupFailed is raised on all ranks or none
    out = reduce.all_reduce(tensor)                          # asynchronous on the current stream, may be captured
    reduce.check()                                           # CollectiveFailed once a peer did not come
    reduce.close()

Rules, the same as NCCL's: all ranks make the same calls in the same order, on one stream at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm86.backend.collectives import binding, link, segment
from sm86.backend.collectives.exchange import Exchange
from sm86.backend.collectives.failure import ABORTED, PEER_GONE, CollectiveFailed, SetupFailed, Verdict, mask_of
from sm86.backend.collectives.plan import MAX_BYTES, RANKS, Plan, default, takes
from sm86.backend.refusal import Refused

if TYPE_CHECKING:
    import torch

TIMEOUT_S = 300.0
"""How long a call waits for a peer that is alive: longer than one rank may compile kernels at a first boot while the
others have them. A process that has ended is noticed at once."""
WATCH_S = 0.05


def numa_node(bus: str) -> int:
    """NUMA node of a PCI device ("0000:65:00.0"), -1 where the machine has one node or does not say."""
    try:
        return int(Path(f"/sys/bus/pci/devices/{bus.lower()}/numa_node").read_text())
    except (OSError, ValueError):
        return -1


class HostAllReduce:
    """Sums of bf16 or fp32 messages of 16 bytes to `max_bytes`, equal to the last bit on all ranks.

    device: CUDA device index of this process; timeout_s: longest wait for a living peer.
    local_ranks: ranks that this process serves (more than one only to imitate a larger group; messages then have that
    many rows). on_failure: called once, from the watching thread, with CollectiveFailed.
    library: another build of the C interface (tests). Raises SetupFailed on every rank with one reason, or on none.
    """

    def __init__(
        self,
        exchange: Exchange,
        device: int,
        max_bytes: int = MAX_BYTES,
        timeout_s: float = TIMEOUT_S,
        local_ranks: int = 1,
        on_failure: Callable[[CollectiveFailed], None] | None = None,
        library: Callable[[], ctypes.CDLL] = binding.library,
    ) -> None:
        self.exchange = exchange
        self.device, self.max_bytes, self.timeout_s, self.local_ranks = device, max_bytes, timeout_s, local_ranks
        self.world = exchange.world * local_ranks
        self.first_rank = exchange.rank * local_ranks
        self.numa_node = -1
        self._device_type = "cpu"
        self._left: set[int] = set()
        self.failure: CollectiveFailed | None = None
        self.plans: dict[int, Plan] = {}
        self.on_failure = on_failure
        self._library_of = library
        self._map: segment.Mapping | None = None
        self._link: link.Link | None = None
        self._handle: int | None = None
        self._closing = threading.Event()
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise
        assert self._map is not None
        # A process that ends in an orderly way has left, not died: its peers must not report a failure.
        self._leaving = Finalize(None, self._mark_closed, (self._map.address,), exitpriority=0)
        self._watcher = threading.Thread(target=self._watch, name="sm86-allreduce", daemon=True)
        self._watcher.start()

    # --- set-up: every step ends with a gather, so all ranks leave at the same one ------------------------------------

    def _agree(self, what: str, fault: str | None) -> None:
        faults = self.exchange.gather(fault)
        bad = next((rank for rank, text in enumerate(faults) if text is not None), None)
        if bad is not None:
            raise SetupFailed(f"{what} (rank {bad}): {faults[bad]}")

    def _step(self, what: str, do: Callable[[], str | None]) -> None:
        try:
            fault = do()
        except (OSError, Refused, ValueError) as error:
            fault = str(error) or type(error).__name__
        self._agree(what, fault)

    def _set_up(self) -> None:
        if self.world not in RANKS:
            raise SetupFailed(f"{self.world} ranks; 2 to 8 are supported")
        offer: link.Offer | None = None
        fd = -1
        try:
            self._step("loading the library", self._load)
            self._same(
                "the ranks are not of one kind",
                [self.max_bytes, self.local_ranks, self._machine, os.geteuid(), self._source()],
            )
            size = self._library.sm86_ar_segment_bytes(self.world, self.max_bytes)

            def make() -> None:
                nonlocal offer, fd
                if self.exchange.rank == 0:
                    fd = segment.create(size)
                    offer = link.Offer(self.exchange.world)

            self._step("making the segment", make)
            where = self.exchange.gather([offer.address, offer.token] if offer else None)[0]

            def share() -> None:
                nonlocal fd
                if offer is not None:
                    self._link = offer.hand_out(fd)
                else:
                    self._link, fd = link.fetch(where[0], where[1], self.exchange.rank)
                self._map = segment.Mapping(fd, size)

            self._step("sharing the segment", share)
        finally:
            # the mapping keeps the memory from here on
            if fd >= 0:
                os.close(fd)
            if offer is not None:
                offer.close()
        self._step("preparing the segment", self._prepare)
        self._step("registering the segment with the GPU", self._open)

    def _same(self, what: str, value: list[Any]) -> None:
        values = self.exchange.gather(value)
        different = next((rank for rank, other in enumerate(values) if other != values[0]), None)
        if different is not None:
            raise SetupFailed(f"{what}: rank 0 has {values[0]}, rank {different} has {values[different]}")

    def _load(self) -> None:
        self._library = self._library_of()
        self._machine = link.same_machine()

    def _source(self) -> str:
        return self._library.sm86_ar_source_hash().decode()

    def _prepare(self) -> None:
        assert self._map is not None
        bus = ctypes.create_string_buffer(32)
        if self._library.sm86_ar_bus(self.device, bus, 32) == 0:
            self.numa_node = numa_node(bus.value.decode())
            self._device_type = "cuda"
        for local in range(self.local_ranks):
            rank = self.first_rank + local
            self._library.sm86_ar_prepare(self._map.address, self.world, self.max_bytes, rank, self.numa_node)

    def _open(self) -> str | None:
        assert self._map is not None
        error = ctypes.c_int()
        asked = binding.Open(
            base=self._map.address,
            max_bytes=self.max_bytes,
            timeout_ns=int(self.timeout_s * 1e9),
            device=self.device,
            world=self.world,
            first_rank=self.first_rank,
            local_ranks=self.local_ranks,
        )
        self._handle = self._library.sm86_ar_open(ctypes.byref(asked), ctypes.byref(error))
        return None if self._handle else binding.words_of(self._library, error.value)

    # --- calls --------------------------------------------------------------------------------------------------------

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether this tensor can go this way; depends on type, size, layout and kind of memory alone, which all ranks
        share."""
        import torch

        size = tensor.numel() * tensor.element_size()
        return (
            tensor.dtype in (torch.bfloat16, torch.float32)
            and tensor.device.type == self._device_type
            and tensor.is_contiguous()
            and size % self.local_ranks == 0
            and takes(size // self.local_ranks, self.max_bytes)
        )

    def all_reduce(
        self, tensor: torch.Tensor, out: torch.Tensor | None = None, plan: Plan | None = None, readers: int = 0
    ) -> torch.Tensor:
        """The sum over all ranks, into `out` (a new tensor; `tensor` itself is allowed).

        plan: how to launch, else `plans` by size, else the default. readers: how many of this process's ranks receive
        (0: all); the other rows of the result mean nothing. Raises CollectiveFailed once the group has failed, and
        ValueError for a tensor that `takes` refuses.
        """
        import torch

        self.check()
        if not self.takes(tensor):
            raise ValueError(f"not a message for the host all-reduce: {tensor.dtype} {tuple(tensor.shape)}")
        if tensor.data_ptr() % 16:
            tensor = tensor.clone()  # a view into another tensor; a new one is aligned
        if out is None:
            out = torch.empty_like(tensor)
        elif (out.dtype, out.device, out.numel()) != (tensor.dtype, tensor.device, tensor.numel()) or not (
            out.is_contiguous()
        ):
            raise ValueError("`out` must have the message's type, device and size")
        size = tensor.numel() * tensor.element_size() // self.local_ranks
        kind = binding.BF16 if tensor.dtype == torch.bfloat16 else binding.F32
        # (the CPU build of the library has no streams)
        stream = torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else None
        self.launch(tensor.data_ptr(), out.data_ptr(), size, kind, plan, readers, stream)
        return out

    def launch(
        self, source: int, target: int, size: int, kind: int, plan: Plan | None, readers: int, stream: int | None
    ) -> None:
        """`all_reduce` on addresses; size in bytes of one rank's message."""
        chosen = plan or self.plans.get(size) or default(size, self.world)
        arguments = binding.Launch(source, target, size, chosen.algorithm, kind, chosen.threads, chosen.pause, readers)
        code = self._library.sm86_ar_launch(self._handle, ctypes.byref(arguments), stream)
        if code:
            words = binding.words_of(self._library, code)
            raise RuntimeError(f"host all-reduce was not launched: {words} ({size} bytes, {chosen.name})")

    def words(self, size: int) -> str:
        """How a message of so many bytes is sent: `one-shot/256`."""
        return (self.plans.get(size) or default(size, self.world)).name

    def read_ns(self, reads: int = 2000) -> float:
        """Nanoseconds that this GPU needs for one read of the segment. Waits for the GPU."""
        return self._library.sm86_ar_read_ns(self._handle, reads)

    def entered(self) -> list[int]:
        """How many calls each rank has entered so far."""
        assert self._map is not None
        return [self._library.sm86_ar_entered(self._map.address, rank) for rank in range(self.world)]

    # --- failure ------------------------------------------------------------------------------------------------------

    def status(self) -> tuple[bool, Verdict | None]:
        """Whether the group has stopped, and why as far as known. Reads host memory only, never waits."""
        if self._map is None:
            return False, None
        found = binding.Status()
        self._library.sm86_ar_status(self._map.address, ctypes.byref(found))
        return bool(found.stopped), found.verdict()

    def check(self) -> None:
        """Raise CollectiveFailed once the group has failed, RuntimeError after `close`."""
        if self.failure is not None:
            raise self.failure
        if self._handle is None:
            raise RuntimeError("the host all-reduce is closed")

    def check_now(self) -> None:
        """`check` without the watching thread's delay: for who has just waited for the GPU."""
        self.check()
        stopped, verdict = self.status()
        if stopped:
            raise CollectiveFailed(verdict, self.timeout_s)

    def abort(self) -> None:
        """End every rank's waits now."""
        if self._map is not None:
            self._library.sm86_ar_stop(self._map.address, ABORTED, self.first_rank, 0)

    def _watch(self) -> None:
        assert self._map is not None and self._link is not None
        stopped_looks = 0
        while not self._closing.is_set():
            for process in self._link.gone(WATCH_S):
                ranks = range(process * self.local_ranks, (process + 1) * self.local_ranks)
                if self._library.sm86_ar_is_closed(self._map.address, ranks[0]):
                    self._left.update(ranks)
                elif not self._closing.is_set():
                    self._library.sm86_ar_stop(self._map.address, PEER_GONE, self.first_rank, mask_of(ranks))
            missed = self._missed()
            if missed and not self._closing.is_set():
                self._library.sm86_ar_stop(self._map.address, PEER_GONE, self.first_rank, mask_of(missed))
            stopped, verdict = self.status()
            # the record follows the stop word within microseconds, if there is one
            stopped_looks += stopped
            if verdict is not None or stopped_looks > 20:
                self.failure = CollectiveFailed(verdict, self.timeout_s)
                if self.on_failure is not None:
                    self.on_failure(self.failure)
                return

    def _missed(self) -> tuple[int, ...]:
        """Ranks that have left in order, and yet somebody who stays has entered a call that they never will."""
        if not self._left:
            return ()
        entered = self.entered()
        furthest = [count for rank, count in enumerate(entered) if rank not in self._left]
        # counts of 32 bits that wrap: which is ahead is the sign of their difference
        return tuple(
            rank for rank in sorted(self._left) if any(0 < (n - entered[rank]) % 2**32 < 2**31 for n in furthest)
        )

    def _mark_closed(self, address: int) -> None:
        self._closing.set()
        for local in range(self.local_ranks):
            self._library.sm86_ar_mark_closed(address, self.first_rank + local)

    def close(self) -> None:
        """Wait for the GPU, unmap, and tell the peers that this end is meant. Safe to call again."""
        self._closing.set()
        watcher = getattr(self, "_watcher", None)
        if watcher is not None and watcher is not threading.current_thread():
            watcher.join()
        leaving = getattr(self, "_leaving", None)
        if leaving is not None and leaving.still_active():
            leaving()
        if self._handle:
            self._library.sm86_ar_close(self._handle, self._map.address if self._map else None)
            self._handle = None
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._map is not None:
            self._map.close()
            self._map = None

    def __enter__(self) -> HostAllReduce:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):
            self.close()
