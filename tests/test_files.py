"""Files: written whole or not at all, and nothing but a regular file is read, wherever a person names one."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sm86.errors import CouldNotRun
from sm86.files import NotRegular, open_regular, read_regular, require_writable, write_atomic


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


KINDS = {fifo: "a FIFO", device: "a device", folder: "a folder"}


def toml(path: Path) -> Any:
    from sm86.spec.toml_table import read_toml

    return read_toml(path)


def dotenv(path: Path) -> Any:
    from sm86.render.dotenv import check_dotenv

    return check_dotenv(path, ())


def settings(path: Path) -> Any:
    from sm86.host.settings import read_dotenv

    return read_dotenv(path)


def record(path: Path) -> Any:
    from sm86.record import load

    return load(path)


def log(path: Path) -> Any:
    from sm86.cli.verify import chunks_of

    return list(chunks_of(str(path)))


def api_key(path: Path) -> Any:
    from sm86.measure.api_key import read_api_key

    return read_api_key(str(path))


def server_key(path: Path) -> Any:
    from sm86.launch.secret import read_key

    return read_key(path, True)


def archive(path: Path) -> Any:
    from sm86.host.image_archive import load

    path.with_name(path.name + ".sha256").write_text("0" * 64)
    return load(None, path)  # type: ignore[arg-type]


def checksum(path: Path) -> Any:
    from sm86.host.image_archive import load

    image = path.with_name("image.tar")
    image.write_bytes(b"x")
    path.rename(path.with_name("image.tar.sha256"))
    return load(None, image)  # type: ignore[arg-type]


def lock(path: Path) -> Any:
    from sm86.weights.lock import read

    return read(path)


def token(path: Path) -> Any:
    from sm86.host.hub_token import find_token

    return find_token({}, path, path.parent)


READERS = (toml, dotenv, settings, record, log, api_key, server_key, archive, checksum, lock, token)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_input_that_is_no_file_is_refused_and_never_waited_for(
    tmp_path: Path, kind: Callable[[Path], None], read: Callable[[Path], Any]
) -> None:
    kind(tmp_path / "input")
    with pytest.raises(CouldNotRun) as fault:
        read(tmp_path / "input")
    assert KINDS[kind] in fault.value.what and fault.value.mend and "Errno" not in fault.value.what


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_file_is_not(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    kind(tmp_path / "x")
    with pytest.raises(NotRegular, match=KINDS[kind]):
        open_regular(tmp_path / "x")


def test_a_socket_and_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("x")
        with pytest.raises(NotRegular, match="a socket"):
            read_regular(Path("x"))
    with pytest.raises(FileNotFoundError):
        read_regular(Path("y"))


def test_a_file_that_became_a_fifo_after_the_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good").write_text("x")
    os.mkfifo(tmp_path / "x")
    seen = os.stat(tmp_path / "good")
    monkeypatch.setattr(os, "stat", lambda path: seen)
    with pytest.raises(NotRegular, match="a FIFO"):
        open_regular(tmp_path / "x")


def test_how_much_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("x")
    assert read_regular(tmp_path / "link", 5) == b"12345" == read_regular(tmp_path / "x")
    assert read_regular(Path("/dev/null")) == b""
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_regular(tmp_path / "x", 4)


def test_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a" / "b", "text")
    assert (tmp_path / "a" / "b").read_text() == "text"
    with pytest.raises(CouldNotRun, match="cannot write"):
        write_atomic(tmp_path / "a" / "b" / "c", "text")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


@pytest.mark.parametrize("write", [require_writable, lambda path: write_atomic(path, "text")])
def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path, write) -> None:
    """For root that would be the machine's own /dev/null."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/null")
    for name, words in (("fifo", "it is a FIFO"), ("link", "it is a device")):
        with pytest.raises(CouldNotRun, match=words):
            write(tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode) and (tmp_path / "link").is_symlink()
    with pytest.raises(CouldNotRun, match="cannot write"):
        write(tmp_path)


def test_whether_a_file_can_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    require_writable(tmp_path / "old")
    require_writable(tmp_path / "new" / "file")
    assert (tmp_path / "old").read_text() == "old" and list((tmp_path / "new").iterdir()) == []
    with pytest.raises(CouldNotRun, match="cannot write"):
        require_writable(tmp_path / "old" / "below")
