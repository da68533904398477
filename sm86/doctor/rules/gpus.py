"""The GPUs themselves: how many, which, their memory and who has it, errors, clocks, power, heat. Pure."""

from __future__ import annotations

from sm86.doctor.facts import Gpu, GpuProcess, Rig
from sm86.doctor.finding import Finding, fail, ok, unknown, warn
from sm86.doctor.want import Want
from sm86.doctor.words import by_value, gib, gpus_of, spread

SMI = "run the doctor on the machine itself, where nvidia-smi works"
HOT_C = 83
"""An RTX 3090 begins to lower its clocks for heat at about this temperature of its core."""

HUNG_USE = 90
HUNG_POWER = 0.12
"""Of the power limit: hung cards were seen at 17 to 20 W, idle ones draw as much, working ones several times that."""

IDLE_BYTES = 1 << 29
"""What an idle card without a display shows at most; workers that linger hold far more."""


def count(rig: Rig, want: Want) -> Finding:
    """Enough GPUs, and none that has dropped off the bus."""
    rule = "gpu-count"
    why = f"{want.envelope} serves with {want.ranks} ranks, one for each GPU"
    if rig.gpus is None:
        on_bus = rig.host.nvidia_devices
        seen = "" if on_bus is None else f" (the PCI bus shows {on_bus} NVIDIA devices)"
        return unknown(rule, f"the number of GPUs is not known{seen}", why, "see the driver's finding")
    if not rig.gpus:
        no_driver = rig.driver.loaded is False
        return fail(
            rule,
            f"this machine has no NVIDIA GPU{', and no NVIDIA driver is loaded' if no_driver else ''}",
            why,
            "nothing to mend if that is meant: `invoke demo` runs the whole product on a CPU, and "
            "`invoke doctor --from FILE` judges the facts of another machine",
        )
    lost = [gpu for gpu in rig.gpus if gpu.problem]
    there = len(rig.gpus) - len(lost)
    if lost:
        what = f"{gpus_of(gpu.index for gpu in lost)} cannot be asked: {lost[0].problem}"
        return fail(
            rule, what, why, "see dmesg for Xid lines; power the machine off and on; check riser and power cables"
        )
    dropped = (rig.host.nvidia_devices or 0) - there
    if dropped > 0 and rig.driver.nvml == "ok":
        told = f"the PCI bus has {rig.host.nvidia_devices} NVIDIA GPUs, the driver serves {there}"
        mend = "see dmesg (NVRM, Xid); power the machine off and on; check risers, power, and BIOS: Above 4G Decoding"
        if there >= want.ranks:
            return warn(
                rule, told, "a card that the driver gave up on may hang the others", f"{mend}, if it is not meant"
            )
        return fail(rule, told, why, mend)
    if there < want.ranks:
        return fail(
            rule,
            f"{there} GPU{'s' if there > 1 else ''}",
            why,
            "use a machine with more GPUs; `invoke plan --fit` searches what this one can serve",
        )
    more = there - want.ranks
    return ok(rule, f"{there} GPUs{f', {more} more than are needed: see placement' if more else ''}")


def model(rig: Rig, want: Want) -> Finding | None:
    """One kind of GPU, of the compute capability that the envelopes are for."""
    rule = "gpu-model"
    if not rig.gpus:
        return None
    major, minor = want.capability
    why = f"kernels are built for {major}.{minor}; the numbers were published on RTX 3090s"
    if any(gpu.capability is None for gpu in rig.gpus):
        return unknown(rule, "the compute capability is not known", why, SMI)
    told = spread(rig.gpus, lambda gpu: (gpu.name or "unnamed", gpu.capability), _model)
    others = [gpu.index for gpu in rig.gpus if gpu.capability and gpu.capability[0] != major]
    if len(rig.gpus) - len(others) < want.ranks and others:
        return fail(
            rule,
            told,
            f"{why}; the launcher refuses other ones than {major}.x",
            f"use GPUs of capability {major}.{minor} (RTX 3090, A5000, A6000, A40); SM86_FORCE=1 tries others",
        )
    if others:
        return warn(
            rule, told, f"{gpus_of(others)} cannot take part; {why}", "name the others in SM86_GPUS: see placement"
        )
    if len(by_value(rig.gpus, lambda gpu: gpu.name)) > 1:
        return warn(
            rule,
            told,
            "every step waits for the slowest rank, and the smallest memory bounds them all",
            "name GPUs of one kind in SM86_GPUS where there are enough",
        )
    if any(gpu.capability != want.capability for gpu in rig.gpus):
        return warn(
            rule,
            told,
            f"{why}: here kernels are another machine code, which was not validated",
            "believe the numbers of this rig only after `invoke verify` and `invoke bench`",
        )
    return ok(rule, told)


