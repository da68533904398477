"""The image check: a good image passes, and each honest defect fails exactly the rule it should."""

import copy

import pytest

from sm86.image.judge import rules
from sm86.image.judge.diff import diff, tree_digest
from sm86.image.judge.operators import LIBRARIES as REGISTERING
from sm86.image.judge.operators import NOT_COMPILED, PUBLISHED
from sm86.image.names import OFFLINE_BASE
from sm86.image.native.patch import HOST_ONLY, TARGETS
from sm86.spec import load_pins

REVISION = "0123456789abcdef0123456789abcdef01234567"
LIBRARIES = (
    "vllm/_C_stable_libtorch.abi3.so",
    "vllm/_moe_C_stable_libtorch.abi3.so",
    "sm86/backend/attention/libsm86_attention.so",
    "sm86/backend/collectives/libsm86_collectives.so",
)
GOOD = {
    "python": "3.12.12",
    "user": {"uid": 1000, "gid": 1000},
    "build": {
        "git_rev": REVISION,
        "git_dirty": False,
        "base": "registry",
        "target": "gpu",
        "variant": "native",
        "pins": {"vllm": "0.26.0", "torch": "2.11.0+cu130"},
        "libraries": {name: {"sha256": "aa"} for name in LIBRARIES},
    },
    "distributions": {"vllm": "0.26.0"},
    "plugins": {"vllm.general_plugins": {"sm86": "sm86.backend:register"}, "vllm.platform_plugins": {}},
    "imported": {"torch": "2.11.0+cu130", "nccl": "2.28.9", "flashinfer": "0.6.14", "vllm": "0.26.0"},
    "vllm_envs_origin": "/usr/local/lib/python3.12/site-packages/vllm/envs.py",
    "libraries": {
        name: {"sass": {"86": 23}, "ptx": {}, "bytes": 1, "sha256": "aa", "loader_paths": []} for name in LIBRARIES
    },
    "driver": "stand-in",
    "serving": {"vllm.v1.worker.gpu_worker": "", "vllm.models.deepseek_v4.nvidia.model": ""},
    "operators": {name: name not in NOT_COMPILED for name in PUBLISHED},
    "jit": {"nvcc": "", "triton": ""},
    "sbom": {"components": 300, "missing": []},
    "writable": [],
    "manifests": {"sm86-262k": {"code": 0, "manifest": {"git_rev": REVISION}, "words": []}},
    "files": {"/usr/bin/python3": ["0o100755", 10, "aa"]},
}
OUTSIDE = rules.Outside("1000:1000", ("PATH=/usr/bin",), {"org.opencontainers.image.title": "sm86"}, ("RUN x",), (1,))


def states(facts, outside=OUTSIDE):
    findings = rules.judge(facts, outside, load_pins())
    return {finding.rule: finding.state for finding in findings if finding.state != "pass"}, rules.exit_code(findings)


def changed(path, value):
    facts = copy.deepcopy(GOOD)
    place = facts
    *folders, last = path
    for folder in folders:
        place = place[folder]
    place[last] = value
    return facts


def test_a_good_image_passes():
    assert states(GOOD) == ({}, 0)


