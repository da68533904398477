"""The log of two ranks that took turns on one H200, judged by what does not need a manifest.

It was started without the launcher, so nothing in it says which spec was meant, and it is never verified; what vLLM,
the backend and the host all-reduce said in it must be read all the same, both workers' lines mixed. Of its 165 dispatch
lines the first and last forty are kept, of vLLM's list of routes none; paths are those of the image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sm86.spec import load_envelope
from sm86.verify.verify import verify_log

LOG = (Path(__file__).parent / "data" / "sm86-proof-tp2-shared.log").read_bytes().decode()
LAUNCHER = {"manifest", "argv", "vllm-origin"}
"""The rules that need the launcher's manifest."""


def judged(text: str, status: str = "proof") -> tuple[dict[str, str], bool]:
    envelope = replace(load_envelope("sm86-proof-tp2"), status=status)
    report = verify_log(envelope, iter([text.encode()]), None, "the log")
    return {finding.rule: finding.state for finding in report.findings}, report.passed


def test_all_that_needs_no_manifest_is_seen_and_passes() -> None:
    states, verified = judged(LOG)
    assert {rule for rule, state in states.items() if state == "not seen"} == LAUNCHER
    rest = {state for rule, state in states.items() if rule not in LAUNCHER}
    assert rest == {"pass"} and len(states) == 20 and not verified
    assert {"tensor-parallel", "host-allreduce", "graphs-captured", "dispatch"} <= set(states) - LAUNCHER


def test_ranks_that_shared_a_gpu_prove_the_code_path_alone() -> None:
    states, _ = judged(LOG, status="validated")
    assert states["tensor-parallel"] == "fail" and states["host-allreduce"] == "pass"


def swapped(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text, old
        return text.replace(old, new)

    return change


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("host-allreduce", swapped("collectives choice=host", "collectives choice=other")),
        ("host-allreduce", swapped("[sm86] collectives choice=host", "collectives: nothing was said")),
        ("host-allreduce", swapped("reason=there is no other way", "reason=the value check failed on rank 1")),
        (
            "host-allreduce",
            swapped(
                "Application startup complete.\n",
                "Application startup complete.\n(Worker_TP0 pid=2899) [sm86] collectives failed=rank 1 has ended\n",
            ),
        ),
        ("tensor-parallel", swapped("world_size=2 rank=1 local_rank=0", "of another rank nothing was said")),
        ("dispatch", swapped("SM86 cudagraph hit cg_mode=FULL", "SM86 cudagraph miss cg_mode=NONE")),
    ],
)
def test_an_honest_mutation_fails(rule: str, change: Callable[[str], str]) -> None:
    states, _ = judged(change(LOG))
    assert states[rule] in ("fail", "not seen"), states