def _model(key: tuple[str, tuple[int, int] | None]) -> str:
    name, capability = key
    return f"{name}, {capability[0]}.{capability[1]}" if capability else name


def memory(rig: Rig, want: Want) -> Finding | None:
    """Each GPU's memory against what the published envelopes fit in."""
    rule = "gpu-memory"
    if not rig.gpus:
        return None
    why = "weights take about 18.5 GiB of each of eight GPUs, and pool, graphs and NCCL share what is left"
    known = [gpu for gpu in rig.gpus if gpu.memory_total is not None]
    if len(known) < len(rig.gpus):
        return unknown(rule, "the size of the GPUs' memory is not known", why, SMI)
    told = spread(known, lambda gpu: gpu.memory_total or 0, gib)
    small = [gpu.index for gpu in known if (gpu.memory_total or 0) < want.memory]
    if len(known) - len(small) < want.ranks and small:
        return fail(rule, told, why, "no published envelope fits; `invoke plan --fit` searches one for this rig")
    if len(by_value(known, lambda gpu: (gpu.memory_total or 0) >> 28)) > 1:
        return warn(
            rule,
            told,
            "all ranks reserve alike, so the smallest card sets the pool of every one",
            "name GPUs of one size in SM86_GPUS where there are enough",
        )
    return ok(rule, told)


def memory_free(rig: Rig, want: Want) -> Finding | None:
    """Free memory against the share that the engine claims at start."""
    rule = "gpu-memory-free"
    if not rig.gpus:
        return None
    why = (
        f"the engine claims {want.utilization:.0%} of each GPU and refuses to start with less; margins are tens of MiB"
    )
    known = [gpu for gpu in rig.gpus if gpu.memory_free is not None and gpu.memory_total]
    if len(known) < len(rig.gpus):
        return unknown(rule, "the GPUs' free memory is not known", why, SMI)
    short = [gpu for gpu in known if (gpu.memory_free or 0) < want.utilization * (gpu.memory_total or 0)]
    if len(known) - len(short) >= want.ranks and short:
        return warn(
            rule,
            f"{gpus_of(gpu.index for gpu in short)} {_has(short)} too little free memory, the others suffice",
            why,
            "name free ones in SM86_GPUS",
        )
    if short and all(_serving(process) for gpu in short for process in gpu.processes or (GpuProcess(0),)):
        names = sorted({process.owner or "" for gpu in short for process in gpu.processes or ()})
        mend = "nothing, if that is the server you mean; else docker stop it"
        return warn(rule, f"a server has {gpus_of(gpu.index for gpu in short)}: {', '.join(names)}", why, mend)
    if short:
        first = min(short, key=lambda gpu: gpu.memory_free or 0)
        rest = [gpu.index for gpu in short if gpu is not first]
        room = f"{gib(first.memory_free or 0)} of {gib(first.memory_total or 0)} free"
        told = f"GPU {first.index} has {room}{_holders(first)}{f'; {gpus_of(rest)} too little, too' if rest else ''}"
        mend = "end what uses it; `nvidia-smi` lists the processes, a desktop session belongs on another card"
        return fail(rule, told, why, mend)
    least = min(known, key=lambda gpu: gpu.memory_free or 0)
    return ok(rule, f"at least {gib(least.memory_free or 0)} free on each GPU")


