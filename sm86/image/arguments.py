"""A build, as a value -> the argument list of `docker build`. Pure; tested by exact argv."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sm86.image.clients import Client
from sm86.image.context import DOCKERFILE

PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Settings that Docker hands to a build without keeping them in the image."""

ENVIRONMENT = {"DOCKER_BUILDKIT": "1", "BUILDKIT_PROGRESS": "plain"}


@dataclass(frozen=True, slots=True)
class Build:
    """What is to be built.

    secrets: (id, path) of files that the build may read and never keeps; network: "host" or "" for the
    engine's default; proxies: names of variables whose values the build gets from the environment;
    torch_index: where torch for the CPU comes from, "" for PyTorch's own index; variant: of the GPU image, "" for cpu.
    """

    target: str
    image: str
    base: str
    git_rev: str = ""
    git_dirty: bool | None = None
    secrets: tuple[tuple[str, str], ...] = ()
    network: str = "host"
    proxies: tuple[str, ...] = ()
    torch_index: str = ""
    cubin: bool = False
    no_cache: bool = False
    variant: str = ""


def build_argv(client: Client, build: Build) -> tuple[str, ...]:
    """Arguments of the client, its own path first, to be run in the repository's root."""
    argv = [client.program, *(("buildx", "build", "--load") if client.has_buildx else ("build",))]
    argv += ["--file", DOCKERFILE, "--target", build.target, "--tag", build.image, "--progress", "plain"]
    for name, value in build_args(build).items():
        argv += ["--build-arg", f"{name}={value}"]
    for name in build.proxies:
        # without a value: the client takes it from its environment, so a password in it is not in any argument list
        argv += ["--build-arg", name]
    for name, path in build.secrets:
        argv += ["--secret", f"id={name},src={path}"]
    if build.network:
        argv += ["--network", build.network]
    if build.no_cache:
        argv.append("--no-cache")
    return (*argv, ".")


def build_args(build: Build) -> dict[str, str]:
    """The Dockerfile's own arguments; one that is not known is left out, never empty."""
    args = {"BASE_IMAGE": build.base}
    if build.git_rev:
        args["GIT_REV"] = build.git_rev
        if build.git_dirty is not None:
            args["GIT_DIRTY"] = "true" if build.git_dirty else "false"
    if build.torch_index:
        args["TORCH_CPU_INDEX"] = build.torch_index
    if build.cubin:
        args["FLASHINFER_CUBIN"] = "1"
    if build.variant:
        args["VARIANT"] = build.variant
    if build.variant == "native" and build.no_cache:
        # Docker repeats the step, and the folder of compiled objects outlives that
        args["NATIVE_FRESH"] = "1"
    return args


def proxies_in(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the proxy settings that are set and not empty."""
    return tuple(name for name in PROXIES if environment.get(name))
