"""A machine to launch on: a stand-in engine and driver beside a real launcher process, and a small checkpoint."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sm86 import __version__
from sm86.errors import CouldNotRun
from sm86.launch.command import launch
from sm86.launch.options import parse

ROOT = Path(__file__).resolve().parents[2]

ENVS = """
import os
environment_variables = {
    "VLLM_API_KEY": lambda: os.environ.get("VLLM_API_KEY"),
    "VLLM_PORT": lambda: int(os.environ["VLLM_PORT"]) if "VLLM_PORT" in os.environ else None,
    "VLLM_PLUGINS": lambda: os.environ.get("VLLM_PLUGINS"),
    "VLLM_CPU_KVCACHE_SPACE": lambda: int(os.getenv("VLLM_CPU_KVCACHE_SPACE", "0")),
    "VLLM_CACHE_ROOT": lambda: os.environ.get("VLLM_CACHE_ROOT"),
    "VLLM_CONFIG_ROOT": lambda: os.environ.get("VLLM_CONFIG_ROOT"),
    "VLLM_ALLREDUCE_USE_FLASHINFER": lambda: bool(int(os.getenv("VLLM_ALLREDUCE_USE_FLASHINFER", "0"))),
    "VLLM_FLASHINFER_ALLREDUCE_BACKEND": lambda: os.environ.get("VLLM_FLASHINFER_ALLREDUCE_BACKEND"),
    "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": lambda: os.environ.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"),
    "VLLM_USE_FLASHINFER_SAMPLER": lambda: os.environ.get("VLLM_USE_FLASHINFER_SAMPLER"),
}
"""

# what was exec'ed, written down by the one who was
MAIN = """
import json, os, sys, time
with open(os.environ["DUMP"], "w") as file:
    json.dump({"orig": sys.orig_argv, "argv": sys.argv[1:], "environ": dict(os.environ), "pid": os.getpid(),
               "path": sys.path, "safe": sys.flags.safe_path}, file)
print("engine says hello", flush=True)
if os.environ.get("STAY"):
    time.sleep(float(os.environ["STAY"]))
"""

NVML = """
import json, os
class NVMLError(Exception): pass
RIG = json.loads(os.environ["RIG"])
def nvmlInit():
    if RIG.get("problem"): raise NVMLError(RIG["problem"])
    if RIG.get("hang"):
        import time; time.sleep(60)
def nvmlSystemGetDriverVersion(): return RIG.get("driver", "580.126.09")
def nvmlDeviceGetCount(): return len(RIG["gpus"])
def nvmlDeviceGetHandleByIndex(place): return RIG["gpus"][place]
class Any_:
    def __init__(self, **values): self.__dict__.update(values)
def nvmlDeviceGetPciInfo(gpu): return Any_(busId=gpu["bus"])
def nvmlDeviceGetUUID(gpu): return gpu["uuid"]
def nvmlDeviceGetName(gpu): return gpu.get("name", "NVIDIA GeForce RTX 3090")
def nvmlDeviceGetCudaComputeCapability(gpu): return tuple(gpu.get("capability", (8, 6)))
def nvmlDeviceGetMemoryInfo(gpu): return Any_(total=24 << 30, free=int(gpu.get("free", 23.9) * (1 << 30)))
"""


def write_safetensors(path: Path, data_bytes: int = 64, cut: int = 0) -> None:
    """A file of one tensor; `cut` bytes are missing at its end."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [data_bytes], "data_offsets": [0, data_bytes]}}).encode()
    path.write_bytes(
        (struct.pack("<Q", len(header)) + header + b"\1" * data_bytes)[: 8 + len(header) + data_bytes - cut]
    )


DSV4 = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "quantization_config": {"quant_method": "auto-round", "bits": 4, "group_size": 128},
    "num_nextn_predict_layers": 1,
}
LLAMA = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "float32"}


def write_model(folder: Path, config: dict[str, Any], shards: int = 2) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = [f"model-{number:05d}-of-{shards:05d}.safetensors" for number in range(1, shards + 1)]
    for name in names:
        write_safetensors(folder / name)
    index = {"weight_map": {f"w{number}": name for number, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@dataclass
class Machine:
    """Runs real launcher processes. environment: added to a clean one."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def dump(self) -> dict[str, Any]:
        return json.loads((self.root / "dump.json").read_text())

    @property
    def became_engine(self) -> bool:
        return (self.root / "dump.json").exists()

    def install(self, distribution: str, version: str, plugins: str = "") -> None:
        site = self.root / "site"
        cli = site / "vllm" / "entrypoints" / "cli"
        cli.mkdir(parents=True, exist_ok=True)
        for package in (site / "vllm", site / "vllm" / "entrypoints", cli):
            (package / "__init__.py").write_text("")
        (site / "vllm" / "envs.py").write_text(ENVS)
        (cli / "main.py").write_text(MAIN)
        (site / "pynvml.py").write_text(NVML)
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        # the product that runs these tests may be installed with its own plugin; this one, found first, has none
        bare = site / f"sm86-{__version__}.dist-info"
        bare.mkdir(exist_ok=True)
        (bare / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sm86\nVersion: {__version__}\n")
        if plugins:
            (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{plugins}\n")

    def rig(self, *gpus: dict[str, Any], **facts: Any) -> None:
        self.environment["RIG"] = json.dumps({"gpus": gpus, **facts})

    def env(self, **more: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "PYTHONPATH": f"{self.root / 'site'}:{ROOT}",
            "DUMP": str(self.root / "dump.json"),
            "SM86_BUILD_FILE": str(self.root / "build.json"),
            **self.environment,
            **more,
        }

    def refused_here(self, monkeypatch: pytest.MonkeyPatch, *arguments: str, **more: str) -> CouldNotRun:
        """The refusal of such a start, in this process: for the many cases that end before anything is taken."""
        values = {**self.env(), **more}
        monkeypatch.syspath_prepend(str(self.root / "site"))
        monkeypatch.setattr("sm86.launch.engine._search_path", lambda: sys.path)
        for name in [name for name in os.environ if name not in values]:
            monkeypatch.delenv(name)
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(CouldNotRun) as refusal:
            launch(parse(arguments), dict(values))
        return refusal.value

    def popen(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "sm86.launch", *arguments],
            env=self.env(**more),
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        child = self.popen(*arguments, **more)
        out, err = child.communicate(timeout=60)
        return subprocess.CompletedProcess(arguments, child.returncode, out, err)


def gpu_uuid(number: int) -> str:
    return f"GPU-{number:08x}-aaaa-bbbb-cccc-dddd{number:08x}"