def processes(rig: Rig, want: Want) -> Finding | None:
    """Nobody holds GPU memory whose container is gone, or whom the system does not know."""
    rule = "gpu-processes"
    if not rig.gpus:
        return None
    why = "workers of a dead server keep the memory, and the next start fails for want of it"
    if any(gpu.processes is None for gpu in rig.gpus):
        return unknown(rule, "which processes use the GPUs is not known", why, SMI)
    holders = [(gpu, process) for gpu in rig.gpus for process in gpu.processes or ()]
    dead = [(gpu, process) for gpu, process in holders if (process.owner or "").startswith("dead container")]
    if dead:
        numbers = sorted({process.pid for _, process in dead})
        return fail(
            rule,
            f"leftovers of dead containers on {gpus_of(gpu.index for gpu, _ in dead)}: {_process(dead[0][1])}"
            + (f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""),
            why,
            f"end them: sudo kill {' '.join(map(str, numbers))}; then wait until each GPU is nearly empty",
        )
    unseen = [gpu for gpu in rig.gpus if _unseen(gpu)]
    if unseen:
        return warn(
            rule,
            f"{gpus_of(gpu.index for gpu in unseen)}: memory is held, and not by a process that can be seen here",
            why,
            "run the doctor as root on the host, not in a container; if it still says so, reset the GPU or reboot",
        )
    if holders:
        users = sorted({process.owner or "an unnamed process" for _, process in holders})
        return ok(rule, f"in use by {', '.join(users[:4])}{' and others' if len(users) > 4 else ''}")
    return ok(rule, "no process uses the GPUs")


def _serving(process: GpuProcess) -> bool:
    return (process.owner or "").startswith("container ")


def _unseen(gpu: Gpu) -> bool:
    if any(process.owner == "unseen" for process in gpu.processes or ()):
        return True
    # the driver's own reserve counts as used, too
    return not gpu.processes and (gpu.memory_used or 0) > 2 * IDLE_BYTES


def _holders(gpu: Gpu) -> str:
    names = [_process(process) for process in gpu.processes or ()]
    return f", held by {'; '.join(names[:3])}" if names else ""


def _process(process: GpuProcess) -> str:
    size = f", {gib(process.memory)}" if process.memory else ""
    owner = f", {process.owner}" if process.owner not in (None, "host") else ""
    return f"process {process.pid} ({(process.title or 'no title')[:60]}{size}{owner})"


def _has(gpus: list[Gpu]) -> str:
    return "has" if len(gpus) == 1 else "have"


def errors(rig: Rig, want: Want) -> Finding | None:
    """ECC: no errors where there is ECC. Cards without it have nothing to count."""
    rule = "ecc"
    if not rig.gpus:
        return None
    why = "an uncorrected error is wrong data, or the end of the process"
    bad = [gpu for gpu in rig.gpus if gpu.ecc_errors]
    if bad:
        return fail(
            rule,
            f"uncorrected memory errors on {spread(bad, lambda gpu: gpu.ecc_errors)}",
            why,
            "reboot and watch it; a card that counts again belongs in warranty",
        )
    if all(gpu.ecc for gpu in rig.gpus):
        return warn(
            rule,
            "ECC is on, no uncorrected error",
            "on cards with GDDR6 it takes about a sixteenth of the memory",
            "nvidia-smi -e 0 and a reboot give it back, without the protection",
        )
    if any(gpu.ecc for gpu in rig.gpus):
        return warn(
            rule,
            f"ECC: {spread(rig.gpus, lambda gpu: 'on' if gpu.ecc else 'off')}",
            "the cards then have unlike memory, and the smallest bounds them all",
            "switch it alike on all",
        )
    if all(gpu.ecc is False for gpu in rig.gpus):
        return ok(rule, "off")
    if any(gpu.capability is None for gpu in rig.gpus):
        return unknown(rule, "ECC is not known", why, SMI)
    return ok(rule, "these cards have none")


