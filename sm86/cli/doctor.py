"""`invoke doctor`: what this machine is, what is wrong with it, where the ranks belong."""

from __future__ import annotations

import contextlib
import json as json_module
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from sm86.cli.guard import require_values
from sm86.cli.intended import tell_intended
from sm86.doctor.as_json import report_to_json
from sm86.doctor.facts import Rig
from sm86.doctor.finding import Report
from sm86.doctor.judge import judge
from sm86.doctor.redact import redacted
from sm86.doctor.want import Want
from sm86.errors import CouldNotRun
from sm86.files import NotRegular, open_regular, write_atomic
from sm86.spec import Envelope, load_all, load_envelope, load_pins

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_ENVELOPE = "sm86-262k"
MOST_BYTES = 16 << 20
"""A doctor's JSON of a large rig takes some hundred KiB."""

FILE_MEND = "give what `invoke doctor --json` or --bundle wrote, or the text of `nvidia-smi topo -m`"


def doctor(
    envelope: str = DEFAULT_ENVELOPE,
    from_file: str | None = None,
    probe: bool = False,
    image: str | None = None,
    bundle: str | None = None,
    json: bool = False,
    dry_run: bool = False,
    record: bool = False,
) -> int:
    """Judge this machine, or the facts in `from_file` ("-": standard input), for `envelope`, and print the findings.

    probe: also try what needs work on the GPUs (peer copies, PCIe under load) and in host memory. image: run that work
    in a container of this image instead of a process. bundle: write facts and findings there, redacted. dry_run: only
    say what would be asked and run. record: write a record of kind "doctor", for the report. Returns 0 when nothing
    is wrong, 1 when something is. Raises CouldNotRun for bad input.
    """
    require_values(envelope=envelope, from_=from_file, image=image, bundle=bundle)
    spec = load_envelope(envelope)
    want = want_of(spec)
    if from_file is not None and (probe or image):
        raise CouldNotRun("--probe tries this machine, --from judges another", "give one of the two")
    if image and not probe:
        raise CouldNotRun("--image is where the probe runs, but there is no --probe", "give --probe as well")
    if dry_run:
        return tell_intended("doctor", _intended(want, from_file, probe, image, bundle), json)
    started, clock = datetime.now(UTC), time.monotonic()
    rig = read_rig(from_file) if from_file is not None else gather(spec, probe, image)
    report = judge(rig, want)
    seconds = time.monotonic() - clock
    fault = None
    try:
        if record:
            _save_record(rig, report, spec, started, seconds)
        if bundle is not None:
            write_bundle(Path(bundle), rig, want)
    except CouldNotRun as error:
        # what was found is shown all the same: a bad path must not lose minutes of a probe
        fault = error
    if json:
        print(json_module.dumps(report_to_json(rig, report), indent=2, ensure_ascii=False))
    else:
        from sm86.cli.doctor_view import show

        show(rig, report, "" if from_file is None else "standard input" if from_file == "-" else from_file)
    if fault is not None:
        raise fault
    if bundle is not None:
        told = f"bundle: {bundle} (serial numbers, names, paths and addresses left out; look at it before you post it)"
        print(told, file=sys.stderr if json else sys.stdout)
    return report.exit_code


def _save_record(rig: Rig, report: Report, spec: Envelope, started: datetime, seconds: float) -> None:
    from sm86.cli.doctor_record import to_record
    from sm86.record import save

    print(f"record: {save(to_record(rig, report, spec, started, seconds))}", file=sys.stderr)


def want_of(envelope: Envelope) -> Want:
    """What the envelope needs of a machine. Raises CouldNotRun for one that needs no GPU."""
    if not envelope.uses_gpu:
        raise CouldNotRun(f"{envelope.name} needs no GPU, so there is nothing to examine", "name an envelope of a rig")
    # one of a person's own was planned for other cards; whether it fits those, `invoke plan` says
    shipped = envelope.name in {one.name for one in load_all()}
    return Want(
        envelope=envelope.name,
        memory=Want().memory if shipped else 0,
        ranks=envelope.serve.tensor_parallel,
        utilization=envelope.serve.gpu_memory_utilization,
        driver=load_pins().version("driver"),
    )


