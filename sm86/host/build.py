"""Building an image: client, revision, base, wheels, disk, secrets, then `docker build` with its progress."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.host import base as base_image
from sm86.host import builder, image_papers
from sm86.host import wheels as local_wheels
from sm86.host.docker import DockerGateway, require_engine
from sm86.host.lock import check_locks
from sm86.host.process import run
from sm86.image.arguments import ENVIRONMENT, Build, build_argv, proxies_in
from sm86.image.clients import Client
from sm86.image.context import DOCKERFILE, SOURCES
from sm86.image.failures import BuildFailed, classify
from sm86.image.git_facts import UNKNOWN, head_revision
from sm86.image.lock_check import BASE_FILE, locked_base
from sm86.image.locks import LOCKS_DIR, PYTHONS, files_of, sbom_lock
from sm86.image.names import OFFLINE_BASE, TARGETS, VARIANTS, image_name, is_image_name
from sm86.image.pip_settings import portable_config
from sm86.image.progress import Progress

NEEDED_BYTES = {"cpu": 8_000_000_000, "wheel": 20_000_000_000, "native": 24_000_000_000}
"""Free bytes that a first build needs at the engine's root, with its cache of finished steps: by variant, or "cpu"."""

VARIANT_LABEL = "sm86.variant"
"""The Dockerfile's label that tells the variants of the GPU image apart; both have one name."""

CA_BUNDLES = ("SM86_CA_BUNDLE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE")
SYSTEM_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
NETWORK_VARIABLE = "SM86_BUILD_NETWORK"
BASE_VARIABLE = "SM86_BASE_IMAGE"
TORCH_INDEX_VARIABLE = "SM86_TORCH_CPU_INDEX"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asks for. image: another name than the usual; wheels: a folder of wheels to use first;
    variant: where the GPU image's kernel libraries come from.
    """

    target: str
    image: str | None = None
    offline_base: bool = False
    wheels: str | None = None
    cubin: bool = False
    no_cache: bool = False
    variant: str = VARIANTS[0]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is decided before the engine is asked to build."""

    client: Client
    build: Build
    wheels: tuple[Path, ...]
    pip_config: str
    make_base: bool
    notes: tuple[str, ...] = ()

    @property
    def argv(self) -> tuple[str, ...]:
        return build_argv(self.client, self.build)


@dataclass(frozen=True, slots=True)
class Built:
    """The image that is there now; size in bytes, seconds for everything, log: the client's whole output.

    papers: the build record and the SBOM, copied out of the image.
    """

    image: str
    image_id: str
    size: int
    base: str
    seconds: float
    log: Path
    papers: tuple[Path, ...]


def plan(request: Request, root: Path, docker: DockerGateway, say: Say) -> Plan:
    """Decide everything; asks the engine, git, pip and, without --offline-base, the registry. Changes nothing.

    Raises CouldNotRun: unknown target or variant, a wish that the target cannot have, not a checkout of the product,
    locks that are not of the pins, no client that can build, no such folder.
    """
    if request.target not in TARGETS:
        raise refused_target(request.target)
    if request.variant not in VARIANTS:
        raise CouldNotRun(f"there is no variant {request.variant!r}", f"the variants are: {', '.join(VARIANTS)}")
    _refuse_wishes(request)
    if not (root / DOCKERFILE).is_file():
        raise CouldNotRun(f"there is no {DOCKERFILE} in {root}", "run it in the folder of a clone of this repository")
    variant = request.variant if request.target == "gpu" else ""
    require_locks(root, request.target, request.cubin, variant)
    client = builder.find_client()
    settings = local_wheels.pip_settings()
    base, must_make, notes = _choose_base(request, root, docker, say)
    rev, dirty = git_state(root)
    notes = (*notes, *_revision_notes(root, rev, dirty))
    build = Build(
        target=request.target,
        image=request.image or image_name(request.target),
        base=base,
        git_rev=rev,
        git_dirty=dirty,
        network={"default": ""}.get(network := os.environ.get(NETWORK_VARIABLE) or "host", network),
        proxies=proxies_in(os.environ),
        torch_index=os.environ.get(TORCH_INDEX_VARIABLE, ""),
        cubin=request.cubin,
        no_cache=request.no_cache,
        variant=variant,
    )
    places = local_wheels.folders(request.wheels, os.environ, settings) if request.target == "cpu" else ()
    bundle = ca_bundle(os.environ)
    if bundle:
        build = replace(build, secrets=(("ca", bundle),))
    return Plan(client, build, places, portable_config(settings), must_make, notes)