THROTTLE_BAD = {
    "hw_thermal_slowdown": "heat",
    "sw_thermal_slowdown": "heat",
    "hw_power_brake_slowdown": "the power supply's brake signal",
    "hw_slowdown": "heat or the power supply",
}
THROTTLE_SET = {"applications_clocks_setting": "clocks set by hand", "sync_boost": "a boost group"}


def throttle(rig: Rig, want: Want) -> Finding | None:
    """Why clocks are held down now. The power limit under load and idling are usual."""
    rule = "gpu-clocks"
    if not rig.gpus:
        return None
    why = "every all-reduce waits for the slowest rank"
    if any(gpu.throttle is None and gpu.sm_clock is None for gpu in rig.gpus):
        return unknown(rule, "the clocks are not known", why, SMI)
    hot = {gpu.index: name for gpu in rig.gpus for name in gpu.throttle or () if name in THROTTLE_BAD}
    if hot:
        reason = next(iter(hot.values()))
        return fail(
            rule,
            f"{gpus_of(hot)} {'is' if len(hot) == 1 else 'are'} slowed down ({THROTTLE_BAD[reason]}: {reason})",
            why,
            "mend cooling, or power cables and supply; nvidia-smi -q -d PERFORMANCE shows it",
        )
    held = {gpu.index: name for gpu in rig.gpus for name in gpu.throttle or () if name in THROTTLE_SET}
    if held:
        return warn(
            rule,
            f"{gpus_of(held)}: {THROTTLE_SET[next(iter(held.values()))]}",
            why,
            "nvidia-smi -rgc and -rac give the clocks back, if that was not meant",
        )
    most = [gpu for gpu in rig.gpus if gpu.sm_clock_max]
    kinds = by_value(most, lambda gpu: (gpu.name, gpu.sm_clock_max))
    if len(kinds) > len(by_value(most, lambda gpu: gpu.name)):
        return warn(
            rule,
            f"maximum clocks differ: {spread(most, lambda gpu: gpu.sm_clock_max, lambda mhz: f'{mhz} MHz')}",
            why,
            "look for clocks locked on some cards only: nvidia-smi -rgc",
        )
    now = [gpu.sm_clock for gpu in rig.gpus if gpu.sm_clock is not None]
    top = f" of at most {max(gpu.sm_clock_max or 0 for gpu in most)}" if most else ""
    told = spread(rig.gpus, lambda gpu: gpu.sm_clock, lambda mhz: f"{mhz} MHz") if len(set(now)) == 1 else ""
    told = told or (f"{min(now)} to {max(now)} MHz" if now else "")
    return ok(rule, f"{told} now{top}, nothing holds them down" if told else "nothing holds them down")


def power(rig: Rig, want: Want) -> Finding | None:
    """The power limit against the card's own default, and alike on all cards."""
    rule = "power-limit"
    if not rig.gpus:
        return None
    why = "others measured 200 W instead of 350 W: prefill 18 % slower, decode unchanged"
    known = [gpu for gpu in rig.gpus if gpu.power_limit is not None]
    if len(known) < len(rig.gpus):
        return unknown(rule, "the power limits are not known", why, SMI)
    told = spread(known, lambda gpu: round(gpu.power_limit or 0), lambda watts: f"{watts} W")
    if len(by_value(known, lambda gpu: (gpu.name, round(gpu.power_limit or 0)))) > len(
        by_value(known, lambda gpu: gpu.name)
    ):
        return warn(rule, told, "the slowest card sets the pace of all", "nvidia-smi -pl WATTS sets it alike on all")
    lowered = [gpu for gpu in known if gpu.power_limit_default and (gpu.power_limit or 0) < gpu.power_limit_default - 1]
    if lowered:
        usual = spread(lowered, lambda gpu: round(gpu.power_limit_default or 0), lambda watts: f"{watts} W")
        return warn(
            rule, f"{told}, lowered from {usual}", why, "fine if it is meant: name it with every number you give"
        )
    most = [gpu for gpu in known if gpu.power_limit_max is not None]
    top = spread(most, lambda gpu: round(gpu.power_limit_max or 0), lambda watts: f"{watts} W") if most else ""
    return ok(rule, f"{told}, the cards' default{f'; they allow {top}' if top else ''}")


