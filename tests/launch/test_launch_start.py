"""Whole starts, with a stand-in engine that writes down what it became: real processes, real exec."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sm86.launch import cache, overrides
from sm86.launch.arguments import facts_of
from sm86.launch.command import launch
from sm86.launch.options import parse
from sm86.manifest import manifest_of
from sm86.spec import envelope_names, load_envelope
from sm86.spec.argv import QUIET, QUIET_PATHS, serve_argv
from tests.launch.launch_machine import DSV4, LLAMA, ROOT, Machine, gpu_uuid

KEY = "sk-0123456789abcdef"


def manifest(out: str) -> dict[str, Any]:
    found = manifest_of(out.splitlines())
    assert found is not None
    return found


def smoke(machine: Machine, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return machine.run("--envelope", "cpu-smoke", "--model-path", str(machine.root / "model"), *more, **environment)


def serve(
    machine: Machine, name: str = "sm86-80k-4seq", *more: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """As Compose starts it: the whole argument list given."""
    envelope = load_envelope(name)
    argv = serve_argv(envelope, str(machine.root / "model"))
    return machine.run(
        *("--envelope", name, "--envelope-digest", envelope.digest(), *more, "--", *argv),
        **{**dict(envelope.environment), **environment},
    )


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """What was refused; also that it was told in exactly two lines, and nothing was started."""
    assert done.returncode == 2, done
    lines = done.stderr.splitlines()
    assert len(lines) == 2, done.stderr
    assert lines[0].startswith("sm86: ") and lines[1].startswith("mend: ")
    assert "manifest" not in done.stdout
    return done.stderr


def test_what_the_manifest_says_is_what_was_execed(machine: Machine) -> None:
    done = smoke(machine, "--port", "8123", "--host", "127.0.0.1")
    assert done.returncode == 0, done.stderr
    said, dump = manifest(done.stdout), machine.dump
    assert dump["orig"] == [*said["exec"], *said["argv"]]
    assert dump["argv"] == said["argv"]
    assert said["argv"][:2] == ["serve", str(machine.root / "model")]
    assert {name: dump["environ"][name] for name in said["environment"]} == said["environment"]
    assert done.stderr == ""
    assert said["check.model"] == said["check.lock"] == said["check.cache"] == "pass"


def test_the_manifest_comes_before_the_engines_first_word(machine: Machine) -> None:
    lines = smoke(machine).stdout.splitlines()
    assert lines[0] == "[sm86] manifest begin v1"
    assert lines[-2:] == ["[sm86] manifest end", "engine says hello"]


def test_exec_keeps_the_process(machine: Machine) -> None:
    child = machine.popen("--envelope", "cpu-smoke", "--model-path", str(machine.root / "model"), STAY="60")
    wait_for(machine)
    assert machine.dump["pid"] == child.pid
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=10)
    assert child.returncode == -signal.SIGTERM


def wait_for(machine: Machine) -> None:
    deadline = time.monotonic() + 20
    while not machine.became_engine or not (machine.root / "dump.json").read_text().endswith("}"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_working_folder_shadows_nothing(machine: Machine) -> None:
    for name in ("vllm", "sm86", "json"):
        (machine.root / name).mkdir()
        (machine.root / name / "__init__.py").write_text("raise SystemExit('shadowed')")
    done = smoke(machine)
    assert done.returncode == 0, done
    assert manifest(done.stdout)["vllm.envs_origin"] == str(machine.root / "site" / "vllm" / "envs.py")
    assert machine.dump["safe"] is True
    assert str(machine.root) not in machine.dump["path"] and "" not in machine.dump["path"]


def test_another_vllm_before_the_installed_one_is_refused(machine: Machine) -> None:
    tree = machine.root / "tree" / "vllm"
    tree.mkdir(parents=True)
    (tree / "__init__.py").write_text("")
    done = smoke(machine, PYTHONPATH=f"{tree.parent}:{ROOT}:{machine.root / 'site'}")
    assert f"vllm would be imported from {tree}" in refusal(done)
    (tree / "__init__.py").unlink()
    done = smoke(machine, PYTHONPATH=f"{tree.parent}:{ROOT}:{machine.root / 'site'}")
    assert done.returncode == 0, "a plain folder gives way to a package that comes later"


def test_nothing_heavy_is_imported_before_the_engine() -> None:
    code = (
        "import sys; import sm86.launch.command, sm86.launch.__main__; "
        "heavy = 'torch vllm jinja2 rich docker yaml numpy pynvml'.split();"
        "print([name for name in heavy if name in sys.modules])"
    )
    out = subprocess.run(
        ["python3", "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert out.stdout == "[]\n", out.stderr


def test_the_envelopes_own_variables_are_set_without_compose(machine: Machine) -> None:
    smoke(machine)
    assert machine.dump["environ"]["VLLM_CPU_KVCACHE_SPACE"] == "1"
    smoke(machine, VLLM_CPU_KVCACHE_SPACE="2")
    assert machine.dump["environ"]["VLLM_CPU_KVCACHE_SPACE"] == "2"
    said = manifest(smoke(machine, VLLM_CPU_KVCACHE_SPACE="2").stdout)
    assert said["environment_matches_spec"] == ["VLLM_CPU_KVCACHE_SPACE"]


def test_the_facts_of_the_cpu_engine(machine: Machine) -> None:
    said = manifest(smoke(machine).stdout)
    wanted = {
        "envelope": "cpu-smoke",
        "envelope_digest": load_envelope("cpu-smoke").digest(),
        "envelope_matches_image": "true",
        "engine": "cpu",
        "vllm_distribution": "vllm-cpu",
        "vllm_version": "0.28.0",
        "argv_matches_spec": "true",
        "argv_overridden": "none",
        "argv_added": [QUIET, QUIET_PATHS],
        "kv_cache_dtype": "auto",
        "attention_backend": "none",
        "moe_backend": "none",
        "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "none",
        "num_gpu_blocks_override": "none",
        "cudagraph_mode": "NONE",
        "cudagraph_capture_sizes": "none",
        "hybrid_kv": "none",
        "tensor_parallel": "1",
        "max_model_len": "2048",
        "max_num_seqs": "2",
        "max_num_batched_tokens": "512",
        "async_scheduling": "false",
        "speculative_config": "none",
        "gpus": "none",
        "driver": "none",
        "api_key": "none",
        "cache": "fresh",
        "check.gpus": "not applicable: the CPU engine uses no GPU",
    }
    assert {key: said[key] for key in wanted} == wanted
    assert len(said["model_hash"]) == 64
    assert said["lock"] == [str(machine.root / "home" / ".cache" / "sm86" / "locks" / "cpu.lock")]


def test_the_facts_of_a_rig(rig: Machine) -> None:
    done = serve(rig)
    assert done.returncode == 0, done.stderr
    said, dump = manifest(done.stdout), rig.dump
    wanted = {
        "engine": "cuda",
        "vllm_distribution": "vllm",
        "vllm_version": "0.26.0",
        "argv_matches_spec": "true",
        "environment_matches_spec": "true",
        "kv_cache_dtype": "fp8_ds_mla",
        "attention_backend": "FLASHINFER_MLA_SPARSE_DSV4",
        "moe_backend": "marlin",
        "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0",
        "num_gpu_blocks_override": "1632",
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [1, 4],
        "max_cudagraph_capture_size": "4",
        "hybrid_kv": "true",
        "tensor_parallel": "8",
        "driver": "580.126.09",
        "gpus": [gpu_uuid(number) for number in range(8)],
        "check.gpus": "pass",
        "check.driver": "pass",
        "check.gpu_memory": "pass",
        "check.kv_blocks": "pass",
    }
    assert {key: said[key] for key in wanted} == wanted
    assert dump["environ"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert dump["environ"]["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    assert said["override.FUSE_ALLREDUCE_RMS"]["state"] == "inert"
    assert dump["argv"] == said["argv"]
    assert dump["environ"]["SM86_LOCK_FILES"].count(":") == 7


@pytest.mark.parametrize("name", envelope_names())
def test_a_dry_run_says_everything_on_a_machine_with_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"HOME": str(tmp_path), "SM86_BUILD_FILE": str(tmp_path / "none.json")}
    monkeypatch.setattr("sm86.launch.engine._search_path", list)
    monkeypatch.setattr("sm86.launch.engine._installed", lambda _: None)
    assert launch(parse(["--envelope", name, "--dry-run"]), values) == 0
    said = manifest(capsys.readouterr().out)
    assert said["envelope"] == name
    assert said["argv"][0] == "serve"
    assert said["check.engine"].startswith("not made: vLLM is not installed")
    assert said["check.model"].startswith("not made: ")
    assert said["check.lock"] == said["check.cache"] == "not made: dry run"
    assert said["check.environment"].startswith("not made")
    assert list(tmp_path.iterdir()) == [], "a dry run leaves nothing behind"


def test_a_dry_run_as_a_process_on_a_machine_with_nothing(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    done = Machine(tmp_path).run("--envelope", "sm86-262k", "--dry-run", PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stderr) == (0, "")
    assert manifest(done.stdout)["envelope"] == "sm86-262k"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tmp"]


def test_a_dry_run_has_the_same_entries_as_a_start(machine: Machine) -> None:
    assert set(manifest(smoke(machine, "--dry-run").stdout)) == set(manifest(smoke(machine).stdout))


def test_a_dry_run_of_a_rigs_envelope_in_the_cpu_image(machine: Machine) -> None:
    done = machine.run("--envelope", "sm86-262k", "--dry-run")
    assert done.returncode == 0
    assert manifest(done.stdout)["check.engine"].startswith("not made: sm86-262k needs the CUDA build")


def test_a_dry_run_says_what_a_start_would_refuse(rig: Machine) -> None:
    (rig.root / "model" / "config.json").write_text(json.dumps(LLAMA))
    done = rig.run("--envelope", "sm86-262k", "--dry-run", "--model-path", str(rig.root / "model"))
    assert done.returncode == 2
    assert "LlamaForCausalLM" in manifest(done.stdout)["check.model"]
    assert done.stderr.startswith("sm86: ")


def test_overrides_reach_the_engine_and_the_manifest(rig: Machine) -> None:
    done = serve(
        rig,
        "sm86-80k-4seq",
        *("--set", "NCCL_ALGO=Tree", "--set", "SM86_MAX_NUM_BATCHED_TOKENS=256"),
        NCCL_PROTO="Simple",
        NCCL_IB_DISABLE="1",
        CUDAGRAPH_DISPATCH_DEBUG="1",
        NCCL_DEBUG="",
    )
    assert done.returncode == 0, done.stderr
    said, dump = manifest(done.stdout), rig.dump
    assert said["override.NCCL_ALGO"]["value"] == "Tree"
    assert dump["environ"]["NCCL_ALGO"] == "AllReduce:Tree"
    assert dump["environ"]["NCCL_IB_DISABLE"] == said["environment"]["NCCL_IB_DISABLE"] == "1"
    assert "NCCL_DEBUG" not in dump["environ"]
    assert said["environment_removed"] == ["NCCL_DEBUG"]
    assert said["override.CUDAGRAPH_DISPATCH_DEBUG"]["state"] == "inert"
    assert "--cudagraph-metrics" in dump["argv"]
    assert said["max_num_batched_tokens"] == "256"
    assert said["argv_matches_spec"] == "true"
    assert {(change["argument"], change["by"]) for change in said["argv_overridden"]} == {
        ("--compilation-config", "FUSE_ALLREDUCE_RMS"),
        ("--cudagraph-metrics", "CUDAGRAPH_DISPATCH_DEBUG"),
        ("--max-num-batched-tokens", "SM86_MAX_NUM_BATCHED_TOKENS"),
    }
    assert [key for key in said if key.startswith("override.")] == [
        f"override.{name}"
        for name in overrides.BY_NAME
        if name
        in ("NCCL_ALGO", "NCCL_PROTO", "FUSE_ALLREDUCE_RMS", "CUDAGRAPH_DISPATCH_DEBUG", "SM86_MAX_NUM_BATCHED_TOKENS")
    ]


@pytest.mark.parametrize(
    ("plugins", "listed", "state"),
    [
        ("x = y:z", None, "inert"),
        ("sm86 = a:b", None, "effective"),
        ("sm86 = a:b", "lora", "inert"),
        ("sm86 = a:b", "lora,sm86", "effective"),
    ],
)
def test_the_debug_lines_follow_the_plugin(rig: Machine, plugins: str, listed: str | None, state: str) -> None:
    rig.install("vllm", "0.26.0", plugins)
    done = serve(rig, CUDAGRAPH_DISPATCH_DEBUG="1", **({"VLLM_PLUGINS": listed} if listed else {}))
    assert manifest(done.stdout)["override.CUDAGRAPH_DISPATCH_DEBUG"]["state"] == state


def test_a_draft_is_marked_as_a_probe(rig: Machine) -> None:
    config = '{"method":"mtp","num_speculative_tokens":1}'
    said = manifest(serve(rig, SPECULATIVE_CONFIG=config).stdout)
    assert said["probe"] == ["SPECULATIVE_CONFIG"]
    assert said["speculative_config"] == json.loads(config)
    assert said["cudagraph_capture_sizes"] == [2, 8]
    assert manifest(serve(rig, SPECULATIVE_CONFIG="none").stdout)["probe"] == "none"


def test_arguments_of_another_spec_are_named(rig: Machine) -> None:
    argv = list(serve_argv(load_envelope("sm86-80k-4seq"), str(rig.root / "model")))
    argv[argv.index("81920")] = "65536"
    done = rig.run("--envelope", "sm86-80k-4seq", "--envelope-digest", "0" * 16, "--", *argv)
    said = manifest(done.stdout)
    assert said["argv_matches_spec"] == [{"argument": "--max-model-len", "spec": "81920", "given": "65536"}]
    assert said["envelope_digest"] == "0" * 16
    assert said["envelope_matches_image"] == "false"
    assert said["environment_matches_spec"] == [
        "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS",
        "VLLM_USE_FLASHINFER_SAMPLER",
    ]
    assert rig.dump["argv"][: len(argv)][5:] and "65536" in rig.dump["argv"]


def test_an_envelope_of_the_users_own_takes_its_facts_from_the_arguments(rig: Machine) -> None:
    argv = [
        "serve",
        str(rig.root / "model"),
        "-tp",
        "8",
        "--max-model-len=1K",
        "--served-model-name",
        "é $x",
        "--port",
        "8001",
    ]
    done = rig.run("--envelope", "my-own", "--", *argv)
    assert done.returncode == 0, done.stderr
    said = manifest(done.stdout)
    assert rig.dump["argv"] == said["argv"] == [*argv, QUIET, QUIET_PATHS]
    wanted = {
        "envelope": "my-own",
        "envelope_digest": "none",
        "envelope_matches_image": "none",
        "argv_matches_spec": "none",
        "tensor_parallel": "8",
        "max_model_len": "1024",
        "cudagraph_mode": "default",
        "async_scheduling": "default",
        "check.kv_blocks": "not made: an argument that decides the KV blocks is left to vLLM",
    }
    assert {key: said[key] for key in wanted} == wanted


def test_the_users_own_envelope_is_held_to_the_kv_model_as_well(rig: Machine) -> None:
    argv = [*serve_argv(load_envelope("sm86-262k"), str(rig.root / "model"))]
    argv[argv.index("1280")] = "1272"
    assert "need 1273" in refusal(rig.run("--envelope", "my-own", "--", *argv))


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--envelope", "cpu-smok"], {}, "did you mean cpu-smoke?"),
        (["--envelope", "CPU"], {}, "there is no envelope"),
        (["--envelope", "My Own", "--", "serve", "m"], {}, "no name of an envelope"),
        (["--envelope", "cpu-smoke", "--set", "FOO=1"], {}, "no override 'FOO'"),
        (["--envelope", "cpu-smoke", "--set", "SM86_NUM_GPU_BLOCKS=two"], {}, "not a whole number"),
        (["--envelope", "cpu-smoke"], {"SM86_NUM_GPU_BLOKS": "5"}, "did you mean SM86_NUM_GPU_BLOCKS?"),
        (["--envelope", "cpu-smoke"], {"VLLM_CPU_KVCACHE_SPAC": "5"}, "did you mean VLLM_CPU_KVCACHE_SPACE?"),
        (["--envelope", "cpu-smoke"], {"VLLM_PORT": "x"}, "nothing that vLLM can read"),
        (["--envelope", "cpu-smoke"], {"VLLM_API_KEY": KEY}, "SM86_API_KEY_FILE"),
        (["--envelope", "cpu-smoke"], {"NCCL_ALGO": "Rin"}, "did you mean ring?"),
        (["--envelope", "cpu-smoke", "--model-path", "/nowhere"], {}, "the model folder /nowhere is not there"),
        (["--envelope", "cpu-smoke", "--", "serve", "m", "--speculative-config", "{}"], {}, "set SPECULATIVE_CONFIG"),
        (["--envelope", "cpu-smoke", "--", "serve", "m", "-dcp", "2"], {}, "hybrid compression"),
        (["--envelope", "cpu-smoke", "--", "serve", "m", "--api-key", KEY], {}, "SM86_API_KEY_FILE"),
        (["--envelope", "cpu-smoke", "--", "serve", "--port", "8000"], {}, "name no model"),
        (["--envelope", "sm86-262k"], {}, "needs the CUDA build of vLLM, but the CPU build is installed"),
        (["--envelope", "cpu-smoke", "--bogus"], {}, "--bogus"),
    ],
)
def test_refusals(
    machine: Machine, arguments: list[str], environment: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = machine.refused_here(monkeypatch, *arguments, **environment)
    told = f"{refused.what} | {refused.mend}"
    assert words in told
    assert KEY not in told
    assert refused.exit_code == 2
    assert not (machine.root / "home").exists(), "nothing was taken or written"


def test_no_engine_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    bare = Machine(tmp_path)
    assert "vLLM is not installed" in refusal(bare.run("--envelope", "cpu-smoke", PYTHONPATH=str(ROOT)))


def eight(**facts: Any) -> list[dict[str, Any]]:
    return [{"bus": f"0000:{bus:02X}:00.0", "uuid": gpu_uuid(bus), **facts} for bus in range(8)]


@pytest.mark.parametrize(
    ("gpus", "facts", "environment", "words"),
    [
        (eight()[:7], {}, {}, "7 GPUs are selected, but the server needs 8"),
        ([*eight(), {"bus": "0000:09:00.0", "uuid": gpu_uuid(9)}], {}, {}, "name 8 of them in SM86_GPUS"),
        ([], {}, {}, "the driver shows no GPU"),
        (eight(), {"driver": "570.1"}, {}, "CUDA 13 needs 580"),
        (eight(capability=(9, 0)), {}, {}, "SM86_FORCE=1"),
        (eight(), {"problem": "Driver/library version mismatch"}, {}, "reboot"),
        (eight(), {"problem": "Unknown Error"}, {}, "lost its GPUs"),
        (eight(), {}, {"SM86_GPUS": "GPU-ffff"}, "which is not here"),
        (eight(), {}, {"SM86_GPUS": gpu_uuid(1), "CUDA_VISIBLE_DEVICES": "1"}, "both set"),
        (eight(), {}, {"CUDA_VISIBLE_DEVICES": "0,1,2"}, "3 GPUs are selected"),
    ],
)
def test_a_rig_that_does_not_fit(rig: Machine, gpus, facts, environment, words, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    rig.rig(*gpus, **facts)
    argv = serve_argv(load_envelope("sm86-80k-4seq"), str(rig.root / "model"))
    refused = rig.refused_here(monkeypatch, "--envelope", "sm86-80k-4seq", "--", *argv, **environment)
    assert words in f"{refused.what} | {refused.mend}"
    assert not (rig.root / "home").exists()


def test_a_refusal_as_a_person_sees_it(machine: Machine) -> None:
    told = refusal(machine.run("--envelope", "cpu-smok"))
    assert told.splitlines()[0] == "sm86: there is no envelope 'cpu-smok'"
    assert told.splitlines()[1].startswith("mend: did you mean cpu-smoke? ")


def test_a_named_selection_is_served_in_its_own_order(rig: Machine) -> None:
    rig.rig(*eight(), *({"bus": f"0000:{bus:02X}:00.0", "uuid": gpu_uuid(bus)} for bus in (8, 9)))
    wanted = [gpu_uuid(number) for number in (9, 1, 2, 3, 4, 5, 6, 8)]
    done = serve(rig, SM86_GPUS=",".join(wanted))
    assert done.returncode == 0, done.stderr
    assert rig.dump["environ"]["CUDA_VISIBLE_DEVICES"] == "9,1,2,3,4,5,6,8"
    assert manifest(done.stdout)["gpus"] == wanted


def test_force_serves_on_other_gpus(rig: Machine) -> None:
    rig.rig(*eight(capability=(9, 0)))
    done = serve(rig, SM86_FORCE="1", VLLM_ALLREDUCE_USE_FLASHINFER="1")
    assert done.returncode == 0, done.stderr
    assert manifest(done.stdout)["override.VLLM_ALLREDUCE_USE_FLASHINFER"]["state"] == "effective"


def test_the_wrong_model_is_told_before_missing_gpus(rig: Machine) -> None:
    rig.rig(problem="Driver Not Loaded")
    (rig.root / "model" / "config.json").write_text(
        json.dumps({**DSV4, "quantization_config": {"quant_method": "fp8"}})
    )
    assert "quantized as fp8" in refusal(serve(rig))


def test_mtp_on_a_model_without_draft_layers(machine: Machine) -> None:
    told = refusal(smoke(machine, "--set", 'SPECULATIVE_CONFIG={"method":"mtp","num_speculative_tokens":1}'))
    assert "no MTP layers" in told


def test_a_second_server_on_the_same_gpus_is_refused(rig: Machine) -> None:
    envelope = load_envelope("sm86-262k")
    argv = serve_argv(envelope, str(rig.root / "model"))
    child = rig.popen("--envelope", "sm86-262k", "--", *argv, STAY="60", **dict(envelope.environment))
    try:
        wait_for(rig)
        told = refusal(serve(rig, "sm86-80k-4seq"))
        assert "is in use: sm86-262k runs on" in told and f"process {child.pid}" in told
    finally:
        child.kill()
        child.communicate()
    assert serve(rig, "sm86-80k-4seq").returncode == 0


def test_the_cache_is_bound_to_the_build(machine: Machine) -> None:
    record = machine.root / "build.json"
    places = {"SM86_CACHE_DIR": str(machine.root / "cache"), "SM86_LOCK_DIR": str(machine.root / "locks")}
    record.write_text(json.dumps({"git_rev": "a" * 40, "git_dirty": False, "lock_hash": "1", "variant": "native"}))
    first = manifest(smoke(machine, **places).stdout)
    assert (first["cache"], first["git_rev"], first["git_dirty"]) == ("fresh", "a" * 40, "false")
    (machine.root / "cache" / "kernel").write_text("")
    assert manifest(smoke(machine, **places).stdout)["cache"] == "reused"
    record.write_text(json.dumps({"git_rev": "b" * 40, "lock_hash": "1", "variant": "wheel"}))
    assert manifest(smoke(machine, **places).stdout)["cache"] == "cleared"
    assert not (machine.root / "cache" / "kernel").exists()
    assert machine.dump["environ"]["TRITON_CACHE_DIR"] == str(machine.root / "cache" / "triton")
    assert set(cache.FOLDERS) <= set(machine.dump["environ"])


def test_the_key_reaches_the_engine_and_no_output(machine: Machine) -> None:
    path = machine.root / "key"
    path.write_text(KEY + "\n")
    done = smoke(machine, SM86_API_KEY_FILE=str(path), CUDA_ODDITY=f"x{KEY}")
    assert done.returncode == 0, done.stderr
    assert machine.dump["environ"]["VLLM_API_KEY"] == KEY
    said = manifest(done.stdout)
    assert said["api_key"] == "set"
    assert said["environment"]["SM86_API_KEY_FILE"] == str(path)
    assert KEY not in done.stdout + done.stderr
    dry = smoke(machine, "--dry-run", SM86_API_KEY_FILE=str(path))
    assert KEY not in dry.stdout + dry.stderr
    told = smoke(
        machine, "--", "serve", str(machine.root / "model"), "--served-model-name", KEY, SM86_API_KEY_FILE=str(path)
    )
    assert told.returncode == 2 and KEY not in told.stdout + told.stderr
    argv = ["serve", str(machine.root / "model"), "--served-model-name", KEY]
    told = machine.run("--envelope", "cpu-smoke", "--", *argv, SM86_API_KEY_FILE=str(path))
    assert "an argument holds the API key" in refusal(told) and KEY not in told.stderr
    path.write_text(f"{KEY} and more")
    assert KEY not in refusal(smoke(machine, SM86_API_KEY_FILE=str(path)))


def test_a_container_says_a_refusal_once_and_another_one_too(machine: Machine) -> None:
    (machine.root / "build.json").write_text("{}")
    machine.environment["SM86_LOCK_DIR"] = str(machine.root / "locks")
    first = machine.run("--envelope", "cpu-smoke", "--model-path", "/nowhere")
    refusal(first)
    for _ in range(3):
        # what a restart finds: the volumes as they were, /tmp empty
        for path in (machine.root / "tmp").iterdir():
            path.unlink()
        again = machine.run("--envelope", "cpu-smoke", "--model-path", "/nowhere")
        assert (again.returncode, again.stdout, again.stderr) == (2, "", "")
    assert "/elsewhere" in refusal(machine.run("--envelope", "cpu-smoke", "--model-path", "/elsewhere"))


def test_a_process_of_the_machine_is_told_every_time(machine: Machine) -> None:
    for _ in range(2):
        refusal(machine.run("--envelope", "cpu-smoke", "--model-path", "/nowhere"))


def test_a_start_in_an_image_tells_the_health_check_where(machine: Machine) -> None:
    (machine.root / "build.json").write_text("{}")
    smoke(
        machine,
        *("--port", "8123", "--host", "0.0.0.0"),
        SM86_CACHE_DIR=str(machine.root / "c"),
        SM86_LOCK_DIR=str(machine.root / "l"),
    )
    told = machine.root / "tmp" / f"sm86-serve-{os.getuid()}.json"
    assert json.loads(told.read_text()) == {"host": "127.0.0.1", "port": 8123}


def test_a_fault_of_the_launcher_itself_is_two_lines_and_no_traceback(machine: Machine) -> None:
    (machine.root / "site" / "sitecustomize.py").write_text(
        "import sm86.launch.checks as c\ndef boom(*_):\n    raise ZeroDivisionError('oh')\nc.require_model = boom\n"
    )
    assert "a fault of the launcher: ZeroDivisionError('oh')" in refusal(smoke(machine))
    assert "Traceback" in smoke(machine, SM86_TRACEBACK="1").stderr


def test_the_log_of_a_real_boot_is_read_back() -> None:
    """A boot of vLLM's CPU build through this launcher (paths shortened)."""
    lines = (Path(__file__).parent / "data" / "cpu-smoke.log").read_text().splitlines()
    said = manifest("\n".join(lines))
    assert said["argv"][:2] == ["serve", "/models/SmolLM2-135M-Instruct"]
    assert facts_of(said["argv"]).port == 18190
    assert said["check.model"] == said["check.lock"] == said["check.cache"] == "pass"
    assert said["environment"]["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert any("Application startup complete" in line for line in lines)


@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&-", ">/dev/full", "2>/dev/full", ">/dev/full 2>/dev/full"])
def test_a_refusal_keeps_its_exit_code_when_nobody_can_read_it(streams: str) -> None:
    command = f'exec "$0" -P -m sm86.launch --envelope none {streams}'
    done = subprocess.run(["/bin/sh", "-c", command, sys.executable], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
