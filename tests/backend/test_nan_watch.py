"""Hidden states that are not numbers are counted and stop the step that holds them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sm86.backend.diagnostics import nan_watch


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("size", [4096, 1000])
def test_bad_rows_are_counted(bad: float, size: int, device: str) -> None:
    hidden = torch.randn(5, size, device=device).to(torch.bfloat16) * 1e30
    count = torch.zeros(1, dtype=torch.int32, device=device)
    nan_watch.count_bad_rows(hidden, count)
    assert int(count) == 0
    hidden[1, size - 1] = bad
    hidden[4, 0] = bad
    hidden[4, 1] = bad
    nan_watch.count_bad_rows(hidden, count)
    assert int(count) == 2


def runner_module() -> SimpleNamespace:
    class Runner:
        use_async_scheduling = False

        def execute_model(self) -> str:
            return "executed"

        def _bookkeeping_sync(self, *args: object) -> str:
            return "tokens"

    class Output:
        def get_output(self) -> str:
            return "tokens"

    return SimpleNamespace(GPUModelRunner=Runner, AsyncGPUModelRunnerOutput=Output)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_bad_step_is_not_served(asynchronous: bool, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(nan_watch, "WATCH", nan_watch.Watch())
    module = runner_module()
    nan_watch.attach(module)
    runner = module.GPUModelRunner()
    runner.use_async_scheduling = asynchronous

    def step(hidden: torch.Tensor) -> str:
        runner.execute_model()
        nan_watch.WATCH.observe(hidden)
        result = runner._bookkeeping_sync(1, 2, 3, 4, 5)
        if device == "cuda":
            torch.cuda.synchronize()
        return module.AsyncGPUModelRunnerOutput().get_output() if asynchronous else result

    good, bad = torch.ones(2, 64, device=device), torch.full((2, 64), float("nan"), device=device)
    nan_watch.WATCH.observe(bad)
    assert step(good) == "tokens", "warm-up states do not count"
    with pytest.raises(RuntimeError, match="hidden states of 2 sampled rows"):
        step(bad)
        step(good)
