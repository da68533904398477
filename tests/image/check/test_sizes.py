"""Bytes by package, as the files lie there: stripped, rebuilt, compiled to bytecode, or of no package at all."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from sm86.image.check import sizes

RECORD = """a/__init__.py,sha256=x,100
a/lib.so,,5000
nvidia/cu13/lib/a.so,,1
../../bin/a,,3
"a/with, comma.py",,1
a-1.0.dist-info/RECORD,,
"""


def put(root: Path, name: str, size: int) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


def package(root: Path, name: str, record: str) -> None:
    folder = root / f"{name.replace('-', '_')}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "RECORD").write_text(record)


def test_a_records_paths_lie_below_its_folder():
    assert list(sizes.recorded(RECORD, "/v/lib/site")) == [
        "/v/lib/site/a/__init__.py",
        "/v/lib/site/a/lib.so",
        "/v/lib/site/nvidia/cu13/lib/a.so",
        "/v/bin/a",
        "/v/lib/site/a/with, comma.py",
        "/v/lib/site/a-1.0.dist-info/RECORD",
    ]


def test_what_is_there_counts_and_not_what_the_record_says():
    owners = dict.fromkeys(sizes.recorded(RECORD, "/site"), "a") | {"/site/nvidia/cu13/lib/b.so": "b"}
    files = [
        ("/site/a/lib.so", 70),
        ("/site/a/__init__.py", 1),
        ("/site/a/__pycache__/__init__.cpython-311.pyc", 2),
        ("/site/a/new/deep/kernel.so", 4),
        ("/site/nvidia/cu13/lib/b.so", 500),
        ("/site/sm86.pth", 8),
        ("/site/strange/x", 16),
    ]
    assert sizes.by_owner(files, owners, ["/site"]) == {"a": 77, "b": 500, sizes.NOBODYS: 24}


def test_bytecode_beside_no_source_counts_for_its_folder():
    owners = {"/site/a/b.py": "a", "/site/shared/one.py": "one", "/site/shared/two.py": "two"}
    files = [("/site/a/__pycache__/gone.pyc", 1), ("/site/shared/__pycache__/two.cpython-312.pyc", 10)]
    assert sizes.by_owner(files, owners, ["/site"]) == {"a": 1, "two": 10}


def test_debians_packages_are_their_files_that_are_there(tmp_path):
    put(tmp_path, "usr/lib/cc1", 40)
    (tmp_path / "usr/lib/link").symlink_to("cc1")
    listed = (tmp_path / "usr/lib", tmp_path / "usr/lib/cc1", tmp_path / "usr/lib/link", tmp_path / "usr/doc/pruned")
    put(tmp_path, "info/gcc-12:amd64.md5sums", 9)
    (tmp_path / "info/gcc-12:amd64.list").write_text("/.\n" + "\n".join(map(str, listed)) + "\n")
    assert sizes.debian(tmp_path / "info") == {"gcc-12": 40}
    assert sizes.debian(tmp_path / "no") == {}


def test_the_whole_is_largest_first(tmp_path, monkeypatch):
    site = tmp_path / "site"
    package(site, "Big.One", "big/a.py,,1\nBig.One-1.0.dist-info/RECORD,,\n")
    package(site, "small", "small.py,,1\nsmall-1.0.dist-info/RECORD,,\n")
    put(site, "big/a.py", 5000)
    put(site, "small.py", 7)
    monkeypatch.setattr(
        sizes.importlib.metadata,
        "distributions",
        lambda: importlib.metadata.MetadataPathFinder.find_distributions(
            importlib.metadata.DistributionFinder.Context(path=[str(site)])
        ),
    )
    monkeypatch.setattr(sizes, "DPKG_LISTS", tmp_path / "no")
    found = sizes.package_sizes()
    assert list(found["python"]) == ["big-one", "small"]
    assert found["python"]["big-one"] > 5000 and found["debian"] == {}
    assert sum(found["python"].values()) == sum(p.stat().st_size for p in site.rglob("*") if p.is_file())
