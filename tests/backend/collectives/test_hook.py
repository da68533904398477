"""The hook on a stand-in of vLLM's communicator: what goes where, and the end of it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from sm86.backend.collectives.communicator import HostAllReduce
from sm86.backend.collectives.plan import MAX_BYTES
from sm86.backend.hooks import host_allreduce
from sm86.backend.refusal import Refused
from sm86.backend.settings import read


class Ours:
    def __init__(self) -> None:
        self.closed = False

    def takes(self, tensor: str) -> bool:
        return tensor == "small"

    def all_reduce(self, tensor: str) -> str:
        return f"host {tensor}"

    def close(self) -> None:
        self.closed = True


def module() -> Any:
    class CudaCommunicator:
        def __init__(self, group: str) -> None:
            self.group, self.destroyed = group, False

        def all_reduce(self, input_: str) -> str:
            return f"nccl {input_}"

        def destroy(self) -> None:
            self.destroyed = True

    return SimpleNamespace(CudaCommunicator=CudaCommunicator)


def test_small_messages_go_our_way_and_the_rest_to_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Ours()
    monkeypatch.setattr(host_allreduce, "_group_reduce", lambda communicator: ours)
    patched = module()
    host_allreduce.HOOK.apply(patched)
    communicator = patched.CudaCommunicator("g")
    assert communicator.all_reduce("small") == "host small" and communicator.all_reduce("large") == "nccl large"
    communicator.destroy()
    assert ours.closed and communicator.destroyed and communicator.group == "g"


def test_groups_that_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_allreduce, "_group_reduce", lambda communicator: None)
    patched = module()
    host_allreduce.HOOK.apply(patched)
    communicator = patched.CudaCommunicator("g")
    assert communicator.all_reduce("small") == "nccl small"
    communicator.destroy()
    assert communicator.destroyed


def tensor(**changes: Any) -> Any:
    """A stand-in for a tensor of 8 KiB in bf16: torch need not be there."""
    facts = {"dtype": "bf16", "bytes": 8192, "contiguous": True, "kind": "cuda", "element": 2} | changes
    return SimpleNamespace(
        dtype=facts["dtype"],
        device=SimpleNamespace(type=facts["kind"]),
        numel=lambda: facts["bytes"] // facts["element"],
        element_size=lambda: facts["element"],
        is_contiguous=lambda: facts["contiguous"],
    )


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({}, True),
        ({"dtype": "fp32", "element": 4}, True),
        ({"bytes": 16}, True),
        ({"bytes": 131072}, True),
        ({"dtype": "fp16"}, False),
        ({"dtype": "int32", "element": 4}, False),
        ({"contiguous": False}, False),
        ({"kind": "cpu"}, False),
        ({"kind": "meta"}, False),
        ({"bytes": 0}, False),
        ({"bytes": 8}, False),
        ({"bytes": 8200}, False),
        ({"bytes": 131072 + 16}, False),
    ],
    ids=str,
)
def test_what_is_no_message_is_left_to_nccl(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], taken: bool
) -> None:
    """By facts that are the same on all ranks; where a tensor lies in memory is none of them."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(bfloat16="bf16", float32="fp32"))
    group = SimpleNamespace(local_ranks=1, max_bytes=MAX_BYTES, _device_type="cuda")
    assert HostAllReduce.takes(group, tensor(**changes)) is taken  # type: ignore[arg-type]


def test_only_the_tensor_parallel_group() -> None:
    assert host_allreduce.is_tensor_parallel("tp:0")
    assert not any(host_allreduce.is_tensor_parallel(name) for name in ("", "pp:0", "dp:0", "dcp:0", "world:0", "ep:1"))


@pytest.mark.parametrize(
    ("captured", "sequences", "sizes"),
    [([1, 2, 4], 4, (8192, 16384, 32768)), ([1], 1, (8192,)), ([], 2, (8192, 16384)), (None, 1, (8192,))],
)
def test_the_messages_of_a_server(captured: list[int] | None, sequences: int, sizes: tuple[int, ...]) -> None:
    config = SimpleNamespace(
        model_config=SimpleNamespace(get_hidden_size=lambda: 4096, dtype=SimpleNamespace(itemsize=2)),
        compilation_config=SimpleNamespace(cudagraph_capture_sizes=captured),
        scheduler_config=SimpleNamespace(max_num_seqs=sequences),
    )
    assert host_allreduce.decode_sizes(config) == sizes
    assert host_allreduce.decode_sizes(None) == ()


def test_the_setting() -> None:
    assert read({}).host_allreduce == read({"SM86_HOST_ALLREDUCE": ""}).host_allreduce == "auto"
    assert read({"SM86_HOST_ALLREDUCE": "0"}).host_allreduce == "0"
    with pytest.raises(Refused, match="SM86_HOST_ALLREDUCE='yes'"):
        read({"SM86_HOST_ALLREDUCE": "yes"})
