"""Images as files with checksums: how an image travels to a rig that reaches no registry."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.files import open_regular, read_regular, write_atomic
from sm86.host.docker import DockerGateway

BLOCK = 1 << 20
SPARE_BYTES = 1 << 30
"""Left free beside the archive: the folder's file system is rarely ours alone."""


def checksum_path(archive: Path) -> Path:
    """The checksum file beside an archive, in the form that `sha256sum --check` reads."""
    return archive.with_name(archive.name + ".sha256")


def require_savable(docker: DockerGateway, image: str, archive: Path) -> tuple[int, int]:
    """Size of the image and free bytes where the archive would lie; nothing is written.

    Raises CouldNotRun: no such image, a place that holds something else than a file, too little room.
    """
    facts = docker.image(image)
    if facts is None:
        raise CouldNotRun(f"there is no image {image}", "build it, or name one that `docker images` lists")
    if archive.exists() and not archive.is_file():
        raise CouldNotRun(f"{archive} is no regular file", "give the name of a file to write, such as image.tar")
    place = archive.absolute().parent
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < facts.size + SPARE_BYTES:
        raise CouldNotRun(
            f"{archive.parent} has {free / 1e9:.1f} GB free, {image} needs {(facts.size + SPARE_BYTES) / 1e9:.1f} GB",
            "choose another folder, or make room",
        )
    return facts.size, free


def save(docker: DockerGateway, image: str, archive: Path) -> str:
    """Write the image and its checksum; returns the SHA-256. The archive appears whole or not at all.

    Raises CouldNotRun: what `require_savable` does, a folder that cannot be written to, a full disk.
    """
    require_savable(docker, image, archive)
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=archive.parent, prefix=f".{archive.name}.")
    except OSError as error:
        raise CouldNotRun(
            f"cannot write {archive}: {error.strerror}", "choose a folder that you may write to"
        ) from None
    os.close(handle)
    try:
        return _write(docker, image, archive, Path(temporary))
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _write(docker: DockerGateway, image: str, archive: Path, temporary: Path) -> str:
    digest = hashlib.sha256()
    try:
        with temporary.open("wb") as file:
            for chunk in docker.image_export(image):
                digest.update(chunk)
                file.write(chunk)
        os.replace(temporary, archive)
    except OSError as error:
        raise CouldNotRun(f"cannot write {archive}: {error.strerror}", "make room, then save it again") from None
    write_atomic(checksum_path(archive), f"{digest.hexdigest()}  {archive.name}\n")
    return digest.hexdigest()


def checked(archive: Path) -> str:
    """The SHA-256 of an archive whose checksum is right.

    Raises CouldNotRun: archive or checksum missing or unreadable, or they do not match.
    """
    sums = checksum_path(archive)
    try:
        wanted = read_regular(sums, 4096).decode("ascii").split()[0]
        with open_regular(archive) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise CouldNotRun(f"{error.filename} is missing", "give an archive with its .sha256 file beside it") from None
    except (OSError, ValueError, IndexError) as error:
        why = getattr(error, "strerror", None) or error
        raise CouldNotRun(f"cannot read {archive} and its checksum: {why}", "copy both files again") from None
    if found != wanted:
        raise CouldNotRun(f"{archive} is damaged: its checksum is not the one in {sums.name}", "copy it again")
    return found


def load(docker: DockerGateway, archive: Path) -> str:
    """Load an archive whose checksum is right; returns the SHA-256.

    Raises CouldNotRun: what `checked` does, or an archive without an image; nothing is loaded then.
    """
    found = checked(archive)
    with open_regular(archive) as file:
        if not docker.image_import(file):
            raise CouldNotRun(f"{archive} holds no image", "save one with invoke image.save, then load that")
    return found
