"""Hidden states that are not numbers stop the server before their token is served.

One small kernel per step counts rows with NaN or infinity among the rows that are sampled, and the count is copied to
pinned host memory on the same stream. Where vLLM waits for the sampled tokens anyway, the count has arrived too and is
read without a further wait: a step's tokens are returned only if it is zero.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

MESSAGE = "SM86 backend: hidden states of {rows} sampled rows held NaN or infinity; no token of this step is served"


@triton.jit(do_not_specialize=["stride"])
def count_bad_rows_kernel(hidden, stride, count, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    worst = tl.zeros([BLOCK], tl.int32)
    for first in range(0, SIZE, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(hidden + row * stride + at, mask=at < SIZE, other=0.0).to(tl.float32)
        # All exponent bits set: NaN or infinity.
        worst |= ((value.to(tl.int32, bitcast=True) & 0x7F800000) == 0x7F800000).to(tl.int32)
    if tl.max(worst, axis=0) > 0:
        tl.atomic_add(count, 1)


def count_bad_rows(hidden: torch.Tensor, count: torch.Tensor) -> None:
    """Add the number of rows of hidden [n, size] that are not finite to count, int32 [1], on the device."""
    if hidden.shape[0]:
        count_bad_rows_kernel[(hidden.shape[0],)](
            hidden, hidden.stride(0), count, SIZE=hidden.shape[1], BLOCK=1024, num_warps=4
        )


class Watch:
    """The count of one device. Warm-up runs on made-up states, so it starts at the first real step."""

    def __init__(self) -> None:
        self.armed = False
        self._device: torch.Tensor | None = None
        self._host: torch.Tensor | None = None

    def observe(self, hidden: torch.Tensor) -> None:
        """Count on the current stream; does nothing before the first real step."""
        if not self.armed:
            return
        if self._device is None or self._host is None:
            self._device = torch.zeros(1, dtype=torch.int32, device=hidden.device)
            self._host = torch.zeros(1, dtype=torch.int32, pin_memory=hidden.is_cuda)
        count_bad_rows(hidden, self._device)
        self._host.copy_(self._device, non_blocking=True)

    def check(self) -> None:
        """Raise RuntimeError if a step that has finished held bad rows. Never waits."""
        rows = 0 if self._host is None else int(self._host[0])
        if rows:
            raise RuntimeError(MESSAGE.format(rows=rows))


WATCH = Watch()


def attach(module: Any) -> None:
    """Arm, observe and check at the places of vLLM's `gpu_model_runner` where each is due."""
    runner = module.GPUModelRunner
    execute, bookkeeping = runner.execute_model, runner._bookkeeping_sync
    output = module.AsyncGPUModelRunnerOutput
    get_output = output.get_output

    def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        WATCH.armed = True
        return execute(self, *args, **kwargs)

    def _bookkeeping_sync(
        self: Any, scheduler_output: Any, sampler_output: Any, logits: Any, hidden_states: Any, tokens: int
    ) -> Any:
        result = bookkeeping(self, scheduler_output, sampler_output, logits, hidden_states, tokens)
        if not self.use_async_scheduling:
            WATCH.check()
        return result

    def get_output_checked(self: Any) -> Any:
        result = get_output(self)
        WATCH.check()
        return result

    runner.execute_model = execute_model
    runner._bookkeeping_sync = _bookkeeping_sync
    output.get_output = get_output_checked