def build(the: Plan, root: Path, docker: DockerGateway, say: Say) -> Built:
    """Carry the plan out; `say` gets one line for each step. The name is given to the image only at the very end.

    Raises BuildFailed with the failing step's last words, CouldNotRun for a disk that is too small.
    """
    began = time.monotonic()
    require_space(docker, the.build.variant or the.build.target, _is_first(docker, the.build))
    if the.make_base:
        base_image.make_base(the.client.program, say)
    if the.build.target == "cpu":
        found = local_wheels.link(the.wheels, root, (root / LOCKS_DIR / "cpu-torch.txt").read_text())
        for name in found.used:
            say(f"wheel: {name}")
        for name in found.refused:
            say(f"wheel not used, its SHA-256 is not in the lock: {name}")
    log = root / ".cache" / f"build-{the.build.target}.log"
    progress = Progress()

    def take(line: str) -> None:
        words = progress.feed(line)
        if words:
            say(words)

    with _pip_secret(the.pip_config) as secrets:
        argv = build_argv(the.client, replace(the.build, secrets=(*the.build.secrets, *secrets)))
        code = builder.stream(argv, ENVIRONMENT, root, log, take)
    if code != 0:
        raise _failure(progress, log)
    facts = docker.image(the.build.image)
    if facts is None:
        raise BuildFailed(
            "client",
            f"docker ended well, but the engine has no image {the.build.image}",
            "use a builder that keeps its images in the engine (docker buildx use default)",
        )
    seconds = time.monotonic() - began
    beside = root / image_papers.FOLDER / image_papers.file_name(the.build.image)
    papers = image_papers.write_papers(docker, the.build.image, beside, {"seconds": round(seconds, 1)})
    return Built(the.build.image, facts.id, facts.size, the.build.base, seconds, log, papers)


def refused_target(target: str) -> CouldNotRun:
    """What a person is told who names a target that the Dockerfile does not have."""
    return CouldNotRun(f"there is no target {target!r}", f"the targets are: {', '.join(TARGETS)}")


def _refuse_wishes(request: Request) -> None:
    """What would be passed over in silence, or refused by docker in its own words, is refused here."""
    if request.image and not is_image_name(request.image):
        raise CouldNotRun(
            f"{request.image!r} is no name for an image", "give one in lower case, such as sm86-vllm:mine"
        )
    if request.cubin and request.target != "gpu":
        raise CouldNotRun("--cubin is for the gpu image", "leave it out, or build --target gpu")
    if request.variant != VARIANTS[0] and request.target != "gpu":
        raise CouldNotRun("--variant is for the gpu image", "leave it out, or build --target gpu")
    if request.wheels and request.target != "cpu":
        raise CouldNotRun(
            "--wheels is for the cpu image, whose torch is not on the usual index", "leave it out, or --target cpu"
        )


def _revision_notes(root: Path, rev: str, dirty: bool | None) -> tuple[str, ...]:
    # without the git command the build reads the same files
    if not rev and head_revision(root / ".git") == UNKNOWN:
        return ("git does not say which revision this is: `image.check` will refuse the image; build from a git clone",)
    if dirty:
        return (f"files differ from revision {rev[:12]}: `image.check` will refuse the image; commit them first",)
    return ()


def _is_first(docker: DockerGateway, build: Build) -> bool:
    """Whether hardly a step of this build can be there already: no image, one of the other variant, or no cache."""
    there = docker.image(build.image)
    return there is None or build.no_cache or there.labels.get(VARIANT_LABEL, "") != build.variant


