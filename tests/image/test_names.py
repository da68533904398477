"""Names of images, and that the Dockerfile says what the specs say."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sm86.image.context import DOCKERFILE, SOURCES
from sm86.image.names import OFFICIAL_BASE, OFFLINE_BASE, image_name, is_image_name, target_of
from sm86.spec import load_envelope
from sm86.spec.load import load_pins

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / DOCKERFILE).read_text()


def test_an_image_is_named_after_the_vllm_inside():
    assert image_name("gpu") == f"sm86-vllm:{load_pins().version('vllm')}"
    assert image_name("cpu") == f"sm86-vllm-cpu:{load_pins().version('cpu-vllm')}"
    assert (target_of("cuda"), target_of("cpu")) == ("gpu", "cpu")


@pytest.mark.parametrize(
    ("name", "right"),
    [
        *((name, True) for name in (OFFICIAL_BASE, OFFLINE_BASE, "a", "a/b_c:V1", "host:5000/a/b:1", "Host.example/a")),
        *(
            (name, False)
            for name in ("", "Bad", "bad name", "a:", ":1", "a//b", "a:b c", "-a", "a:1:2", "a\n", "--tag")
        ),
    ],
)
def test_what_docker_would_take_for_a_name(name, right):
    assert is_image_name(name) is right


def test_the_default_base_is_the_pinned_python():
    assert f"ARG BASE_IMAGE={OFFICIAL_BASE}\n" in TEXT
    assert OFFICIAL_BASE.startswith(f"python:{load_pins().version('python')}-")


def test_the_dockerfile_carries_the_embedded_model_where_the_envelope_looks_for_it():
    assert f"sm86.embedded.convert /models/{load_envelope('cpu-smoke').model.folder}\n" in TEXT


def test_the_label_is_the_packages_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.findall(r'image\.version="([^"]+)"', TEXT) == [version, version]


def test_both_images_serve_without_root_and_without_a_shell():
    for target in ("cpu", "gpu"):
        stage = TEXT.split(f" AS {target}\n", 1)[1].split("\nFROM ", 1)[0]
        assert "\nUSER 1000:1000\n" in stage
        assert '\nENTRYPOINT ["python3", "-P", "-m", "sm86.launch"]' in stage
        assert "RUN" not in re.findall(r"^[A-Z]+", stage, re.MULTILINE), "a change in sm86/ must only copy here"


def test_every_package_comes_with_its_hash_and_nothing_is_resolved():
    logical = TEXT.replace("\\\n", " ")
    installs = re.findall(r"pip (?:--python \S+ )?(?:install|download)[^&\n]*", logical)
    assert len(installs) == 9
    for install in installs:
        assert "--no-deps" in install
        assert "--require-hashes" in install or install.rstrip().endswith("/src")
        assert "--no-compile" in install or "download" in install, "bytecode is made once, by content"


def test_no_frontend_has_to_be_fetched():
    assert not TEXT.lower().startswith("# syntax="), "it would be pulled from a registry"


def test_the_build_context_holds_what_an_image_is_made_from_and_no_more():
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    shown = {line[1:] for line in lines if line[0] == "!"}
    assert set(SOURCES) <= shown
    assert shown - set(SOURCES) == {
        "docker/wheels",
        ".git/HEAD",
        ".git/packed-refs",
        ".git/refs/heads",
        ".git/index",
    }


def test_the_dockerfile_passes_its_linter():
    done = subprocess.run(
        [Path(sys.executable).parent / "hadolint", ROOT / DOCKERFILE], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("rule", re.findall(r"hadolint ignore=(\S+)", TEXT))
def test_every_ignored_rule_has_its_reason_above_it(rule):
    lines = TEXT.splitlines()
    for number, line in enumerate(lines):
        if line == f"# hadolint ignore={rule}":
            assert lines[number - 1].startswith("# ") and len(lines[number - 1]) > 40
