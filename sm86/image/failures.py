"""Why a build failed, from the last words of its failing step and of the client. Pure."""

from __future__ import annotations

import re

from sm86.errors import CouldNotRun


class BuildFailed(CouldNotRun):
    """A build that did not end in an image; `kind` is one word of KINDS. Nothing new is tagged."""

    def __init__(self, kind: str, what: str, mend: str, evidence: tuple[str, ...] = ()) -> None:
        super().__init__(what, mend, evidence)
        self.kind = kind


_RULES: tuple[tuple[str, str, str, str], ...] = (
    (
        "hash",
        r"DO NOT MATCH THE HASHES",
        "a package's file is not the one that the lock names",
        "do not use that file: see where it comes from (docker/wheels, a mirror), and only then make the lock again",
    ),
    (
        "space",
        r"no space left on device|Errno 28|disk quota exceeded",
        "the disk is full",
        "free some space (docker system df, docker builder prune), then try again: finished steps are kept",
    ),
    (
        "no-daemon",
        r"cannot connect to the docker daemon|error during connect|is the docker daemon running",
        "no Docker engine answers",
        "start it (sudo systemctl start docker, or Docker Desktop), then build again",
    ),
    (
        "engine-died",
        r"(?m)^unexpected EOF$|error reading from server: EOF|code = Unavailable|transport is closing",
        "the Docker engine ended while it built",
        "start it again and repeat the build: finished steps and compiled objects are kept (its log says why)",
    ),
    (
        "no-rights",
        r"permission denied while trying to connect|dial unix \S+: connect: permission denied",
        "this user may not talk to the Docker engine",
        "sudo usermod -aG docker $USER and log in again, or run with sudo",
    ),
    (
        "no-buildkit",
        r"buildx component is missing|requires BuildKit|unknown flag: --(secret|progress)|unknown flag: --mount",
        "this docker client cannot build with BuildKit",
        "install the buildx plugin (package docker-buildx-plugin, or docker-buildx on Ubuntu)",
    ),
    (
        "network-mode",
        r"network\.host is not allowed|entitlement network\.host",
        "this builder does not lend the machine's network to a build",
        "SM86_BUILD_NETWORK=default invoke build, or a builder made with network.host allowed",
    ),
    (
        "certificate",
        r"CERTIFICATE_VERIFY_FAILED|CertVerificationError|x509: |certificate verify failed|self.signed certificate",
        "the certificate of a package server is not trusted",
        "set SM86_CA_BUNDLE (for pip itself: PIP_CERT) to the file with your network's CA certificates, then try again",
    ),
    (
        "base",
        r"(failed to resolve source metadata|failed to do request|failed to authorize|pull access denied"
        r"|manifest unknown|load metadata for)[\s\S]*|docker\.io/library/\S+: not found",
        "the base image cannot be had from its registry",
        "try again, or make the base from Debian packages: invoke build --offline-base",
    ),
    (
        "torch",
        r"No matching distribution found for torch==\S+\+cpu",
        "torch for the CPU cannot be had: PyTorch's own index does not answer and docker/wheels has no wheel for it",
        "put the wheel into docker/wheels (docker/wheels/README.md), or name its folder with --wheels",
    ),
    (
        "python",
        r"(cpu|gpu)-py\d+\.txt'?: (\[Errno 2\] )?No such file|Could not open requirements file",
        "there is no lock for the base image's Python",
        "use a base image with Python 3.12 or 3.11",
    ),
    (
        "network",
        r"temporary failure (in name resolution|resolving)|failed to establish a new connection|could not resolve"
        r"|network is unreachable|ReadTimeoutError|ConnectTimeoutError|no such host|i/o timeout|TLS handshake timeout"
        r"|connection (refused|reset)|Max retries exceeded|Failed to fetch|No matching distribution found",
        "a package could not be fetched",
        "see whether this machine reaches the package index and Debian's mirrors (proxy, VPN), then try again",
    ),
    (
        "memory",
        r"exit code: 137|signal: killed|Out of memory|Cannot allocate memory",
        "a build step was killed, most likely for want of memory",
        "close other programs or give the Docker engine more memory, then build again",
    ),
)

KINDS = (*(rule[0] for rule in _RULES), "step", "client")


def classify(words: str, step: str | None, evidence: tuple[str, ...] = ()) -> BuildFailed:
    """The failure that `words` mean. step: the failing step's title, None where the client failed before any."""
    for kind, pattern, what, mend in _RULES:
        if re.search(pattern, words, re.IGNORECASE):
            where = f" ({step})" if step else ""
            return BuildFailed(kind, what + where, mend, evidence)
    if step:
        return BuildFailed("step", f"a build step failed: {step}", "mend what its last words name", evidence)
    return BuildFailed("client", "docker could not build", "mend what its last words name", evidence)
