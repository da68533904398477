"""Facts of an image -> findings. Pure: the facts come from the probe inside and from the engine outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sm86.image.judge.finding import EXPECTED, FAIL, NOT_SEEN, OK, Finding, error_of
from sm86.image.judge.kernels import kernels
from sm86.image.names import OFFLINE_BASE
from sm86.spec import Pins

SECRET_WORDS = ("password", "token=", "api_key=", "apikey", "secret=", "-----begin")


@dataclass(frozen=True, slots=True)
class Outside:
    """What the Docker engine says of the image: user, environment, labels, history commands, layer sizes in bytes."""

    user: str
    environment: tuple[str, ...]
    labels: Mapping[str, str]
    history: tuple[str, ...]
    layers: tuple[int, ...]


def judge(facts: Mapping[str, Any], outside: Outside, pins: Pins) -> list[Finding]:
    """Every finding, in reading order. `facts` as `probe.facts` prints them."""
    build = facts.get("build") or {}
    checks: Sequence[Callable[[], Iterator[Finding]]] = (
        lambda: _build_record(build, pins),
        lambda: _python(facts, build, pins),
        lambda: _versions(facts, build, pins),
        lambda: _origin(facts),
        lambda: _plugins(facts, build),
        lambda: kernels(facts, build),
        lambda: _sbom(facts),
        lambda: _manifests(facts, build),
        lambda: _user(facts, outside),
        lambda: _secrets(outside),
    )
    return [finding for check in checks for finding in check()]


def exit_code(findings: Sequence[Finding]) -> int:
    """0 when every finding passes or is expected, else 1."""
    return 0 if findings and all(finding.state in (OK, EXPECTED) for finding in findings) else 1


def _build_record(build: Mapping[str, Any], pins: Pins) -> Iterator[Finding]:
    problem = error_of(build)
    if problem or not build:
        mend = "build the image with `invoke build`"
        yield Finding("build record", NOT_SEEN, f"the image has no build record: {problem or 'it is empty'}", mend)
        return
    revision = str(build.get("git_rev", "unknown"))
    if len(revision) != 40:
        yield Finding("build record", FAIL, f"git_rev is {revision!r}, not a commit", "build from a git clone")
    elif build.get("git_dirty") in (True, "true"):
        yield Finding(
            "build record", FAIL, f"built from a tree with changes on top of {revision[:12]}", "commit, rebuild"
        )
    else:
        yield Finding("build record", OK, f"built from {revision[:12]}, a clean tree")
    recorded = build.get("pins") or {}
    for name, version in sorted(recorded.items()):
        wanted = pins.by_name.get(name)
        if wanted is None or wanted.version != version:
            text = f"built with {name} {version}, the pins say {wanted.version if wanted else 'nothing'}"
            yield Finding("pins", FAIL, text, "rebuild the image: it is of other pins")


def _python(facts: Mapping[str, Any], build: Mapping[str, Any], pins: Pins) -> Iterator[Finding]:
    wanted, found = pins.version("python"), str(facts.get("python"))
    if found == wanted:
        yield Finding("python", OK, f"Python {found}")
    elif build.get("base") == OFFLINE_BASE:
        yield Finding(
            "python", EXPECTED, f"Python {found} from Debian: the build record says offline base (pin {wanted})"
        )
    else:
        yield Finding("python", FAIL, f"Python is {found}, the pin is {wanted}", "rebuild on the pinned base image")


def _versions(facts: Mapping[str, Any], build: Mapping[str, Any], pins: Pins) -> Iterator[Finding]:
    gpu = build.get("target") != "cpu"
    wanted = (
        {"torch": "torch", "nccl": "nccl", "flashinfer": "flashinfer", "vllm": "vllm"}
        if gpu
        else {"torch": "cpu-torch", "vllm": "cpu-vllm"}
    )
    imported = facts.get("imported") or {}
    for module, pin in wanted.items():
        found = imported.get(module)
        problem = error_of(found)
        if found is None or problem:
            yield Finding(module, FAIL, f"{module} cannot be imported: {problem or 'not tried'}", "rebuild the image")
        elif not _same_version(str(found), pins.version(pin)):
            yield Finding(module, FAIL, f"{module} is {found} as imported, the pin is {pins.version(pin)}", "rebuild")
        else:
            yield Finding(module, OK, f"{module} {found} as imported")


def _same_version(found: str, pin: str) -> bool:
    """Equal, a local part such as +cpu aside when the pin names none."""
    return found == pin or ("+" not in pin and found.split("+", 1)[0] == pin)


def _origin(facts: Mapping[str, Any]) -> Iterator[Finding]:
    origin = facts.get("vllm_envs_origin")
    problem = error_of(origin)
    if problem or not origin:
        yield Finding("vllm.envs", NOT_SEEN, f"vllm.envs cannot be imported: {problem}", "rebuild the image")
    elif "/site-packages/" in str(origin) or "/dist-packages/" in str(origin):
        yield Finding("vllm.envs", OK, f"vllm.envs is the image's own: {origin}")
    else:
        yield Finding("vllm.envs", FAIL, f"vllm.envs comes from {origin}", "another vLLM shadows the installed one")


def _plugins(facts: Mapping[str, Any], build: Mapping[str, Any]) -> Iterator[Finding]:
    points = {**(facts.get("plugins") or {}).get("vllm.general_plugins", {})}
    platform = {**(facts.get("plugins") or {}).get("vllm.platform_plugins", {})}
    found = {**points, **platform}
    wanted = "sm86_cpu" if build.get("target") == "cpu" else "sm86"
    if wanted in found:
        yield Finding("plugin", OK, f"vLLM discovers {wanted} = {found[wanted]}")
    else:
        text = f"vLLM does not discover the plugin {wanted}; it discovers {', '.join(sorted(found)) or 'none'}"
        yield Finding("plugin", FAIL, text, "install the sm86 package with its entry points")


def _sbom(facts: Mapping[str, Any]) -> Iterator[Finding]:
    found = facts.get("sbom")
    problem = error_of(found)
    if problem or not found:
        yield Finding("sbom", NOT_SEEN, f"the image has no list of what is in it: {problem or 'none'}", "rebuild it")
    elif found["missing"]:
        text = f"{len(found['missing'])} installed packages are not in the SBOM, first {found['missing'][0]}"
        yield Finding("sbom", FAIL, text, "rebuild the image")
    else:
        yield Finding("sbom", OK, f"the SBOM names {found['components']} components, every Python package among them")


def _manifests(facts: Mapping[str, Any], build: Mapping[str, Any]) -> Iterator[Finding]:
    manifests = facts.get("manifests") or {}
    if not manifests:
        yield Finding("manifests", NOT_SEEN, "no dry run was made", "the sm86 package is not installed in the image")
        return
    bad = {name: run for name, run in manifests.items() if run["code"] != 0 or not run["manifest"]}
    for name, run in bad.items():
        yield Finding(
            "manifests", FAIL, f"{name}: the dry run ended with {run['code']}: {' '.join(run['words'])}", "see it"
        )
    if not bad:
        yield Finding("manifests", OK, f"the dry run prints a whole manifest for all {len(manifests)} envelopes")
    revisions = {str(run["manifest"].get("git_rev")) for run in manifests.values() if run["manifest"]}
    if build.get("git_rev") and revisions and revisions != {build["git_rev"]}:
        yield Finding("manifests", FAIL, f"the manifest says git_rev {sorted(revisions)}, the build record another", "")


def _user(facts: Mapping[str, Any], outside: Outside) -> Iterator[Finding]:
    uid = (facts.get("user") or {}).get("uid")
    if uid in (0, None) or outside.user.split(":")[0] in ("", "0", "root"):
        yield Finding(
            "user", FAIL, f"the image runs as {outside.user or 'root'} (uid {uid})", "set USER to a plain user"
        )
    else:
        yield Finding("user", OK, f"runs as {outside.user} (uid {uid})")
    writable = facts.get("writable")
    if writable is None:
        yield Finding("permissions", NOT_SEEN, "the probe did not look for writable files", "use this version's image")
    elif writable:
        text = f"{len(writable)} paths may be written that need not be, first {writable[0]}"
        yield Finding("permissions", FAIL, text, "take the write permission away in the Dockerfile")
    else:
        yield Finding("permissions", OK, "nothing may be written outside the cache, lock and temporary folders")


def _secrets(outside: Outside) -> Iterator[Finding]:
    texts = [*outside.environment, *(f"{key}={value}" for key, value in outside.labels.items()), *outside.history]
    hits = [text for text in texts if any(word in text.lower() for word in SECRET_WORDS)]
    if hits:
        yield Finding(
            "secrets", FAIL, f"{len(hits)} entries of history, labels or environment look like a secret", "rebuild"
        )
    else:
        yield Finding("secrets", OK, "no secret in history, labels or environment")
