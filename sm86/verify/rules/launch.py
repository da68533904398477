"""Rules on what the launcher says it started: manifest, arguments, revision, origin."""

from __future__ import annotations

import re

from sm86 import manifest as manifest_format
from sm86.spec.argv import QUIET, serve_argv
from sm86.verify import events as ev
from sm86.verify.argv_text import Options, differences
from sm86.verify.case import (
    MEND_BOOT,
    MEND_CUT,
    Case,
    failed,
    is_on,
    not_seen,
    passed,
    text_of,
)
from sm86.verify.findings import Finding

_NEEDED = (
    "envelope",
    "envelope_digest",
    "engine",
    "git_rev",
    "vllm.envs_origin",
    "vllm_version",
    "argv",
    "environment",
)
_FULL_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_INSTALLED = re.compile(r"/.*/(?:site|dist)-packages/vllm/envs\.py")

_ARGUMENTS = {
    "served_model_name": "--served-model-name",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "block_size": "--block-size",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "enable_prefix_caching": "--enable-prefix-caching",
    "async_scheduling": "--async-scheduling",
}
"""What the engine says of its arguments that no other rule judges, and the flag that sets it."""


def manifest(case: Case) -> Finding:
    """The launcher's manifest is there, whole, of a version this program reads, and is this envelope's."""
    boot, envelope = case.boot, case.envelope
    begin, end = boot.manifest_begin, boot.manifest_end
    if begin is None:
        return not_seen(
            "the launcher's manifest is not in this boot",
            "start the server through the launcher (`invoke up`), or give the log from its first line on",
        )
    if begin.version != manifest_format.VERSION:
        return failed(
            f"the manifest has version {begin.version}; this program reads version {manifest_format.VERSION}",
            "verify with the program version that rendered the service",
            [begin],
        )
    if end is None:
        return not_seen("the manifest begins but does not end", MEND_CUT, [begin])
    missing = [key for key in _NEEDED if key not in boot.manifest]
    if missing:
        return failed(f"the manifest lacks {', '.join(missing)}", MEND_BOOT, [begin, end])
    wanted = {"envelope": envelope.name, "envelope_digest": envelope.digest(), "engine": envelope.engine}
    for key, value in wanted.items():
        if case.claim(key) != value:
            return failed(
                f"the manifest's {key} is {case.claim(key)}, not {value}",
                f"verify against the envelope that was started, or start {envelope.name} from this revision",
                [begin, case.entry(key)],
            )
    return passed(
        f"whole, {len(boot.manifest)} entries, of {envelope.name} with digest {envelope.digest()}",
        [begin, case.entry("envelope"), case.entry("envelope_digest"), end],
    )


_OVERRIDDEN = {
    # drafts multiply the capture sizes as well; `capture-shape` judges both
    "SM86_PROFILE_STEPS": ("--profiler-config",),
    "SPECULATIVE_CONFIG": ("--speculative-config", "--compilation-config"),
    "CUDAGRAPH_DISPATCH_DEBUG": ("--cudagraph-metrics",),
    # the launcher adds it between two GPUs
    "NCCL_P2P_DISABLE": ("--disable-custom-all-reduce",),
}
"""Flags that an override may change and that no value of the envelope stands for."""


def argv(case: Case) -> Finding:
    """vLLM was started with the spec's arguments and environment: by the launcher's word, and by the server's own."""
    entry, server = case.entry("argv"), case.arguments
    if entry is None:
        return not_seen("no argument list in a complete manifest", MEND_BOOT)
    if not isinstance(entry.value, list) or not all(isinstance(item, str) for item in entry.value):
        return failed("the manifest's argv is not a list of texts", MEND_BOOT, [entry])
    overrides = case.overrides()
    spec, given = Options.of(serve_argv(case.wanted())), Options.of(entry.value)
    ignored = {"--host", "--port", QUIET, *(flag for name in overrides for flag in _OVERRIDDEN.get(name, ()))}
    if "SPECULATIVE_CONFIG" in overrides and overrides["SPECULATIVE_CONFIG"].value in ("none", "null"):
        ignored -= set(_OVERRIDDEN["SPECULATIVE_CONFIG"])
    if "NCCL_P2P_DISABLE" in overrides and not is_on(overrides["NCCL_P2P_DISABLE"].value):
        ignored -= set(_OVERRIDDEN["NCCL_P2P_DISABLE"])
    if "FUSE_ALLREDUCE_RMS" in overrides:
        spec, given = (options.without("--compilation-config", "pass_config") for options in (spec, given))
    different = differences(spec, given, ignored)
    if different:
        return failed(
            f"vLLM was not started with the spec's arguments: {'; '.join(different)}",
            "take the change back, or make it a named override of the run",
            [entry],
            *(text.split()[0] for text in different),
        )
    environment = case.entry("environment")
    wrong = _environment_differences(case, environment)
    if wrong:
        return failed(
            f"vLLM was not started with the spec's environment: {'; '.join(wrong)}",
            "take the change back, or make it a named override of the run",
            [environment],
            wrong[0].split()[0],
        )
    matches = case.claim("argv_matches_spec")
    if matches not in (None, "true", "none") and not overrides:
        return failed(
            "the launcher says that its arguments differ from the spec of its image",
            "start the image that was built from this revision",
            [case.entry("argv_matches_spec")],
        )
    if server is None:
        return not_seen(
            "the manifest has the spec's arguments; the server's own list is not in the log", MEND_CUT, [entry]
        )
    for name, flag in _ARGUMENTS.items():
        said, asked = case.argument(name), spec.values.get(flag)
        if said is None or asked is None:
            continue
        if _plain_argument(said) != _plain_argument(asked):
            return failed(
                f"the server says {name} is {said}, the spec says {asked}",
                "see who started this server; its arguments are not the launcher's",
                [entry, server],
                f"'{name}'",
            )
    also = f", with the overrides {', '.join(sorted(overrides))}" if overrides else ""
    return passed(f"the spec's arguments{also}", [entry, server])


