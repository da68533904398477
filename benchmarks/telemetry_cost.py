"""What watching the GPUs costs a benchmark: processor time a second, memory, and bytes in the record.

    python benchmarks/telemetry_cost.py [--seconds 20] [--stand-in] [--budget-s S] [--json]

Asks the real NVML where there is one, and runs `nvidia-smi --query-gpu ... -l 1` beside it as the peer. Elsewhere, or
with --stand-in, a stand-in NVML of 8 GPUs answers: its questions about traffic take 20 ms each, as the driver's do, and
its others nothing, so that only the product's own part is measured, and the output says so.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from sm86.backend.testing.budget import add_option, budget_of, progress  # noqa: E402
from sm86.errors import CouldNotRun  # noqa: E402
from sm86.host.telemetry import Watcher  # noqa: E402
from sm86.measure.telemetry import summarise  # noqa: E402

STAND_IN = ROOT / "tests/measure/nvml"
FIELDS = "clocks.sm,clocks.mem,power.draw,temperature.gpu,memory.used,utilization.gpu,pcie.link.gen.current"
STARTS_S = 5.0
LIMIT = 0.05
"""Processor seconds in a second, of one core, that the watching may take."""


def processor(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def watch(seconds: float) -> dict[str, object]:
    """Watches so long; processor seconds of this process and of the child, which begins with loading Python."""
    own, children = processor(resource.RUSAGE_SELF), processor(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    watcher = Watcher()
    watcher.start()
    child = watcher._child
    time.sleep(seconds)
    watcher.stop()
    wall = time.perf_counter() - began
    if child is not None:
        child.wait(10)
    spent = processor(resource.RUSAGE_SELF) - own, processor(resource.RUSAGE_CHILDREN) - children
    seen = summarise(watcher, [(began, began + seconds)], began)
    return {
        "seconds": round(wall, 2),
        "samples": len(watcher.taken),
        "gpus": len(watcher.gpus),
        "parent_cpu_s": round(spent[0], 3),
        "child_cpu_s": round(spent[1], 3),
        "cpu_share_of_a_core": round(sum(spent) / wall, 5),
        "child_rss_mib": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, 1),
        "record_bytes": len(json.dumps(seen.to_json(), indent=2)),
        "text": seen.text,
    }


def peer(seconds: float) -> dict[str, object] | None:
    """nvidia-smi asked once a second for the same; None where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    before, began = processor(resource.RUSAGE_CHILDREN), time.perf_counter()
    child = subprocess.Popen(
        (program, f"--query-gpu={FIELDS}", "--format=csv,noheader", "-l", "1"), stdout=subprocess.DEVNULL
    )
    time.sleep(seconds)
    child.terminate()
    child.wait(20)
    spent = processor(resource.RUSAGE_CHILDREN) - before
    return {"cpu_s": round(spent, 3), "cpu_share_of_a_core": round(spent / (time.perf_counter() - began), 5)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--stand-in", action="store_true")
    parser.add_argument("--json", action="store_true")
    add_option(parser)
    options = parser.parse_args()
    try:
        budget = budget_of(options)
    except CouldNotRun as fault:
        print(f"{fault.what}\nmend: {fault.mend}", file=sys.stderr)
        return fault.exit_code
    # the watcher and its peer take as long as each other, and a few seconds to begin and to end
    if not budget.allows(2 * options.seconds + STARTS_S):
        print(f"--seconds {options.seconds:g}, twice, does not fit into the budget\nmend: give fewer", file=sys.stderr)
        return 2
    stand_in = options.stand_in or shutil.which("nvidia-smi") is None
    if stand_in:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(STAND_IN), os.environ.get("PYTHONPATH"))))
        os.environ["FAKE_NVML"] = json.dumps({"kind": "steady", "gpus": 8, "slow_s": 0.02})
    progress(f"watching for {options.seconds:g} s")
    found = watch(options.seconds)
    if not stand_in:
        progress(f"nvidia-smi for {options.seconds:g} s")
    beside = None if stand_in else peer(options.seconds)
    good = found["samples"] >= options.seconds * 0.8 and found["cpu_share_of_a_core"] <= LIMIT  # type: ignore[operator]
    values = {"nvml": "stand-in" if stand_in else "driver", "watcher": found, "nvidia_smi": beside, "good": good}
    if options.json:
        print(json.dumps(values, indent=2))
    else:
        print(f"NVML: {values['nvml']}, {found['gpus']} GPUs, {found['samples']} samples in {found['seconds']} s")
        print(
            f"processor: {found['parent_cpu_s']} s here, {found['child_cpu_s']} s in the child: "
            f"{100 * float(str(found['cpu_share_of_a_core'])):.2f} % of one core (limit {100 * LIMIT:.0f} %)"
        )
        print(f"memory of the child: {found['child_rss_mib']} MiB; in the record: {found['record_bytes']} bytes")
        if beside is not None:
            ratio = float(str(found["cpu_share_of_a_core"])) / max(float(str(beside["cpu_share_of_a_core"])), 1e-6)
            print(f"nvidia-smi -l 1: {beside['cpu_s']} s; the watcher takes {ratio:.2f} of it")
        else:
            print("nvidia-smi: not here, so the peer was not measured")
        print(found["text"])
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
