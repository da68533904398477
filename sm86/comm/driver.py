"""The matrix from end to end, inside the image: fresh processes for each setting and repeat, one line of JSON for each.

    python3 -P -m sm86.comm.driver PLAN        PLAN: the JSON of a plan. Effects: processes; only the ranks import torch

Nothing outlives it: ranks end when it does, and each run has a limit. It needs the standard library and this package.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sm86.comm import answer, nccl_log
from sm86.comm.answer import Cell, Run
from sm86.comm.matrix import NCCL, Setting
from sm86.comm.plan import Plan, plan_of
from sm86.errors import EXIT_COULD_NOT_RUN, EXIT_INTERRUPTED, EXIT_OK, CouldNotRun
from sm86.json_text import parse as parse_json

STRAGGLERS_S = 5.0
"""When one rank has ended without an answer the others wait for it in vain."""

TICK_S = 0.05

NO_NUMBER = 1e9
"""Stands for an error that is no number, in units of the bound."""

_OURS = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")


def main() -> int:
    """Run the plan that the one argument holds; print a line for each run."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_INTERRUPTED))
    try:
        plan = plan_of(parse_json(sys.argv[1] if len(sys.argv) == 2 else ""))
    except (CouldNotRun, ValueError) as error:
        print(f"sm86: {error}", file=sys.stderr)
        return EXIT_COULD_NOT_RUN
    for repeat, setting in plan.order():
        made = run(plan, setting, repeat)
        print(answer.PREFIX + json.dumps(made.to_json()), flush=True)
    return EXIT_OK