def git_state(root: Path) -> tuple[str, bool | None]:
    """(revision, whether what reaches the image differs from it); ("", None) where git cannot say.

    Without the git command the revision is read from .git, and the build compares the files itself.
    """
    try:
        rev = run(("git", "-C", str(root), "rev-parse", "HEAD"), timeout=20)
        changes = run(("git", "-C", str(root), "status", "--porcelain", "--", *SOURCES), timeout=60)
    except CouldNotRun:
        return "", None
    if rev.ok and changes.ok:
        return rev.out.strip(), bool(changes.out.strip())
    found = head_revision(root / ".git")
    return ("" if found == UNKNOWN else found), None


def ca_bundle(environment: Mapping[str, str]) -> str:
    """The file of CA certificates that this machine trusts, "" where there is none."""
    named = (environment.get(name, "") for name in CA_BUNDLES)
    return next((path for path in (*named, *SYSTEM_BUNDLES) if path and os.path.isfile(path)), "")


def require_locks(root: Path, target: str, cubin: bool, variant: str) -> None:
    """Raise CouldNotRun when a lock that this image is made from is missing, altered or of other pins."""
    files = {f for python in PYTHONS for f in (*files_of(target, python, cubin, variant), sbom_lock(python))}
    found = check_locks(root, tuple(sorted(files)))
    if found:
        raise CouldNotRun(f"the locks cannot be used: {found[0]}", "invoke lock, or git checkout docker/locks")


def require_space(docker: DockerGateway, kind: str, first: bool) -> None:
    """Raise CouldNotRun when the engine's disk is too small for a first build (a rebuild needs a tenth)."""
    needed = NEEDED_BYTES[kind] // (1 if first else 10)
    place = docker.facts.root_dir or "/var/lib/docker"
    folder = next((parent for parent in (Path(place), *Path(place).parents) if parent.exists()), Path("/"))
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CouldNotRun(
            f"{needed / 1e9:.0f} GB are needed at {place}, {free / 1e9:.1f} GB are free",
            "free some space (docker system df, docker builder prune), or move the engine's data-root",
        )


def _choose_base(request: Request, root: Path, docker: DockerGateway, say: Say) -> tuple[str, bool, tuple[str, ...]]:
    """(image, whether it must be made first, notes for the person)."""
    have_offline = docker.image(OFFLINE_BASE) is not None
    if request.offline_base:
        return OFFLINE_BASE, not have_offline, ()
    named = os.environ.get(BASE_VARIABLE)
    if named:
        return named, False, (f"base image from {BASE_VARIABLE}",)
    official = locked_base((root / LOCKS_DIR / BASE_FILE).read_text())
    unpinned = f"the base image {official} is not pinned by digest (invoke lock, where its registry answers)"
    notes = () if "@" in official else (unpinned,)
    if docker.image(official) is not None:
        return official, False, notes
    say(f"asking the registry for {official} ...")
    if base_image.registry_answers(official):
        return official, False, notes
    return OFFLINE_BASE, not have_offline, ("no registry answers: the base image is made from Debian packages",)


@contextmanager
def _pip_secret(config: str) -> Iterator[tuple[tuple[str, str], ...]]:
    """pip's settings as a file that only this user can read, for the time of the build."""
    if not config:
        yield ()
        return
    with tempfile.NamedTemporaryFile("w", prefix="sm86-pip-", suffix=".conf") as file:
        file.write(config)
        file.flush()
        yield (("pip", file.name),)


def _failure(progress: Progress, log: Path) -> BuildFailed:
    step = progress.failed()
    shown = [line for line in (step.output if step else progress.tail) if not line.startswith("ERROR: executor failed")]
    return classify(progress.words(), step.title if step else None, (*shown[-6:], f"whole log: {log}"))


def engine() -> DockerGateway:
    """The engine that builds: it must run on this machine, as the build reads this machine's files and disk."""
    docker = require_engine()
    docker.local_only()
    return docker
