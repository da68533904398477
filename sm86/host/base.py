"""The base image where no registry answers: Debian packages and Debian's own Python, by debootstrap."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.host.process import run
from sm86.image.names import OFFLINE_BASE

SUITE = "bookworm"
PACKAGES = ("python3", "python3-venv", "ca-certificates")
"""What the official Python image has and Debian's minimal system lacks, as far as the Dockerfile uses it."""

SECURITY = "http://security.debian.org/debian-security"
MIRROR_VARIABLE = "SM86_DEBIAN_MIRROR"
BOOTSTRAP_S = 1800
IMPORT_S = 300
ANSWER_S = 20.0

_LEFT_OVER = (
    "var/lib/apt/lists",
    "var/cache/apt",
    "var/cache/debconf",
    "var/log",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "tmp",
)


def registry_digest(image: str) -> str | None:
    """The digest ("sha256:...") of the image in its registry; None where none answers within ANSWER_S seconds."""
    import docker.client

    try:
        client = docker.client.from_env(version="auto", timeout=ANSWER_S)
        found = client.api.inspect_distribution(image)
        digest = found["Descriptor"]["digest"]
    except Exception:  # whatever went wrong, the image cannot be had from there now
        return None
    return str(digest) if str(digest).startswith("sha256:") else None


def registry_answers(image: str) -> bool:
    """Whether the engine gets the image's description from its registry within ANSWER_S seconds."""
    return registry_digest(image) is not None


def bootstrap_argv(rootfs: Path, mirror: str | None) -> tuple[str, ...]:
    """debootstrap's arguments; without a mirror it uses Debian's own."""
    argv = ("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(rootfs))
    return (*argv, mirror) if mirror else argv


def import_argv(docker: str, archive: str = "-") -> tuple[str, ...]:
    """Arguments that make the archive on standard input an image."""
    return (docker, "import", "--change", 'CMD ["python3"]', archive, OFFLINE_BASE)


def make_base(docker: str, say: Callable[[str], None]) -> None:
    """Make the offline base image and tag it OFFLINE_BASE; `docker`: the client to import with. Takes a minute or two.

    Raises CouldNotRun: no debootstrap, no root rights, no mirror, keys unknown, full disk.
    """
    if shutil.which("debootstrap") is None:
        raise CouldNotRun("debootstrap is not installed", "sudo apt-get install debootstrap")
    if os.geteuid() != 0:
        raise CouldNotRun(
            "the offline base image needs root rights (debootstrap makes device files and runs chroot)",
            "run the command with sudo, or once: sudo .venv/bin/invoke build --target cpu --offline-base",
        )
    mirror = os.environ.get(MIRROR_VARIABLE)
    # not /tmp: it is often mounted so that nothing in it may be run
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="sm86-base-") as place:
        rootfs = Path(place) / "rootfs"
        say("base image: Debian packages by debootstrap ...")
        made = run(bootstrap_argv(rootfs, mirror), timeout=BOOTSTRAP_S, env={"DEBIAN_FRONTEND": "noninteractive"})
        if not made.ok:
            raise bootstrap_failure(made.out + made.err, made.last_words(4))
        _tidy(rootfs)
        say("base image: import ...")
        _import(docker, rootfs)


def bootstrap_failure(words: str, evidence: tuple[str, ...]) -> CouldNotRun:
    """What debootstrap's words mean."""
    lower = words.lower()
    if "no space left" in lower:
        return CouldNotRun("the disk of /var/tmp is full", "free about 1 GB there, then try again", evidence)
    if "keyring" in lower or "unknown key" in lower or "gpg" in lower:
        return CouldNotRun(
            "debootstrap does not know the keys that Debian signs with",
            "sudo apt-get install debian-archive-keyring",
            evidence,
        )
    if "failed getting release" in lower or "couldn't download" in lower or "failed to fetch" in lower:
        return CouldNotRun(
            "Debian's mirror could not be reached",
            f"see whether this machine reaches it, or name another: {MIRROR_VARIABLE}=http://...",
            evidence,
        )
    return CouldNotRun("debootstrap failed", "mend what its last words name", evidence)


def _tidy(rootfs: Path) -> None:
    sources = (rootfs / "etc/apt/sources.list").read_text().split("\n")[0]
    fields = sources.split()
    address = next((field for field in fields if "://" in field), "http://deb.debian.org/debian")
    (rootfs / "etc/apt/sources.list").write_text(
        f"deb {address} {SUITE} main\ndeb {address} {SUITE}-updates main\ndeb {SECURITY} {SUITE}-security main\n"
    )
    for name in _LEFT_OVER:
        for item in (rootfs / name).iterdir() if (rootfs / name).is_dir() else ():
            shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()
    # apt does not make this one by itself
    (rootfs / "var/cache/apt/archives/partial").mkdir(parents=True, exist_ok=True)
    for name in ("etc/machine-id", "etc/resolv.conf", "etc/hostname"):
        (rootfs / name).unlink(missing_ok=True)


def _import(docker: str, rootfs: Path) -> None:
    archive = (
        "tar",
        "--create",
        "--numeric-owner",
        "--one-file-system",
        "--sort=name",
        "--directory",
        str(rootfs),
        ".",
    )
    with subprocess.Popen(archive, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as packing:
        try:
            done = subprocess.run(
                import_argv(docker), stdin=packing.stdout, capture_output=True, text=True, timeout=IMPORT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            packing.kill()
            raise CouldNotRun(f"docker import failed: {error}", "see whether the Docker engine answers") from None
    if done.returncode != 0 or packing.returncode != 0:
        lines = tuple(line for line in done.stderr.splitlines() if line.strip())[-3:]
        raise CouldNotRun("docker import failed", "see whether the Docker engine answers and has space", lines)
