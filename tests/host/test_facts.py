"""The conditions of a record: what is known is there, what is not is None, and nothing hangs."""

import sys
import time
import types

import pytest

from sm86.boot.state import RUNNING, EngineState
from sm86.host import facts, gpu_query
from sm86.spec import load_envelope

MANIFEST = {
    "lock_hash": "sha256:1",
    "model_hash": "ab12",
    "git_rev": "f00d",
    "vllm_version": "0.26.0",
    "override.NCCL_ALGO": {"value": "Tree", "state": "effective", "why": "x"},
    "override.FUSE_ALLREDUCE_RMS": {"value": "1", "state": "inert", "why": "x"},
}


class Engine:
    def state(self):
        return EngineState(RUNNING, image_id="sha256:2")


def test_what_the_manifest_and_the_engine_say(monkeypatch):
    monkeypatch.setattr(facts, "gpu_facts", lambda: ("580.126.09", ({"uuid": "GPU-1", "power_limit_w": 350.0},)))
    found = facts.conditions(Engine(), load_envelope("sm86-262k"), MANIFEST)
    assert (found.engine, found.mark) == ("cuda", "")
    assert (found.image_id, found.lock_hash, found.model_hash) == ("sha256:2", "sha256:1", "ab12")
    assert (found.git_rev, found.vllm_version, found.driver) == ("f00d", "0.26.0", "580.126.09")
    assert found.gpus[0]["power_limit_w"] == 350.0
    assert found.overrides == {"NCCL_ALGO": "Tree"}, "a setting without effect is no condition"
    assert found.host["cores"] >= 1 and found.host["memory_mib"] > 100


def test_cpu_numbers_are_marked_and_no_gpu_is_asked(monkeypatch):
    def asked():
        raise AssertionError("the CPU engine has no GPUs to ask about")

    monkeypatch.setattr(facts, "gpu_facts", asked)
    found = facts.conditions(Engine(), load_envelope("cpu-smoke"), {"git_rev": "unknown", "lock_hash": None})
    assert (found.engine, found.mark) == ("cpu", "CPU")
    assert found.git_rev is None and found.lock_hash is None and found.model_hash is None
    assert found.overrides == {}


def test_no_manifest_is_no_fault():
    assert facts.conditions(Engine(), load_envelope("cpu-smoke"), None).git_rev is None


def test_a_driver_that_hangs_is_left_behind(tmp_path, monkeypatch):
    hangs = tmp_path / "query.py"
    hangs.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(facts, "GPU_QUERY", hangs)
    monkeypatch.setattr(facts, "GPU_QUERY_S", 0.5)
    began = time.monotonic()
    assert facts.gpu_facts() == (None, ())
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("printed", ["", "no json", "{}"])
def test_a_query_that_ends_without_an_answer(tmp_path, monkeypatch, printed):
    query = tmp_path / "query.py"
    query.write_text(f"print({printed!r})")
    monkeypatch.setattr(facts, "GPU_QUERY", query)
    assert facts.gpu_facts() == (None, ())


class FakeNvml(types.SimpleNamespace):
    """Two GPUs; the second refuses its power limit, as some boards do."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def nvmlInit(self): ...
    def nvmlDeviceGetCount(self):
        return 2

    def nvmlSystemGetDriverVersion(self):
        return b"580.126.09"

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, gpu):
        return f"GPU-{gpu}"

    def nvmlDeviceGetName(self, gpu):
        return b"NVIDIA GeForce RTX 3090"

    def nvmlDeviceGetClockInfo(self, gpu, kind):
        return {1: 1695, 2: 9501}[kind]

    def nvmlDeviceGetMaxClockInfo(self, gpu, kind):
        return 2100

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu):
        if gpu == 1:
            raise self.NVMLError("Not Supported")
        return 350_000

    nvmlDeviceGetPowerManagementDefaultLimit = nvmlDeviceGetEnforcedPowerLimit

    def nvmlDeviceGetTemperature(self, gpu, kind):
        return 61

    def nvmlDeviceGetMemoryInfo(self, gpu):
        return types.SimpleNamespace(total=24 * 2**30)


def test_the_facts_of_gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    found = gpu_query.query()
    assert found["driver"] == "580.126.09"
    first, second = found["gpus"]
    assert first["name"] == "NVIDIA GeForce RTX 3090"
    assert (first["sm_clock_mhz"], first["mem_clock_mhz"], first["power_limit_w"]) == (1695, 9501, 350.0)
    assert first["memory_mib"] == 24576
    assert "power_limit_w" not in second, "what the driver does not give is left out, not guessed"


def test_no_driver_is_no_facts(monkeypatch):
    class NoDriver(FakeNvml):
        def nvmlInit(self):
            raise self.NVMLError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", NoDriver())
    assert gpu_query.query() == {}
