"""Facts of a GPU image's kernel libraries and compilers -> findings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sm86.image.judge.finding import FAIL, NOT_SEEN, OK, Finding, error_of
from sm86.image.judge.operators import LIBRARIES, NOT_COMPILED, PUBLISHED, lacking

OWN_LIBRARIES = (
    "sm86/backend/attention/libsm86_attention.so",
    "sm86/backend/collectives/libsm86_collectives.so",
)
"""The libraries of this package's own CUDA kernels; without them every first boot would compile them."""


def kernels(facts: Mapping[str, Any], build: Mapping[str, Any]) -> Iterator[Finding]:
    """Every finding on device code, imports and run-time compilers; none for an image of the CPU target."""
    if build.get("target") == "cpu":
        return
    libraries = facts.get("libraries") or {}
    for target in LIBRARIES:
        yield _architectures(f"vllm/{target}.abi3.so", libraries, build, target)
    for name in OWN_LIBRARIES:
        yield _architectures(name, libraries, {"variant": "native"}, name.rsplit("/", 1)[1])
    yield _as_recorded(libraries, build)
    yield _loader_paths(libraries)
    yield _operators(facts.get("operators"), str(build.get("variant", "")))
    yield _all("serving", facts.get("serving"), "a server's modules are imported on a made-up GPU of SM 8.6")
    yield _all("jit", facts.get("jit"), "compilers that a server uses at run time make code for SM 8.6")


def _architectures(name: str, libraries: Mapping[str, Any], build: Mapping[str, Any], rule: str) -> Finding:
    archs = libraries.get(name)
    problem = error_of(archs)
    if archs is None or problem:
        return Finding(rule, FAIL, f"{name} is missing or damaged: {problem or 'missing'}", "rebuild the image")
    sass = {int(arch): count for arch, count in archs["sass"].items()}
    others = sorted(set(sass) - {86})
    if not {86, 80} & set(sass):
        return Finding(rule, FAIL, f"{name} has no code that SM 8.6 runs", "rebuild for TORCH_CUDA_ARCH_LIST=8.6")
    if build.get("variant") == "native" and others:
        text = f"{name} is called native but holds code for sm_{', sm_'.join(map(str, others))}"
        return Finding(rule, FAIL, text, "rebuild with --variant native")
    return Finding(rule, OK, f"{name}: sm_86 x{sass.get(86, 0)}, sm_80 x{sass.get(80, 0)}")


def _as_recorded(libraries: Mapping[str, Any], build: Mapping[str, Any]) -> Finding:
    recorded = build.get("libraries") or {}
    if not recorded:
        return Finding("libraries", NOT_SEEN, "the build record names no kernel library", "rebuild the image")
    found = {name: facts.get("sha256") for name, facts in libraries.items()}
    wanted = {name: facts.get("sha256") for name, facts in recorded.items()}
    differing = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
    if differing:
        text = f"{len(differing)} kernel libraries are not those of the build record, first {differing[0]}"
        return Finding("libraries", FAIL, text, "rebuild the image")
    return Finding("libraries", OK, f"all {len(found)} kernel libraries are those of the build record")


def _loader_paths(libraries: Mapping[str, Any]) -> Finding:
    """Whether no library has the loader look in other folders than the system's and its own: any other one, and the
    empty name, which is the current folder, may hold somebody else's library."""
    rule = "loader paths"
    seen = {name: found.get("loader_paths") for name, found in libraries.items()}
    unseen = sorted(name for name, folders in seen.items() if not isinstance(folders, list))
    if unseen or not seen:
        return Finding(rule, NOT_SEEN, f"not told of {unseen[0] if unseen else 'any library'}", "rebuild the image")
    strange = {name: folder for name, folders in seen.items() for folder in folders if not folder.startswith("$ORIGIN")}
    if strange:
        name, folder = next(iter(sorted(strange.items())))
        return Finding(
            rule, FAIL, f"{name} has the loader look in {folder or 'the current folder'}", "rebuild the image"
        )
    return Finding(rule, OK, f"all {len(seen)} kernel libraries name no folder outside their own")


def _operators(answers: Any, variant: str) -> Finding:
    """Whether vLLM's operators have their kernels, but for those that a build for SM 8.6 is known to lack."""
    problem = error_of(answers)
    if problem or not answers:
        return Finding("operators", NOT_SEEN, f"not asked: {problem or 'no answer'}", "rebuild the image")
    missing = tuple(lacking(answers, variant))
    if missing:
        text = f"{len(missing)} of vLLM's operators have no kernel, first {missing[0]}"
        return Finding(
            "operators", FAIL, text, "rebuild the image; a new reason belongs into sm86/image/judge/operators.py"
        )
    known = len(NOT_COMPILED) if variant == "native" else 0
    told = f"{len(PUBLISHED) - known} of vLLM's {len(PUBLISHED)} operators have their kernel"
    return Finding("operators", OK, told + (f"; {known} are for newer GPUs" if known else ""))


def _all(rule: str, answers: Any, text: str) -> Finding:
    """One finding on a table name -> "" or what went wrong."""
    problem = error_of(answers)
    if problem or not answers:
        return Finding(rule, NOT_SEEN, f"it was not tried: {problem or 'no answer'}", "see it")
    bad = {name: why for name, why in answers.items() if why}
    if bad:
        name, why = next(iter(bad.items()))
        return Finding(rule, FAIL, f"{len(bad)} of {len(answers)} fail, first {name}: {why}", "rebuild the image")
    return Finding(rule, OK, f"all {len(answers)}: {text}")
