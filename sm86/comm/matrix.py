"""The settings that are measured: what the ranks get in their environment, and what `.env` would have to hold. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from sm86.errors import CouldNotRun

NCCL, HOST, FLASHINFER, GLOO = "nccl", "host", "flashinfer", "gloo"

BASELINE = "nccl"
"""NCCL left alone: what the server uses when nothing is set."""

ALGORITHMS = ("Ring", "Tree")
"""Without NVSwitch NCCL has these two for an all-reduce on one host."""

PROTOCOLS = ("Simple", "LL", "LL128")
CHANNELS = (1, 2, 4)
THREADS = (64, 128, 256)

HOST_NAME = "sm86-host"
FLASHINFER_NAME = "flashinfer-trtllm"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the matrix.

    environment: set for the ranks; overrides: the same as `.env` and `--override` take it; algo, proto, channels: what
    was asked of NCCL, None where the choice is left to it. words: what it is, for people.
    """

    name: str
    path: str
    words: str
    environment: tuple[tuple[str, str], ...] = ()
    overrides: tuple[tuple[str, str], ...] = ()
    algo: str | None = None
    proto: str | None = None
    channels: int | None = None

    @property
    def changes(self) -> int:
        """How many variables it needs: of two equal settings the one with fewer is simpler to keep."""
        return len(self.overrides)


def _forced(algo: str, proto: str) -> Setting:
    return Setting(
        f"nccl-{algo.lower()}-{proto.lower()}",
        NCCL,
        f"NCCL {algo} {proto}",
        # scoped to the all-reduce as the launcher does it: NCCL has no Tree for other collectives
        (("NCCL_ALGO", f"AllReduce:{algo}"), ("NCCL_PROTO", f"AllReduce:{proto}")),
        (("NCCL_ALGO", f"AllReduce:{algo}"), ("NCCL_PROTO", f"AllReduce:{proto}")),
        algo,
        proto,
    )


def _one(name: str, words: str, variable: str, value: str, channels: int | None = None) -> Setting:
    return Setting(name, NCCL, words, ((variable, value),), ((variable, value),), channels=channels)


def settings() -> tuple[Setting, ...]:
    """The whole matrix; the baseline comes first."""
    return (
        Setting(BASELINE, NCCL, "NCCL's own choice"),
        *(_forced(algo, proto) for algo in ALGORITHMS for proto in PROTOCOLS),
        *(
            _one(f"nccl-channels-{n}", f"NCCL, at most {n} channel{'s' * (n > 1)}", "NCCL_MAX_NCHANNELS", str(n), n)
            for n in CHANNELS
        ),
        *(_one(f"nccl-threads-{n}", f"NCCL, {n} threads a block", "NCCL_NTHREADS", str(n)) for n in THREADS),
        _one("nccl-p2p-off", "NCCL, peer access off", "NCCL_P2P_DISABLE", "1"),
        _one("nccl-p2p-on", "NCCL, peer access at any distance", "NCCL_P2P_LEVEL", "SYS"),
        Setting(HOST_NAME, HOST, "sm86's own, through host memory", overrides=(("SM86_HOST_ALLREDUCE", "1"),)),
        Setting(
            FLASHINFER_NAME,
            FLASHINFER,
            "FlashInfer, trtllm backend",
            overrides=(("VLLM_ALLREDUCE_USE_FLASHINFER", "1"), ("VLLM_FLASHINFER_ALLREDUCE_BACKEND", "trtllm")),
        ),
    )


def emulated_settings() -> tuple[Setting, ...]:
    """What runs on CPU processes instead: the whole path of the command, and no number of a rig."""
    return (
        Setting(BASELINE, GLOO, "gloo on CPU processes, in NCCL's place"),
        Setting("gloo-threads-2", GLOO, "gloo, two threads a process", (("OMP_NUM_THREADS", "2"),)),
        Setting(HOST_NAME, HOST, "sm86's own, through host memory"),
    )


def chosen(every: Sequence[Setting], patterns: Sequence[str]) -> tuple[Setting, ...]:
    """Those whose name fits one of the patterns (`nccl-ring-*`), with the baseline. Raises CouldNotRun: none fits."""
    if not patterns:
        return tuple(every)
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(setting.name, pattern) for setting in every):
            names = ", ".join(setting.name for setting in every)
            raise CouldNotRun(f"no setting fits {pattern!r}", f"the settings are {names}")
    return tuple(
        setting
        for setting in every
        if setting.name == BASELINE or any(fnmatch.fnmatchcase(setting.name, pattern) for pattern in patterns)
    )
