"""`nvidia-smi`, where NVML cannot be asked directly, or told no links."""

from __future__ import annotations

import shutil

from sm86.doctor.facts import Gpu, Topology
from sm86.doctor.smi_csv import FIELDS, from_csv
from sm86.doctor.topo_text import from_topo_text
from sm86.errors import CouldNotRun
from sm86.host.process import run

PROGRAM = "nvidia-smi"
ANSWER_S = 20.0


def gpus(program: str = PROGRAM, answer_s: float = ANSWER_S) -> tuple[tuple[Gpu, ...] | None, str | None]:
    """GPUs and driver version; (None, None) where there is no nvidia-smi or it does not answer."""
    if not shutil.which(program):
        return None, None
    try:
        told = run((program, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"), answer_s)
    except CouldNotRun:
        return None, None
    found, version = from_csv(told.out)
    return (found, version) if found else (None, None)


def topology(count: int, program: str = PROGRAM, answer_s: float = ANSWER_S) -> Topology | None:
    """Links and peer access of `count` GPUs; None where nvidia-smi tells nothing that fits."""
    if not shutil.which(program):
        return None
    texts = []
    for words in (("topo", "-m"), ("topo", "-p2p", "r")):
        try:
            texts.append(run((program, *words), answer_s).out)
        except CouldNotRun:
            break
    try:
        found = from_topo_text("\n".join(texts))
    except CouldNotRun:
        return None
    return found.topology if len(found.gpus or ()) == count else None
