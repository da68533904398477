"""The model's folder and the GPUs: what is found, and the refusal for each kind of fault."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sm86.errors import CouldNotRun
from sm86.launch import checks, gpus
from sm86.launch.checks import Gpu
from sm86.spec import load_envelope
from sm86.weights import folder as model_folder
from tests.launch.launch_machine import DSV4, LLAMA, gpu_uuid, write_model, write_safetensors

MODEL = load_envelope("sm86-262k").model
GIB = 1 << 30


def require(folder: Path, model=MODEL) -> None:  # type: ignore[no-untyped-def]
    checks.require_model(model_folder.look(folder), model)


def refused(folder: Path, model=MODEL) -> CouldNotRun:  # type: ignore[no-untyped-def]
    with pytest.raises(CouldNotRun) as refusal:
        require(folder, model)
    assert "\n" not in refusal.value.what and refusal.value.mend
    return refusal.value


def test_the_right_model_passes_and_has_a_hash(tmp_path: Path) -> None:
    require(write_model(tmp_path / "m", DSV4))
    assert len(model_folder.look(tmp_path / "m").sha256 or "") == 64


def test_the_hash_names_config_index_sizes_and_headers(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", DSV4)
    same = model_folder.look(folder).sha256
    assert model_folder.look(folder).sha256 == same
    os.utime(folder / "config.json", (1, 1))
    assert model_folder.look(folder).sha256 == same
    write_safetensors(folder / "model-00001-of-00002.safetensors", data_bytes=65)
    other = model_folder.look(folder).sha256
    assert other != same
    (folder / "config.json").write_text(json.dumps({**DSV4, "x": 1}))
    assert model_folder.look(folder).sha256 not in (same, other)


def test_a_single_file_and_files_without_an_index_are_found(tmp_path: Path) -> None:
    for number, name in enumerate(("model.safetensors", "weights.safetensors")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(DSV4))
        write_safetensors(folder / name)
        require(folder)
        assert [shard.name for shard in model_folder.look(folder).shards] == [name]


def test_no_folder_of_any_kind(tmp_path: Path) -> None:
    assert "is not there" in refused(tmp_path / "none").what
    (tmp_path / "file").write_text("x")
    assert "is a file" in refused(tmp_path / "file").what
    (tmp_path / "empty").mkdir()
    assert "is empty" in refused(tmp_path / "empty").what
    (tmp_path / "link").symlink_to("../cache/blobs/x")
    assert "is a link to ../cache/blobs/x, which is not there" in refused(tmp_path / "link").what


def test_files_that_are_links_out_of_the_mount_are_told_as_such(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", DSV4)
    shard = folder / "model-00002-of-00002.safetensors"
    shard.unlink()
    shard.symlink_to("../../blobs/0123")
    refusal = refused(folder)
    assert "model-00002-of-00002.safetensors is a link to ../../blobs/0123" in refusal.what
    assert "copy the real files" in refusal.mend
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("gone")
    assert "config.json is a link to gone" in refused(folder).what


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_files_that_may_not_be_read(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", DSV4)
    (folder / "config.json").chmod(0)
    assert "chmod" in refused(folder).mend


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_a_config_that_is_none(tmp_path: Path, text: str) -> None:
    folder = write_model(tmp_path / "m", DSV4)
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    assert "config.json" in refused(folder).what


@pytest.mark.parametrize("text", ["", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', '{"weight_map": []}'])
def test_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    folder = write_model(tmp_path / "m", DSV4)
    (folder / model_folder.INDEX).write_text(text)
    assert "model.safetensors.index.json" in refused(folder).what


def test_weights_that_are_missing_empty_cut_or_no_weights(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", DSV4)
    shard = folder / "model-00001-of-00002.safetensors"
    write_safetensors(shard, cut=1)
    assert "download is not complete" in refused(folder).what
    shard.write_bytes(shard.read_bytes()[:20])
    assert "cut short in its header" in refused(folder).what
    shard.write_bytes(b"")
    assert "is empty" in refused(folder).what
    shard.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "Git LFS pointer" in refused(folder).what
    shard.write_bytes(b"<html>sign in</html>")
    assert "no safetensors file" in refused(folder).what
    shard.write_bytes(b"\x02\0\0\0\0\0\0\0[]")
    assert "no safetensors file" in refused(folder).what
    shard.unlink()
    assert "is not there" in refused(folder).what
    assert model_folder.look(folder).sha256 is None


def test_no_weights_at_all(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps(DSV4))
    (tmp_path / "m" / "pytorch_model.bin").write_bytes(b"x")
    assert "nor any .safetensors file" in refused(tmp_path / "m").what


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quantization_config": None, "torch_dtype": "bfloat16"}, "not quantized (bfloat16)"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantized as fp8, the"),
        (
            {"quantization_config": {"quant_method": "auto-round", "bits": 8, "group_size": 128}},
            "quantized as auto-round with 8 bits and group size 128",
        ),
        (
            {"quantization_config": {"quant_method": "auto-round", "bits": 4, "group_size": 64}},
            "quantized as auto-round with 4 bits and group size 64",
        ),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}},
            "quantized as gptq with 4 bits",
        ),
        ({"architectures": ["DeepseekV3ForCausalLM"]}, "holds DeepseekV3ForCausalLM, the envelope serves DeepseekV4"),
        ({"architectures": []}, "no named architecture"),
        ({"architectures": "x"}, "no named architecture"),
    ],
)
def test_another_model_is_refused_by_what_it_is(tmp_path: Path, change: dict, words: str) -> None:  # type: ignore[type-arg]
    refusal = refused(write_model(tmp_path / "m", {**DSV4, **change}))
    assert words in refusal.what
    assert MODEL.repository in refusal.mend


def test_the_embedded_model_needs_no_quantization(tmp_path: Path) -> None:
    require(write_model(tmp_path / "m", LLAMA), load_envelope("cpu-smoke").model)


def test_an_envelope_of_the_users_own_may_serve_any_model(tmp_path: Path) -> None:
    require(write_model(tmp_path / "m", LLAMA), None)


def test_mtp_needs_the_checkpoints_draft_layers(tmp_path: Path) -> None:
    with_layers = model_folder.look(write_model(tmp_path / "a", DSV4))
    without = model_folder.look(write_model(tmp_path / "b", LLAMA))
    mtp, ngram = {"method": "deepseek_mtp"}, {"method": "ngram"}
    for folder, config in ((with_layers, mtp), (without, ngram), (without, None)):
        checks.require_draft_layers(folder, config)
    with pytest.raises(CouldNotRun, match="no MTP layers"):
        checks.require_draft_layers(without, mtp)


def rig(count: int = 8, **facts) -> tuple[Gpu, ...]:  # type: ignore[no-untyped-def]
    values = {"name": "RTX 3090", "capability": (8, 6), "memory_total": 24 * GIB, "memory_free": 24 * GIB, **facts}
    return tuple(Gpu(index=number, uuid=gpu_uuid(number), **values) for number in range(count))


def test_all_gpus_in_bus_order_or_the_named_ones_in_theirs() -> None:
    gpus_here = rig()
    assert checks.select(gpus_here, None, "") == gpus_here
    wanted = [gpu_uuid(6), gpu_uuid(2).upper().replace("GPU-", "GPU-"), gpu_uuid(4)[:12]]
    assert [gpu.index for gpu in checks.select(gpus_here, wanted, "SM86_GPUS")] == [6, 2, 4]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (["GPU-ffff"], "which is not here"),
        (["GPU-0000"], "fits 8 GPUs"),
        ([gpu_uuid(1), gpu_uuid(1)[:12]], "twice"),
    ],
)
def test_names_that_do_not_name_one_gpu_each(wanted: list[str], words: str) -> None:
    with pytest.raises(CouldNotRun, match=words):
        checks.select(rig(), wanted, "SM86_GPUS")


def test_no_gpu_at_all() -> None:
    with pytest.raises(CouldNotRun, match="no GPU"):
        checks.select((), None, "")


def test_cuda_visible_devices_by_index_and_uuid() -> None:
    assert checks.visible(rig(), "1, 0") == (gpu_uuid(1), gpu_uuid(0))
    assert checks.visible(rig(), gpu_uuid(3)) == (gpu_uuid(3),)
    for text in ("8", "", "MIG-1", "0,,1"):
        with pytest.raises(CouldNotRun, match="CUDA_VISIBLE_DEVICES"):
            checks.visible(rig(), text)


@pytest.mark.parametrize("count", [7, 9, 1])
def test_the_count_must_be_the_ranks(count: int) -> None:
    checks.require_count(rig(8), 8)
    with pytest.raises(CouldNotRun, match=f"{count} GPUs are selected, but the server needs 8"):
        checks.require_count(rig(count), 8)


def test_capability_eight_or_force() -> None:
    checks.require_capability(rig(capability=(8, 0)), False)
    checks.require_capability(rig(capability=(9, 0)), True)
    with pytest.raises(CouldNotRun, match="capability 7") as refusal:
        checks.require_capability(rig(capability=(7, 5)), False)
    assert "SM86_FORCE=1" in refusal.value.mend


@pytest.mark.parametrize(
    ("version", "good"), [("580.126.09", True), ("595.1", True), ("570.86.15", False), ("?", False)]
)
def test_the_drivers_floor(version: str, good: bool) -> None:
    if good:
        checks.require_driver(version)
        return
    with pytest.raises(CouldNotRun, match="CUDA 13 needs 580"):
        checks.require_driver(version)


def test_free_memory_against_what_is_claimed() -> None:
    assert checks.short_of_memory(rig(memory_free=int(22.81 * GIB)), 0.95) == ()
    short = checks.short_of_memory(rig(memory_free=int(22.76 * GIB)), 0.95)
    assert len(short) == 8
    assert "22.76 of 24.00 GiB free, the server claims 22.80" in checks.memory_refusal(short, 0.95).what
    assert "7 more" in checks.memory_refusal(short, 0.95).what


def test_shared_memory() -> None:
    checks.require_shm(64 << 20, 1)
    checks.require_shm(8 << 30, 8)
    with pytest.raises(CouldNotRun, match="/dev/shm holds 64 MiB"):
        checks.require_shm(64 << 20, 8)
    assert gpus.shm_bytes("/nowhere") is None


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import time; time.sleep(60)", "does not answer within 1 s"),
        ("", "ended without an answer"),
        ("print('Xid')", "ended without an answer"),
        ('print(\'{"problem": "no", "mend": "do"}\')', "no"),
    ],
)
def test_a_driver_that_hangs_or_babbles_is_bounded(program: str, words: str) -> None:
    import sys

    with pytest.raises(CouldNotRun, match=words):
        gpus.ask(1.0, (sys.executable, "-c", program))
