"""The SBOM: Python's packages as they come, Debian's, Python itself and what was rebuilt; the same bytes every time."""

from __future__ import annotations

import json

from sm86.image.steps import sbom
from sm86.image.steps.sbom import complete, debian_packages, main, rebuilt

STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u13
Description: GNU C Library
 Version: not this one

Package: gone
Status: deinstall ok config-files
Version: 1.0

Package: adduser
Status: install ok installed
Architecture: all
Version: 1:3.134
"""
PACKAGES = {
    "bomFormat": "CycloneDX",
    "components": [{"name": "torch", "version": "2.11.0", "bom-ref": "torch==2.11.0"}],
    "dependencies": [{"ref": "torch==2.11.0"}],
}
ASSEMBLED = {
    "native": {"source": "vllm-0.26.0.tar.gz", "libraries": {"vllm/_C.so": {}}},
    "libraries": {"vllm/_C.so": {"sha256": "ab" * 32}, "vllm/other.so": {"sha256": "cd" * 32}},
}


def test_debians_installed_packages_and_no_others():
    found = list(debian_packages(STATUS))
    assert [item["purl"] for item in found] == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64",
        "pkg:deb/debian/adduser@1%3A3.134?arch=all",
    ]


def test_what_was_rebuilt_is_named_with_its_hash():
    assert [(item["name"], item["hashes"][0]["content"]) for item in rebuilt(ASSEMBLED)] == [("vllm/_C.so", "ab" * 32)]
    assert list(rebuilt({"libraries": {"a": {"sha256": "x"}}})) == []


def test_everything_is_in_order_and_nothing_of_the_first_list_is_lost():
    document = complete(PACKAGES, "3.12.12", STATUS, ASSEMBLED)
    refs = [item["bom-ref"] for item in document["components"]]
    assert refs == sorted(refs) and len(set(refs)) == 5 and "torch==2.11.0" in refs
    assert document["dependencies"] == PACKAGES["dependencies"] and "pkg:generic/python@3.12.12" in refs


def test_the_command_writes_the_same_bytes_twice_and_says_what_is_missing(tmp_path, monkeypatch, capsys):
    (tmp_path / "packages.json").write_text(json.dumps(PACKAGES))
    (tmp_path / "status").write_text(STATUS)
    monkeypatch.setattr(sbom, "DPKG_STATUS", tmp_path / "status")
    for name in ("one", "two"):
        assert main(["--packages", str(tmp_path / "packages.json"), "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert main(["--packages", str(tmp_path / "none.json"), "--out", str(tmp_path / "three")]) == 2
    assert "the SBOM cannot be made" in capsys.readouterr().err and not (tmp_path / "three").exists()
