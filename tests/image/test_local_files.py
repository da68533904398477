"""pip's settings and local wheels: what a build may take from this machine."""

from __future__ import annotations

import pytest

from sm86.errors import CouldNotRun
from sm86.host import wheels as host
from sm86.image.pip_settings import find_links_folders, parse_listing, portable_config
from sm86.image.wheels import digests, wanted

LISTING = """\
:env:.cert='/etc/ssl/certs/ca-certificates.crt'
:env:.timeout='180'
:env:.find-links='/srv/wheels'
global.find-links='/old'
global.timeout='10'
global.constraint='/etc/pip/constraints.txt'
global.extra-index-url='file:///srv/simple https://mirror.example/simple'
install.trusted-host="mirror.example"
broken line
"""


def test_the_environment_comes_before_the_files():
    settings = parse_listing(LISTING)
    assert settings["timeout"] == "180" and settings["find-links"] == "/srv/wheels"


def test_only_ways_to_the_index_reach_the_build():
    assert portable_config(parse_listing(LISTING)) == (
        "[global]\nextra-index-url = https://mirror.example/simple\ntrusted-host = mirror.example\ntimeout = 180\n"
    )


def test_settings_that_mean_nothing_in_a_build_give_no_file():
    assert portable_config(parse_listing("global.constraint='/x'\nglobal.extra-index-url='file:///a /b'")) == ""
    assert portable_config({}) == ""


def test_find_links_names_folders_of_this_machine_only():
    found = find_links_folders({"find-links": "/a file:///b https://c.example/wheels"})
    assert found == ("/a", "/b")


GOOD = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
LOCK = "torch==2.13.0+cpu \\\n    --hash=sha256:{}\n"


def test_only_wheels_of_the_lock_are_looked_at():
    names = [
        GOOD,
        "torch-2.12.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        "torch-2.13.0+cpu-cp313-cp313-manylinux_2_28_x86_64.whl",
        "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_aarch64.whl",
        "torchvision-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        "torch-2.13.0+cpu.tar.gz",
        "README.md",
    ]
    assert wanted(names, LOCK.format("a" * 64)) == (GOOD,)
    assert digests(LOCK.format("a" * 64)) == {"a" * 64}


@pytest.fixture
def clone(tmp_path):
    (tmp_path / "clone" / "docker" / "wheels").mkdir(parents=True)
    (tmp_path / "wheels").mkdir()
    return tmp_path / "clone", tmp_path / "wheels"


def lock_for(contents: bytes) -> str:
    import hashlib

    return LOCK.format(hashlib.sha256(contents).hexdigest())


def test_a_wheel_is_linked_only_when_its_contents_are_the_locks(clone):
    root, place = clone
    (place / GOOD).write_bytes(b"genuine")
    found = host.link((place,), root, lock_for(b"genuine"))
    assert (found.used, found.refused) == ((GOOD,), ())
    assert (root / "docker" / "wheels" / GOOD).samefile(place / GOOD), "linked, not copied"
    assert host.link((), root, lock_for(b"genuine")).used == (GOOD,), "what lies there already counts"


def test_a_wheel_of_the_right_name_and_other_contents_is_refused(clone):
    root, place = clone
    (place / GOOD).write_bytes(b"forged")
    found = host.link((place,), root, lock_for(b"genuine"))
    assert (found.used, found.refused) == ((), (GOOD,))
    assert list((root / "docker" / "wheels").iterdir()) == []


def test_a_forged_wheel_that_lies_in_the_folder_gives_way_to_the_genuine_one(clone):
    root, place = clone
    (root / "docker" / "wheels" / GOOD).write_bytes(b"forged")
    (place / GOOD).write_bytes(b"genuine")
    found = host.link((place,), root, lock_for(b"genuine"))
    assert (found.used, found.refused) == ((GOOD,), ())
    assert (root / "docker" / "wheels" / GOOD).read_bytes() == b"genuine"


def test_across_file_systems_a_wheel_is_copied(clone, monkeypatch):
    def refuse(*_):
        raise OSError(18, "Invalid cross-device link")

    root, place = clone
    (place / GOOD).write_bytes(b"genuine")
    monkeypatch.setattr(host.os, "link", refuse)
    host.link((place,), root, lock_for(b"genuine"))
    assert [file.name for file in (root / "docker" / "wheels").iterdir()] == [GOOD]


def test_a_folder_that_was_named_must_exist(tmp_path):
    settings = {"find-links": f"{tmp_path} /no/such/folder"}
    assert host.folders(None, {}, settings) == (tmp_path,)
    assert host.folders(str(tmp_path), {"SM86_WHEELS": "/other"}, {}) == (tmp_path,)
    for given, environment in (("/no/such", {}), (None, {"SM86_WHEELS": "/no/such"})):
        with pytest.raises(CouldNotRun, match="no folder of wheels /no/such"):
            host.folders(given, environment, settings)
