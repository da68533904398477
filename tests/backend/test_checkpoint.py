"""The checkpoint maker: packing is exact, names are the ones that the start-up check wants, files are whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sm86.backend.quant import checkpoint as wanted
from sm86.backend.quant.startup import check_model_folder, names_in
from sm86.backend.testing import checkpoint as making
from sm86.weights.inspection import inspect
from sm86.weights.judge import Wanted
from sm86.weights.places import locate


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> making.Shape:
    """The real structure at widths a CPU fills in a second."""
    for name, value in {"HIDDEN": 256, "QUERY_RANK": 128, "OUTPUT_RANK": 128, "EXPERT_WIDTH": 128}.items():
        monkeypatch.setattr(making, name, value)
    return making.Shape(layers=4, experts=6, vocabulary=320, hash_layers=1, heads=8, groups=1)


def test_packing_is_exact() -> None:
    linear = making.Maker("cpu").four_bit("x", 256, 512)
    assert int(linear.values.min()) == -8 and int(linear.values.max()) == 7
    parts = making.pack(linear)
    assert parts["qweight"].shape == (64, 256) and parts["scales"].shape == (4, 256)
    back = making.unpack(parts["qweight"], parts["scales"])
    exact = linear.values.double() * linear.scales.double().t().repeat_interleave(128, dim=1)
    assert torch.equal(back.double(), exact), "bf16 holds every product exactly"
    word = int(parts["qweight"][3, 5]) & 0xFFFFFFFF
    assert [(word >> (4 * i)) & 15 for i in range(8)] == [int(v) + 8 for v in linear.values[5, 24:32]]
    assert set(parts["qzeros"].flatten().tolist()) == {0x77777777}


def test_the_same_name_gives_the_same_tensor() -> None:
    one, other = making.Maker("cpu").normal("a", (5,), 1.0), making.Maker("cpu").normal("a", (5,), 1.0)
    assert torch.equal(one, other) and not torch.equal(one, making.Maker("cpu").normal("b", (5,), 1.0))


def test_a_written_checkpoint_passes_the_start_up_check(small: making.Shape, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    pytest.importorskip("transformers")
    size = making.write(tmp_path, small, "cpu", shard_bytes=1 << 20)
    config = json.loads((tmp_path / "config.json").read_text())
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    check_model_folder(str(tmp_path), config)
    names = names_in(tmp_path)
    assert names is not None
    linears = wanted.quantized_linears(config)
    assert names == wanted.plain_tensors(config) | {f"{n}.{part}" for n in linears for part in wanted.QUANTIZED_PARTS}
    assert size == json.loads((tmp_path / "model.safetensors.index.json").read_text())["metadata"]["total_size"]


def test_a_written_checkpoint_is_laid_out_as_model_check_expects(small: making.Shape, tmp_path: Path) -> None:
    """Names, types and shapes that torch and the safetensors library write, against those derived from the config."""
    pytest.importorskip("safetensors")
    pytest.importorskip("transformers")
    making.write(tmp_path, small, "cpu", shard_bytes=1 << 20)
    wanted_one = Wanted("OWNER/NAME", "DeepseekV4ForCausalLM", True, "auto_round:auto_gptq", "0.14.0")
    seen = inspect(locate(tmp_path), wanted_one, None, False, lambda count: None)
    states = {finding.rule: finding.state for finding in seen.findings}
    assert {rule for rule, state in states.items() if state != "pass"} == {"config-values", "lock", "bytes"}
    assert set(states.values()) == {"pass", "not applicable"}


def test_layer_kinds_and_routing_kinds() -> None:
    config = making.config_of(making.Shape())
    assert wanted.ratios_of(config) == [0, 0, 4, 128, 4, 128, 4, 128] and config["num_hash_layers"] == 3
    assert len(wanted.ratios_of(making.config_of(making.Shape(layers=43)))) == 43


@pytest.mark.parametrize(
    "arguments", [["--experts", "5"], ["--vocabulary", "300"], ["--heads", "12"], ["--groups", "3"], ["--layers", "0"]]
)
def test_impossible_shapes_are_refused(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        making.main([str(tmp_path / "x"), *arguments])
    assert stopped.value.code == 2 and not (tmp_path / "x").exists()