@pytest.mark.parametrize(
    "path, value, rule",
    [
        (("python",), "3.11.2", "python"),
        (("build",), {"error": "FileNotFoundError"}, "build record"),
        (("build",), {}, "build record"),
        (("build", "git_rev"), "unknown", "build record"),
        (("build", "git_dirty"), True, "build record"),
        (("build", "pins", "vllm"), "0.25.0", "pins"),
        (("build", "pins", "nosuch"), "1", "pins"),
        (("imported", "torch"), "2.11.0+cpu", "torch"),
        (("imported", "torch"), {"error": "ImportError: libcuda.so.1"}, "torch"),
        (("imported", "nccl"), "2.29.1", "nccl"),
        (("imported", "flashinfer"), "0.6.13", "flashinfer"),
        (("imported", "vllm"), "0.26.0.dev1", "vllm"),
        (("imported",), {}, "vllm"),
        (("vllm_envs_origin",), "/app/vllm/envs.py", "vllm.envs"),
        (("vllm_envs_origin",), {"error": "x"}, "vllm.envs"),
        (("plugins", "vllm.general_plugins"), {}, "plugin"),
        (("libraries", "vllm/_C_stable_libtorch.abi3.so", "sass"), {"86": 5, "80": 1}, "_C_stable_libtorch"),
        (("libraries", "vllm/_C_stable_libtorch.abi3.so", "sass"), {"90": 5}, "_C_stable_libtorch"),
        (("libraries", "vllm/_moe_C_stable_libtorch.abi3.so"), {"error": "x", "bytes": 1}, "_moe_C_stable_libtorch"),
        (("libraries",), {}, "_moe_C_stable_libtorch"),
        (("libraries", LIBRARIES[2], "sass"), {"80": 1}, "libsm86_attention.so"),
        (("libraries", LIBRARIES[3], "sass"), {}, "libsm86_collectives.so"),
        (("libraries", LIBRARIES[0], "sha256"), "bb", "libraries"),
        (("build", "libraries", "vllm/gone.so"), {"sha256": "aa"}, "libraries"),
        (("build", "libraries"), {}, "libraries"),
        (("serving", "vllm.v1.worker.gpu_worker"), "ImportError: no fa2", "serving"),
        (("serving",), {"error": "ImportError"}, "serving"),
        (("serving",), None, "serving"),
        (("jit", "triton"), "ptxas is not there", "jit"),
        (("jit",), {}, "jit"),
        (("operators", "_C::marlin_gemm"), False, "operators"),
        (("operators",), {}, "operators"),
        (("operators",), {"error": "ImportError"}, "operators"),
        (("libraries", LIBRARIES[0], "loader_paths"), [""], "loader paths"),
        (("libraries", LIBRARIES[0], "loader_paths"), ["/usr/local/cuda/lib64/stubs"], "loader paths"),
        (("libraries", LIBRARIES[0], "loader_paths"), {"error": "ValueError"}, "loader paths"),
        (("libraries", LIBRARIES[0], "loader_paths"), None, "loader paths"),
        (("sbom", "missing"), ["numpy"], "sbom"),
        (("sbom",), {"error": "FileNotFoundError"}, "sbom"),
        (("sbom",), None, "sbom"),
        (("writable",), ["/usr/lib/python3"], "permissions"),
        (("writable",), None, "permissions"),
        (("user", "uid"), 0, "user"),
        (("manifests",), {}, "manifests"),
        (("manifests", "sm86-262k", "code"), 2, "manifests"),
        (("manifests", "sm86-262k", "manifest"), {"git_rev": "f" * 40}, "manifests"),
    ],
)
def test_a_deviation_is_a_finding(path, value, rule):
    found, code = states(changed(path, value))
    assert rule in found and code == 1


def test_an_operator_for_newer_gpus_is_missed_only_in_the_published_libraries():
    facts = changed(("build", "variant"), "wheel")
    assert "operators" in states(facts)[0]
    facts["operators"] = dict.fromkeys(PUBLISHED, True)
    assert states(facts) == ({}, 0)
    assert set(NOT_COMPILED) < PUBLISHED and all(NOT_COMPILED.values())


def test_the_libraries_that_are_judged_are_those_that_are_rebuilt_with_device_code():
    assert tuple(target for target in TARGETS if target != HOST_ONLY) == REGISTERING
    assert {f"vllm/{name}.abi3.so" for name in REGISTERING} < set(LIBRARIES)


def test_a_library_may_look_beside_itself():
    assert states(changed(("libraries", LIBRARIES[0], "loader_paths"), ["$ORIGIN/../torch/lib"])) == ({}, 0)


def test_debians_python_is_expected_only_when_the_build_record_says_offline_base():
    facts = changed(("python",), "3.11.2")
    facts["build"]["base"] = OFFLINE_BASE
    assert states(facts) == ({"python": "expected"}, 0)


def test_the_wheel_variant_may_hold_other_architectures():
    facts = changed(("libraries", "vllm/_C_stable_libtorch.abi3.so", "sass"), {"86": 5, "80": 1, "90": 7})
    facts["build"]["variant"] = "wheel"
    facts["operators"] = dict.fromkeys(PUBLISHED, True)
    assert states(facts) == ({}, 0)


@pytest.mark.parametrize(
    "outside, rule",
    [
        (rules.Outside("", (), {}, (), ()), "user"),
        (rules.Outside("root", (), {}, (), ()), "user"),
        (rules.Outside("1000", (), {}, ("ARG HF_TOKEN=hf_abc",), ()), "secrets"),
        (rules.Outside("1000", ("VLLM_API_KEY=abc",), {}, (), ()), "secrets"),
    ],
)
def test_what_the_engine_says_of_the_image(outside, rule):
    found, code = states(GOOD, outside)
    assert rule in found and code == 1


def test_no_findings_at_all_is_no_pass():
    assert rules.exit_code([]) == 1


def test_diff_names_pins_packages_and_files():
    other = copy.deepcopy(GOOD)
    other["build"]["pins"]["vllm"] = "0.27.0"
    other["distributions"] = {"vllm": "0.27.0", "extra": "1"}
    other["files"] = {"/usr/bin/python3": ["0o100755", 10, "bb"]}
    names = [(change.kind, change.name) for change in diff(GOOD, other)]
    assert names == [
        ("build", "pins.vllm"),
        ("package", "extra"),
        ("package", "vllm"),
        ("file", "/usr/bin/python3"),
    ]
    assert diff(GOOD, copy.deepcopy(GOOD)) == []
    assert tree_digest(GOOD) == tree_digest(copy.deepcopy(GOOD)) != tree_digest(other)