def run(plan: Plan, setting: Setting, repeat: int, worker: Sequence[str] | None = None) -> Run:
    """One setting in fresh processes. worker: the command of a rank, for tests."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sm86-comm-") as folder:
        ranks = _Ranks(plan, setting, Path(folder), worker or (sys.executable, "-P", "-m", "sm86.comm.worker"))
        try:
            ranks.wait(plan.limit_s)
        finally:
            ranks.end()
        said = nccl_log.parse(_lines(Path(folder).glob("nccl-*.log")))
        return judge(setting, repeat, ranks.answers(), said, time.monotonic() - began, ranks.missing)


def environment_of(setting: Setting, base: Mapping[str, str], folder: Path, rank: int) -> dict[str, str]:
    """What a rank gets: this environment without NCCL's own settings, then the setting's. Pure."""
    kept = {name: value for name, value in base.items() if not name.startswith("NCCL_") or name in _CARRIED}
    # one host: the loopback interface is always there, also in a container without a network
    kept.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # the launcher numbers GPUs like this as well, so that neighbours here are neighbours in the server
    kept.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    kept.setdefault("NCCL_SOCKET_IFNAME", "lo")
    if setting.path == NCCL:
        kept |= {**nccl_log.DEBUG_ENVIRONMENT, "NCCL_DEBUG_FILE": str(folder / f"nccl-{rank}.log")}
    return kept | dict(setting.environment)


_CARRIED = (
    "NCCL_SOCKET_IFNAME",
    "NCCL_CUMEM_ENABLE",
    "NCCL_CUMEM_HOST_ENABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_TOPO_FILE",
    # whoever shares the switch of an NVLink machine may have to leave multicast alone
    "NCCL_NVLS_ENABLE",
)
"""Facts of a machine rather than settings to compare; the rows that set them win."""


class _Ranks:
    """The processes of one run. missing: the ranks that gave no answer, once it is over."""

    def __init__(self, plan: Plan, setting: Setting, folder: Path, worker: Sequence[str]) -> None:
        self.missing: list[int] = []
        self._killed: set[int] = set()
        self._texts = [""] * plan.ranks
        self._children: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        self._errors = [folder / f"stderr-{rank}.txt" for rank in range(plan.ranks)]
        try:
            for rank in range(plan.ranks):
                self._start(plan, setting, folder, worker, rank)
        except BaseException:
            self.end()
            raise

    def _start(self, plan: Plan, setting: Setting, folder: Path, worker: Sequence[str], rank: int) -> None:
        order = {
            "rank": rank,
            "ranks": plan.ranks,
            "device": plan.device,
            "path": setting.path,
            "sizes": list(plan.sizes),
            "calls": plan.calls,
            "warm": plan.warm,
            "replays": plan.replays,
            "limit_s": plan.limit_s,
            "store": str(folder / "store"),
        }
        with self._errors[rank].open("wb") as errors:
            child = subprocess.Popen(
                list(worker),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                errors="replace",
                env=environment_of(setting, os.environ, folder, rank),
            )
        self._children.append(child)
        assert child.stdin is not None
        with contextlib.suppress(OSError):
            child.stdin.write(json.dumps(order) + "\n")
            child.stdin.flush()
        reader = threading.Thread(target=self._read, args=(rank, child), daemon=True)
        reader.start()
        self._readers.append(reader)

    def _read(self, rank: int, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith(answer.PREFIX):
                self._texts[rank] = line[len(answer.PREFIX) :]

    def wait(self, limit_s: float) -> None:
        """Until all have answered or ended; a rank that ended without an answer gives the others a moment more."""
        deadline = time.monotonic() + limit_s
        while any(child.poll() is None for child in self._children):
            now = time.monotonic()
            if now >= deadline:
                return
            died = [rank for rank, child in enumerate(self._children) if child.poll() not in (None, 0)]
            if died:
                deadline = min(deadline, now + STRAGGLERS_S)
            time.sleep(TICK_S)

    def end(self) -> None:
        for rank, child in enumerate(self._children):
            if child.poll() is None:
                self._killed.add(rank)
                child.kill()
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10)
        for reader in self._readers:
            reader.join(5)
        for child in self._children:
            for pipe in (child.stdin, child.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
        self.missing = [rank for rank, text in enumerate(self._texts) if not text]

    def answers(self) -> list[dict[str, Any]]:
        """What each rank said, in their order; a rank that said nothing is told by its last words."""
        found = []
        for rank, text in enumerate(self._texts):
            try:
                found.append(parse_json(text))
            except ValueError:
                code = self._children[rank].returncode
                state = answer.TIMEOUT if rank in self._killed else answer.FAILED
                found.append({"rank": rank, "state": state, "why": self._last_words(rank, code), "cells": {}})
        return found

    def _last_words(self, rank: int, code: int | None) -> str:
        text = self._errors[rank].read_text("utf-8", "replace") if self._errors[rank].exists() else ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        ended = f"rank {rank} ended with code {code}"
        return f"{ended}: {lines[-1][:200]}" if lines else ended


def judge(
    setting: Setting,
    repeat: int,
    answers: Sequence[Mapping[str, Any]],
    said: nccl_log.NcclSaid,
    seconds: float,
    missing: Sequence[int] = (),
) -> Run:
    """What the ranks' answers come to: the slowest rank's time, the worst value, the first reason. Pure."""
    facts = _facts(answers, said)
    bad = next((one for one in answers if one["state"] != answer.MEASURED), None)
    if bad is not None:
        state, why = _reason(answers, said, missing)
        return Run(setting.name, repeat, state, why, round(seconds, 3), {}, facts)
    cells = {}
    for size in answers[0]["cells"]:
        each = [one["cells"][size] for one in answers]
        ways = said.ran.get(int(size), ())
        ran = " or ".join(way.words() for way in ways) or str(each[0]["ran"])
        cells[int(size)] = Cell(
            us=max(float(cell["us"]) for cell in each),
            error=max(_bounded(float(cell["error"])) for cell in each),
            bit_equal=all(cell["bit_equal"] for cell in each),
            ran=ran,
        )
    wrong = [size for size, cell in cells.items() if cell.error > 1.0]
    if wrong:
        sizes = ", ".join(str(size) for size in wrong)
        why = f"the sums of {sizes} bytes are further from the float64 sum than rounding allows"
        return Run(setting.name, repeat, answer.WRONG, why, round(seconds, 3), cells, facts)
    return Run(setting.name, repeat, answer.MEASURED, "", round(seconds, 3), cells, facts)


def _bounded(error: float) -> float:
    """The error as a number that compares and that JSON has: NaN and infinity are both as wrong as can be."""
    return min(error, NO_NUMBER) if math.isfinite(error) else NO_NUMBER


def _reason(answers: Sequence[Mapping[str, Any]], said: nccl_log.NcclSaid, missing: Sequence[int]) -> tuple[str, str]:
    """(state, why) of a run that has no numbers. NCCL's own refusal comes first: the ranks only see its echo."""
    if said.refusal:
        return answer.UNAVAILABLE, said.refusal
    order = (answer.UNAVAILABLE, answer.FAILED, answer.TIMEOUT)
    worst = min((one for one in answers if one["state"] in order), key=lambda one: order.index(one["state"]))
    why = str(worst["why"])
    if worst["state"] == answer.TIMEOUT and missing:
        why = f"no answer from rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
    if said.warnings and worst["state"] != answer.UNAVAILABLE:
        why += f"; NCCL said: {said.warnings[0][:200]}"
    return str(worst["state"]), why


def _facts(answers: Sequence[Mapping[str, Any]], said: nccl_log.NcclSaid) -> dict[str, Any]:
    told = [one.get("facts") or {} for one in answers]
    facts: dict[str, Any] = {
        k: v for k, v in told[0].items() if k not in ("gpu", "capability", "peer_access", "used_mib")
    }
    if any("gpu" in one for one in told):
        facts["gpus"] = [one.get("gpu") for one in told]
        facts["capability"] = [one.get("capability") for one in told]
        facts["used_mib"] = [one.get("used_mib") for one in told]
        facts["peer_access"] = all(all(one.get("peer_access") or [False]) for one in told)
    if said.transports:
        facts["transports"] = dict(said.transports)
    if said.environment:
        facts["nccl_read"] = {name: value for name, value in said.environment.items() if name not in _OURS}
    if said.channels is not None:
        facts["channels"] = said.channels
    if said.version:
        facts["nccl"] = said.version
    if said.warnings:
        facts["nccl_warnings"] = list(said.warnings[:5])
    return facts


def _lines(files: Iterable[Path]) -> Iterable[str]:
    for file in sorted(files):
        with file.open(encoding="utf-8", errors="replace") as lines:
            yield from lines


if __name__ == "__main__":
    sys.exit(main())