def hung(rig: Rig, want: Want) -> Finding | None:
    """Busy and drawing next to nothing: a rank that spins and waits for one that will not come."""
    rule = "gpu-hung"
    if not rig.gpus:
        return None
    known = [gpu for gpu in rig.gpus if gpu.utilization is not None and gpu.power is not None and gpu.power_limit]
    why = "a rank that spins in a collective looks busy and works nothing; its server answers /health and no request"
    if len(known) < len(rig.gpus):
        return unknown(rule, "use and power of the GPUs are not known", why, SMI)
    stuck = [
        gpu
        for gpu in known
        if (gpu.utilization or 0) >= HUNG_USE and (gpu.power or 0) < HUNG_POWER * (gpu.power_limit or 0)
    ]
    if stuck:
        told = f"{gpus_of(gpu.index for gpu in stuck)}: {stuck[0].utilization} % busy at {stuck[0].power:.0f} W"
        return fail(rule, told, why, "invoke down, invoke up; then see dmesg for Xid lines, and peer access")
    return ok(
        rule, f"{min(gpu.utilization or 0 for gpu in known)} to {max(gpu.utilization or 0 for gpu in known)} % busy"
    )


def temperature(rig: Rig, want: Want) -> Finding | None:
    """Heat now, against the card's own limit."""
    rule = "temperature"
    if not rig.gpus:
        return None
    why = "a hot card lowers its clocks, and all ranks wait for it"
    known = [gpu for gpu in rig.gpus if gpu.temperature is not None]
    if len(known) < len(rig.gpus):
        return unknown(rule, "the temperatures are not known", why, SMI)
    hottest = max(known, key=lambda gpu: gpu.temperature or 0)
    now = hottest.temperature or 0
    told = f"GPU {hottest.index} is hottest, {now} °C"
    if now >= (hottest.temperature_slowdown or 95) - 3:
        limit = f", its limit is {hottest.temperature_slowdown} °C" if hottest.temperature_slowdown else ""
        return fail(rule, told + limit, why, "mend the cooling before you serve: fans, dust, spacing between cards")
    if now >= HOT_C:
        return warn(rule, told, why, "improve the airflow, or lower the power limit: decode hardly needs it")
    return ok(rule, told)


def mode(rig: Rig, want: Want) -> Finding | None:
    """MIG, compute mode, a display, persistence: settings that get in a server's way."""
    rule = "gpu-mode"
    if not rig.gpus:
        return None
    gpus = rig.gpus
    if mig := [gpu.index for gpu in gpus if gpu.mig]:
        return fail(
            rule,
            f"{gpus_of(mig)} {'is' if len(mig) == 1 else 'are'} cut into MIG instances",
            "tensor parallel needs whole cards",
            "nvidia-smi -mig 0",
        )
    if barred := [gpu.index for gpu in gpus if gpu.compute_mode == "prohibited"]:
        return fail(rule, f"{gpus_of(barred)}: compute mode prohibited", "CUDA may not run there", "nvidia-smi -c 0")
    if shown := [gpu.index for gpu in gpus if gpu.display]:
        return warn(
            rule,
            f"{gpus_of(shown)} {'drives' if len(shown) == 1 else 'drive'} a display",
            "a desktop takes hundreds of MiB; the margin of the published envelopes is tens",
            "stop the desktop (sudo systemctl isolate multi-user.target), or show it on another card",
        )
    if off := [gpu.index for gpu in gpus if gpu.persistence is False]:
        return warn(
            rule,
            f"persistence mode is off on {gpus_of(off)}",
            "the driver lets idle cards go and starts them anew, for seconds, at every question",
            "sudo nvidia-smi -pm 1, or run nvidia-persistenced",
        )
    if any(gpu.persistence is None for gpu in gpus):
        return unknown(rule, "persistence mode and MIG are not known", "they delay or prevent a start", SMI)
    return ok(rule, "whole cards, no display, persistence on")