def _environment_differences(case: Case, environment: ev.ManifestEntry | None) -> list[str]:
    claimed = environment.value if environment is not None and isinstance(environment.value, dict) else {}
    overridden = case.overrides()
    return [
        f"{name} is {claimed.get(name, 'not set')}, not {value}"
        for name, value in case.envelope.environment
        if claimed.get(name) != value and name not in overridden
    ]


def _plain_argument(value: str) -> str:
    value = value.strip("[]'\" ")
    if value.lower() in ("true", "false"):
        return value.lower()
    try:
        return repr(float(value))
    except ValueError:
        return value


def git_revision(case: Case) -> Finding:
    """The manifest names a full revision, the expected one where one is given, of a tree without changes."""
    entry, dirty = case.entry("git_rev"), case.entry("git_dirty")
    if entry is None:
        return not_seen("no git_rev in a complete manifest", MEND_BOOT)
    revision = text_of(entry.value)
    if not _FULL_HASH.fullmatch(revision):
        return failed(
            f"git_rev is {revision!r}, not a full commit hash",
            "build the image from a git checkout, so that its build record names the commit",
            [entry],
        )
    if dirty is None or text_of(dirty.value) == "unknown":
        return not_seen(
            f"git_rev is {revision[:12]}; whether the tree had changes is not known",
            "build where the git command works, so that the build record says it",
            [entry, dirty],
        )
    if is_on(text_of(dirty.value)):
        return failed(
            f"git_rev is {revision[:12]}, but the tree had changes that are not committed",
            "commit them and build again",
            [entry, dirty],
        )
    expected = case.expected_git_rev
    if expected is None:
        return passed(f"{revision}; no expected revision was given to compare it with", [entry])
    if not _same_revision(revision, expected):
        return failed(
            f"git_rev is {revision}, not the expected {expected}",
            "build the image from the expected revision, or check out the one that runs",
            [entry],
        )
    return passed(f"{revision}, as expected", [entry])


def _same_revision(revision: str, expected: str) -> bool:
    expected = expected.strip().lower()
    return revision == expected or (7 <= len(expected) < len(revision) and revision.startswith(expected))


def vllm_origin(case: Case) -> Finding:
    """vllm.envs was imported from an installed package, of the interpreter that the launcher ran in."""
    entry = case.entry("vllm.envs_origin")
    if entry is None:
        return not_seen("no vllm.envs_origin in a complete manifest", MEND_BOOT)
    origin = text_of(entry.value)
    python = case.entry("python")
    if not _INSTALLED.fullmatch(origin):
        return failed(
            f"vllm.envs was imported from {origin}, which is no installed package",
            "start the server outside of any source tree of vLLM, with PYTHONPATH unset",
            [entry],
        )
    prefix = _prefix(text_of(python.value)) if python is not None else None
    if prefix is not None and not origin.startswith(prefix + "/"):
        return failed(
            f"vllm.envs was imported from {origin}, outside of the launcher's own {prefix}",
            "unset PYTHONPATH; another vLLM is found first",
            [entry, python],
        )
    return passed(origin, [entry])


def _prefix(python: str) -> str | None:
    found = re.fullmatch(r"(/.*)/bin/[\w.-]+", python)
    # a system interpreter's packages lie elsewhere (/usr/lib, /usr/local/lib), so it says nothing
    return found[1] if found and found[1] not in ("/usr", "/usr/local") else None


def unknown_environment(case: Case) -> Finding:
    """vLLM knew every `VLLM_` variable it was given."""
    unknown = case.boot.all(ev.UnknownEnvironment)
    if unknown:
        names = sorted({event.name for event in unknown})
        ours = {name for name, _ in case.envelope.environment}
        claimed = case.entry("environment")
        if claimed is not None and isinstance(claimed.value, dict):
            ours |= set(claimed.value)
        of_spec = [name for name in names if name in ours]
        mend = (
            f"take {', '.join(of_spec)} out of the envelope, or pin the vLLM that knows it"
            if of_spec
            else "unset it where the server is started; vLLM ignores it"
        )
        return failed(f"vLLM does not know {', '.join(names)}", mend, unknown)
    if case.engine is None:
        return not_seen("the engine's config line, before which vLLM would complain, is not in the log", MEND_CUT)
    return passed("vLLM started without a complaint about its environment", [case.engine])
