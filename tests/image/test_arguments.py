"""The argument list of `docker build`, exactly."""

from __future__ import annotations

import pytest

from sm86.image.arguments import Build, build_argv, proxies_in
from sm86.image.clients import Client, choose, client_version

OLD = Client("/usr/bin/docker", (20, 10, 24), False)
NEW = Client("/usr/local/bin/docker", (28, 2, 2), True)
BARE = Client("/opt/docker", (28, 2, 2), False)


def test_an_old_client_builds_by_itself():
    build = Build("cpu", "sm86-vllm-cpu:0.28.0", "sm86-base:bookworm", network="")
    assert build_argv(OLD, build) == (
        "/usr/bin/docker",
        "build",
        "--file",
        "docker/Dockerfile",
        "--target",
        "cpu",
        "--tag",
        "sm86-vllm-cpu:0.28.0",
        "--progress",
        "plain",
        "--build-arg",
        "BASE_IMAGE=sm86-base:bookworm",
        ".",
    )


def test_a_new_client_uses_buildx_and_everything_that_was_found():
    build = Build(
        "gpu",
        "sm86-vllm:0.26.0",
        "python:3.12.12-slim-bookworm",
        git_rev="a" * 40,
        git_dirty=False,
        secrets=(("ca", "/etc/ssl/ca.crt"), ("pip", "/tmp/pip.conf")),
        proxies=("https_proxy",),
        torch_index="https://mirror.example/cpu",
        cubin=True,
        no_cache=True,
    )
    assert build_argv(NEW, build) == (
        "/usr/local/bin/docker",
        "buildx",
        "build",
        "--load",
        "--file",
        "docker/Dockerfile",
        "--target",
        "gpu",
        "--tag",
        "sm86-vllm:0.26.0",
        "--progress",
        "plain",
        "--build-arg",
        "BASE_IMAGE=python:3.12.12-slim-bookworm",
        "--build-arg",
        f"GIT_REV={'a' * 40}",
        "--build-arg",
        "GIT_DIRTY=false",
        "--build-arg",
        "TORCH_CPU_INDEX=https://mirror.example/cpu",
        "--build-arg",
        "FLASHINFER_CUBIN=1",
        "--build-arg",
        "https_proxy",
        "--secret",
        "id=ca,src=/etc/ssl/ca.crt",
        "--secret",
        "id=pip,src=/tmp/pip.conf",
        "--network",
        "host",
        "--no-cache",
        ".",
    )


@pytest.mark.parametrize(
    ("variant", "no_cache", "args"),
    [
        ("", True, []),
        ("wheel", True, ["VARIANT=wheel"]),
        ("native", False, ["VARIANT=native"]),
        ("native", True, ["VARIANT=native", "NATIVE_FRESH=1"]),
    ],
)
def test_a_build_without_the_cache_does_not_take_compiled_objects_either(variant, no_cache, args):
    argv = build_argv(OLD, Build("gpu", "x", "b", variant=variant, no_cache=no_cache))
    assert [item for item in argv if item.startswith(("VARIANT", "NATIVE"))] == args


def test_what_is_not_known_is_not_said():
    args = [item for item in build_argv(OLD, Build("cpu", "x", "b", git_rev="c" * 40)) if "GIT" in item]
    assert args == [f"GIT_REV={'c' * 40}"], "a revision whose tree was not looked at says nothing of dirt"
    assert not [item for item in build_argv(OLD, Build("cpu", "x", "b", git_dirty=True)) if "GIT" in item]


def test_a_proxy_password_is_in_no_argument():
    secret = "http://user:password@proxy:3128"
    names = proxies_in({"http_proxy": secret, "HTTPS_PROXY": "", "PATH": "/bin"})
    assert names == ("http_proxy",)
    assert not any("password" in item for item in build_argv(OLD, Build("cpu", "x", "b", proxies=names)))


@pytest.mark.parametrize(
    ("clients", "expected"),
    [
        ((BARE, OLD), OLD),
        ((NEW, OLD), NEW),
        ((BARE,), None),
        ((), None),
        ((Client("d", (18, 6), False),), None),
        ((Client("d", (18, 9), False),), Client("d", (18, 9), False)),
        ((Client("d", (23, 0), False),), None),
    ],
)
def test_the_first_client_with_buildkit_is_chosen(clients, expected):
    assert choose(clients) == expected


@pytest.mark.parametrize(
    ("words", "version"),
    [
        ("Docker version 20.10.24+dfsg1, build 297e128\n", (20, 10, 24)),
        ("Docker version 28.2.2, build e6534b4", (28, 2, 2)),
        ("Docker version 29.0", (29, 0)),
        ("podman version 5.2.1", None),
        ("", None),
        ("docker: command not found", None),
    ],
)
def test_a_client_says_its_version(words, version):
    assert client_version(words) == version