def gather(envelope: Envelope, probe: bool = False, image: str | None = None) -> Rig:
    """The facts of this machine; with `probe` also what was tried."""
    from dataclasses import replace

    from sm86.cli.doctor_view import progress
    from sm86.cli.guard import whole_number
    from sm86.host.rig.gather import Places
    from sm86.host.rig.gather import gather as ask
    from sm86.host.settings import effective, read_dotenv
    from sm86.image.names import image_name
    from sm86.render.variables import (
        BIND,
        BIND_DEFAULT,
        IMAGE,
        MODEL,
        MODELS_DIR,
        MODELS_DIR_DEFAULT,
        PORT,
        PORT_DEFAULT,
    )

    dotenv = read_dotenv(ROOT / ".env")

    def setting(name: str, default: str) -> str:
        return effective(name, os.environ, dotenv, default)

    port = whole_number(setting(PORT, PORT_DEFAULT), PORT, 1, 65535)
    assert port is not None
    places = Places(
        models=(ROOT / Path(setting(MODELS_DIR, MODELS_DIR_DEFAULT)).expanduser()).resolve(),
        model=setting(MODEL, envelope.model.folder),
        port=port,
        address=setting(BIND, BIND_DEFAULT),
        image=setting(IMAGE["gpu"], image_name("gpu")),
    )
    with progress() as say:
        say("asking the driver, the bus, Docker and the kernel's log")
        rig = ask(places)
        if not probe:
            return rig
        from sm86.host.rig.probe import probe as try_out

        return replace(rig, probe=try_out(rig, image, say))


def read_rig(name: str) -> Rig:
    """The facts in a file, or on standard input: JSON, or text of `nvidia-smi topo -m`.

    Raises CouldNotRun: not there, no plain file, too large, binary, neither of the two.
    """
    from sm86.doctor.facts_json import from_text
    from sm86.doctor.topo_text import from_topo_text, looks_like_topology

    where = "standard input" if name == "-" else name
    text = _text(_bytes(name, where), where)
    if text.lstrip()[:1] in ("{", "["):
        return from_text(text, where)
    if looks_like_topology(text):
        return from_topo_text(text, where)
    raise CouldNotRun(f"{where} holds neither a doctor's JSON nor a table of `nvidia-smi topo -m`", FILE_MEND)


def _bytes(name: str, where: str) -> bytes:
    if name == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise CouldNotRun("standard input is the terminal", f"pipe something into it; or {FILE_MEND}")
        data = sys.stdin.buffer.read(MOST_BYTES + 1)
    else:
        try:
            with open_regular(Path(name)) as file:
                data = file.read(MOST_BYTES + 1)
        except NotRegular as error:
            raise CouldNotRun(f"cannot read {where}: {error}", f"use - and a pipe, or {FILE_MEND}") from None
        except (OSError, ValueError) as error:
            raise CouldNotRun(f"cannot read {where}: {getattr(error, 'strerror', error)}", FILE_MEND) from None
    if len(data) > MOST_BYTES:
        raise CouldNotRun(f"{where} is larger than {MOST_BYTES >> 20} MiB", FILE_MEND)
    return data


def _text(data: bytes, where: str) -> str:
    # redirected output of some shells is UTF-16
    coding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(coding)
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    odd = sum(1 for sign in text[:4096] if not sign.isprintable() and sign not in "\t\r\n\x1b\x0f\x08\ufeff")
    if odd * 50 > len(text[:4096]) or "\0" in text:
        raise CouldNotRun(f"{where} is binary", FILE_MEND)
    if not text.strip():
        raise CouldNotRun(f"{where} is empty", FILE_MEND)
    return text


def write_bundle(path: Path, rig: Rig, want: Want) -> None:
    """Facts without names and places, judged anew, so that no finding can say more than they do."""
    shown = redacted(rig, known_names())
    value = report_to_json(shown, judge(shown, want), redacted=True)
    write_atomic(path, json_module.dumps(value, indent=2, ensure_ascii=False) + "\n")


def known_names() -> set[str]:
    """This machine's and this user's names, to be left out of a bundle."""
    import getpass
    import socket

    names = {socket.gethostname(), socket.gethostname().partition(".")[0], Path.home().name}
    names |= {os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER", "HOSTNAME")}
    # a user without a name has none to leave out
    with contextlib.suppress(KeyError, OSError):
        names.add(getpass.getuser())
    # "root" and the like stand in words that must stay readable, and name nobody
    return {name for name in names if len(name) >= 3} - {"root", "user", "ubuntu", "debian", "localhost"}


def _intended(want: Want, from_file: str | None, probe: bool, image: str | None, bundle: str | None) -> list[str]:
    lines = [
        f"judge for {want.envelope}: {want.ranks} GPUs of compute capability {want.capability[0]}.{want.capability[1]}"
    ]
    if from_file is not None:
        lines.append(f"read the facts from {from_file}")
    else:
        lines.append("ask NVML, sysfs, Docker, Compose and the kernel's log; nothing is changed")
    if probe:
        where = f"a container of {image}" if image else "a process of its own"
        lines.append(f"copy between every pair of GPUs and compare every byte, and load each PCIe link, in {where}")
        lines.append("copy host memory, for its bandwidth")
    if bundle is not None:
        lines.append(f"write {bundle}, redacted")
    return lines


def summary(report: Report) -> str:
    """The report in one line."""
    counts = report.counts()
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    if counts["fail"]:
        head = f"not ready for {report.envelope}"
    elif counts["unknown"]:
        head = "nothing wrong was found, but not everything was seen"
    else:
        head = "nothing wrong was found"
    return f"{head} ({told})"
