"""Archives of images: what a wrong place, a full disk or a stream without an image leads to."""

import hashlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from sm86.errors import CouldNotRun
from sm86.host.image_archive import checksum_path, load, save


class Gateway:
    """A stand-in for the engine: an image of `size` bytes, `names` that a load ends with."""

    def __init__(self, size: int = 10, names: tuple[str, ...] = ("sm86-vllm:1",), error: Exception | None = None):
        self.size, self.names, self.error, self.asked = size, names, error, 0

    def image(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(size=self.size) if name == "here" else None

    def image_export(self, name: str):
        self.asked += 1
        yield b"first"
        if self.error:
            raise self.error
        yield b"last"

    def image_import(self, stream) -> tuple[str, ...]:
        self.asked += 1
        stream.read()
        return self.names


def files(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_saved_and_loaded(tmp_path):
    archive = tmp_path / "new" / "image.tar"
    digest = save(Gateway(), "here", archive)
    assert digest == hashlib.sha256(b"firstlast").hexdigest()
    assert files(archive.parent) == ["image.tar", "image.tar.sha256"]
    assert load(Gateway(), archive) == digest


def test_no_such_image(tmp_path):
    with pytest.raises(CouldNotRun, match="no image gone"):
        save(Gateway(), "gone", tmp_path / "image.tar")
    assert files(tmp_path) == []


@pytest.mark.parametrize("place", ["folder", "device"])
def test_only_a_regular_file_is_replaced(tmp_path, place):
    gateway = Gateway()
    target = tmp_path if place == "folder" else Path("/dev/full")
    with pytest.raises(CouldNotRun, match="no regular file"):
        save(gateway, "here", target)
    assert gateway.asked == 0 and files(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_told_before_the_engine_works(tmp_path):
    gateway = Gateway()
    (tmp_path / "file").write_text("")
    with pytest.raises(CouldNotRun, match="cannot write"):
        save(gateway, "here", tmp_path / "file" / "image.tar")
    assert gateway.asked == 0


def test_too_little_room_is_told_before_the_engine_works(tmp_path):
    gateway = Gateway(size=1 << 60)
    with pytest.raises(CouldNotRun, match="GB free"):
        save(gateway, "here", tmp_path / "image.tar")
    assert gateway.asked == 0 and files(tmp_path) == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), CouldNotRun("a", "b")])
def test_a_save_that_ends_early_leaves_nothing(tmp_path, error):
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else CouldNotRun):
        save(Gateway(error=error), "here", tmp_path / "image.tar")
    assert files(tmp_path) == []


def test_what_holds_no_image_is_not_called_loaded(tmp_path):
    archive = tmp_path / "image.tar"
    archive.write_bytes(b"")
    checksum_path(archive).write_text(hashlib.sha256(b"").hexdigest())
    with pytest.raises(CouldNotRun, match="holds no image"):
        load(Gateway(names=()), archive)


@pytest.mark.parametrize("sums", [b"", b"zz", b"\xff\x00", b"0" * 64])
def test_a_wrong_checksum_is_never_loaded(tmp_path, sums):
    archive, gateway = tmp_path / "image.tar", Gateway()
    archive.write_bytes(b"x")
    checksum_path(archive).write_bytes(sums)
    with pytest.raises(CouldNotRun):
        load(gateway, archive)
    assert gateway.asked == 0
