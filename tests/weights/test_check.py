"""Judging a checkpoint: the good one passes, every kind of wrong one fails in its own rule and words."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sm86.cli.model import _wanted
from sm86.errors import CouldNotRun
from sm86.spec import load_envelope
from sm86.weights.findings import FAIL, NOT_APPLICABLE, NOT_SEEN, PASS, Finding, exit_code
from sm86.weights.header import Tensor
from sm86.weights.inspection import Inspection, inspect, make_lock
from sm86.weights.judge import Wanted
from sm86.weights.places import locate
from tests.launch.launch_machine import LLAMA, write_model
from tests.weights import checkpoints as made
from tests.weights.checkpoints import MODEL, quantize, shards_of, small, tensors_of, without

# what the small checkpoints have on purpose: other sizes than the published one
SMALL = Wanted(MODEL.repository, MODEL.architecture, True, "auto_round:auto_gptq", "0.14.0", {"hc_mult": 4})


def look(folder: Path, wanted: Wanted = SMALL) -> Inspection:
    return inspect(locate(folder), wanted, None, False, lambda count: None)


def findings(folder: Path, wanted: Wanted = SMALL) -> dict[str, Finding]:
    seen = look(folder, wanted)
    for finding in seen.findings:
        assert finding.text.isprintable() and finding.text
        assert bool(finding.mend) == (finding.state in (FAIL, NOT_SEEN)), finding
        assert all(len(line) < 300 for line in finding.evidence)
    return {finding.rule: finding for finding in seen.findings}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return made.write(tmp_path / "m", small())


def test_a_good_checkpoint_passes_every_rule(good: Path) -> None:
    found = findings(good)
    assert {rule for rule, finding in found.items() if finding.state == NOT_APPLICABLE} == {"lock", "bytes"}
    assert {finding.state for finding in found.values()} == {PASS, NOT_APPLICABLE}
    assert exit_code(look(good).findings) == 0


def test_the_published_sizes_pass_the_real_comparison(tmp_path: Path) -> None:
    """The whole layout of the published checkpoint, a hundred thousand tensors, as holes."""
    folder = made.write(tmp_path / "m", made.config(), shards=31)
    seen = look(folder, _wanted(MODEL))
    assert exit_code(seen.findings) == 0, [finding for finding in seen.findings if finding.state != PASS]
    assert seen.tensors == 100_915
    (folder / "config.json").write_text(json.dumps(made.config(rope_theta=50000, swiglu_limit=7.0)))
    for path in shards_of(folder)[1:]:
        path.unlink()  # the config alone is judged this time
    finding = findings(folder, _wanted(MODEL))["config-values"]
    assert finding.state == FAIL and "2 of" in finding.text
    assert "rope_theta is 50000, the family has 10000" in finding.evidence


def test_the_draft_layer_and_the_group_order_may_be_there(tmp_path: Path) -> None:
    more = {"mtp.0.e_proj.qweight": Tensor("I32", (1, 1)), "layers.0.attn.wq_a.g_idx": Tensor("I32", (256,))}
    found = findings(made.write(tmp_path / "m", small(), {**tensors_of(small()), **more}))
    assert found["tensors"].state == PASS and "1 more of the draft layer" in found["tensors"].text


Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ("layers.1.ffn.gate", "the router gates are quantized: an older revision"),
        ("layers.2.attn.compressor.wkv", "the KV compressors are quantized: an older revision"),
        ("layers.3.attn.compressor.wgate", "the KV compressors are quantized"),
        ("layers.2.attn.indexer.compressor.wgate", "the KV compressors are quantized"),
        ("embed", "the embeddings are quantized: an older revision"),
        ("head", "the embeddings are quantized"),
        ("layers.0.attn.wo_a", "wo_a are quantized: another export"),
        ("layers.2.attn.indexer.weights_proj", "weights_proj are quantized"),
    ],
)
def test_older_revisions_are_named(tmp_path: Path, base: str, words: str) -> None:
    folder = made.write(tmp_path / "m", small(), quantize(tensors_of(small()), base))
    found = findings(folder)
    assert found["unquantized"].state == FAIL and words in found["unquantized"].text
    assert found["unquantized"].evidence == (base,)
    assert found["tensors"].state == FAIL and f"{base}.weight" in found["tensors"].evidence


def test_older_revisions_are_named_from_the_index_alone(good: Path) -> None:
    """Also while the file that would show it is still on its way."""
    index = json.loads((good / "model.safetensors.index.json").read_text())
    index["weight_map"]["layers.2.attn.compressor.wkv.qweight"] = "model-00002-of-00003.safetensors"
    (good / "model.safetensors.index.json").write_text(json.dumps(index))
    shards_of(good)[1].unlink()
    assert "KV compressors are quantized" in findings(good)["unquantized"].text


def retyped(name: str, tensor: Tensor) -> Change:
    return lambda tensors: {**tensors, name: tensor}


@pytest.mark.parametrize(
    ("change", "rule", "words"),
    [
        (lambda t: without(t, ["layers.0.attn.attn_sink"]), "tensors", "1 of"),
        (retyped("layers.0.attn.rotary.inv_freq", Tensor("F32", (4,))), "tensors", "none of this model's"),
        (retyped("layers.0.attn.wq_a.weight", Tensor("BF16", (128, 256))), "unquantized", "stored unquantized"),
        (retyped("layers.0.attn.wq_a.qweight", Tensor("I32", (16, 256))), "shapes", "1 of"),
        (retyped("layers.0.attn.wq_a.qweight", Tensor("U8", (32, 128))), "shapes", "1 of"),
        (retyped("layers.0.attn.wq_a.scales", Tensor("F32", (2, 128))), "shapes", "1 of"),
        (retyped("layers.0.attn.wo_a.weight", Tensor("F8_E4M3", (128, 256))), "shapes", "1 of"),
        (retyped("layers.0.ffn.gate.tid2eid", Tensor("F32", (320, 2))), "shapes", "1 of"),
    ],
)
def test_tensors_that_are_not_as_the_config_asks(tmp_path: Path, change: Change, rule: str, words: str) -> None:
    found = findings(made.write(tmp_path / "m", small(), change(tensors_of(small()))))
    assert found[rule].state == FAIL and words in found[rule].text and found[rule].evidence


def section(**changes: Any) -> dict[str, Any]:
    return small(quantization_config={**small()["quantization_config"], **changes})


@pytest.mark.parametrize(
    ("values", "rule", "state", "words"),
    [
        (section(quant_method="gptq"), "quantization", FAIL, "'gptq'"),
        (section(bits=8), "quantization", FAIL, "bits is 8"),
        (section(bits="4"), "quantization", FAIL, "bits is '4'"),
        (section(group_size=64), "quantization", FAIL, "group_size is 64"),
        (section(sym=False), "quantization", FAIL, "sym is False"),
        (section(sym=1), "quantization", FAIL, "sym is 1"),
        (small(quantization_config=None, torch_dtype="bfloat16"), "quantization", FAIL, "not quantized (bfloat16)"),
        (small(quantization_config="x"), "quantization", FAIL, "not quantized"),
        (section(packing_format="auto_round:auto_awq"), "packing", FAIL, "auto_awq"),
        (section(packing_format=None), "packing", FAIL, "None"),
        (section(block_name_to_quantize="layers"), "packing", FAIL, "without a dot"),
        (section(autoround_version="0.13.1"), "autoround-version", FAIL, "0.13.1, the published checkpoint by 0.14.0"),
        (section(autoround_version=None), "autoround-version", NOT_SEEN, "names no autoround_version"),
        (section(extra_config={}), "unquantized", FAIL, "other bits than the files have"),
        (section(extra_config="x"), "unquantized", FAIL, "other bits than the files have"),
        (
            section(extra_config={r".*wo_a": {"bits": 16}, r".*wq_a": {"bits": 16}}),
            "unquantized",
            FAIL,
            "other bits than the files have",
        ),
        (small(architectures=["DeepseekV3ForCausalLM"]), "architecture", FAIL, "DeepseekV3ForCausalLM"),
        (small(architectures=[7]), "architecture", FAIL, "no named architecture"),
        (small(hc_mult=4.0), "config-values", PASS, "all 1"),
        (small(hc_mult=True), "config-values", FAIL, "1 of 1"),
        (small(vocab_size=299), "tokenizer", FAIL, "tokens up to 299, but the model's vocabulary ends at 299"),
    ],
)
def test_what_the_config_says(tmp_path: Path, values: dict[str, Any], rule: str, state: str, words: str) -> None:
    folder = made.write(tmp_path / "m", small())
    (folder / "config.json").write_text(json.dumps(values))
    finding = findings(folder)[rule]
    assert (finding.state, words in finding.text) == (state, True), finding


def test_a_huge_number_in_the_config_is_words_not_a_page(good: Path) -> None:
    (good / "config.json").write_text(json.dumps(small(hc_mult=10**3000)))
    found = findings(good)
    assert found["config-values"].evidence == ("hc_mult is a number of too many digits, the family has 4",)
    assert found["tensors"].state == found["shapes"].state == NOT_SEEN


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1]", "no JSON object"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ("{}".encode("utf-16"), "not valid JSON"),
        (b"[" * 90000, "not valid JSON"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not valid JSON"),
        (None, "is not there"),
    ],
)
def test_a_config_that_is_none(good: Path, data: bytes | None, words: str) -> None:
    path = good / "config.json"
    path.unlink() if data is None else path.write_bytes(data)
    found = findings(good)
    assert found["config"].state == FAIL and words in found["config"].text
    assert {found[rule].state for rule in ("architecture", "quantization", "tensors", "shapes")} == {NOT_SEEN}
    assert found["index"].state == PASS, "what does not hang on the config is judged all the same"


def break_index(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def broken(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        values = json.loads(path.read_text())
        change(values)
        path.write_text(json.dumps(values))

    return broken


def cut(by: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(shards_of(folder)[1], shards_of(folder)[1].stat().st_size - by)


def replace(kind: Callable[[Path], object]) -> Callable[[Path], None]:
    def replaced(folder: Path) -> None:
        path = shards_of(folder)[1]
        path.unlink()
        kind(path)

    return replaced


NAME = "layers.0.attn.attn_sink"
FIRST, LAST = "model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"


@pytest.mark.parametrize(
    ("spoil", "rule", "words"),
    [
        (cut(1), "weight-files", "the download is not complete"),
        (cut(-7), "weight-files", "7 more than its header tells of"),
        (lambda folder: os.truncate(shards_of(folder)[0], 40), "weight-files", "cut short in its header"),
        (lambda folder: shards_of(folder)[0].write_bytes(b""), "weight-files", "is empty"),
        (
            lambda folder: shards_of(folder)[0].write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
            "weight-files",
            "Git LFS pointer",
        ),
        (lambda folder: shards_of(folder)[0].write_bytes(b"\xff" * 99), "weight-files", "no safetensors file"),
        (lambda folder: shards_of(folder)[2].unlink(), "weight-files", "is not there"),
        (replace(os.mkfifo), "weight-files", "it is a FIFO, not a regular file"),
        (replace(os.mkdir), "weight-files", "it is a folder, not a regular file"),
        (replace(lambda path: path.symlink_to("/dev/zero")), "weight-files", "it is a device, not a regular file"),
        (replace(lambda path: path.symlink_to("../../blobs/0123")), "weight-files", "link to ../../blobs/0123"),
        (replace(lambda path: path.symlink_to(path.name)), "weight-files", "cannot be read"),
        (lambda folder: shutil.copy(shards_of(folder)[0], folder / "old.safetensors"), "weight-files", "in no index"),
        (break_index(lambda v: v.update(weight_map={})), "index", "has no weight_map"),
        (break_index(lambda v: v.update(weight_map={"a": 1})), "index", "has no weight_map"),
        (break_index(lambda v: v["weight_map"].update({"a": "../x.safetensors"})), "index", "no file of this folder"),
        (break_index(lambda v: v["weight_map"].update({"a": "/etc/passwd"})), "index", "no file of this folder"),
        (break_index(lambda v: v["weight_map"].update({"a": "b\0"})), "index", "no file of this folder"),
        (break_index(lambda v: v["weight_map"].update({"a": "\x1b[2J"})), "index", "no file of this folder"),
        (break_index(lambda v: v["weight_map"].update({NAME: LAST})), "index", "1 tensors are not in the file"),
        (break_index(lambda v: v["weight_map"].update({"more": FIRST})), "index", "1 tensors are not in the file"),
        (break_index(lambda v: v["weight_map"].pop(NAME)), "index", "1 tensors stand in the files and not"),
        (break_index(lambda v: v["metadata"].update(total_size=7)), "index", "claims 7 bytes"),
        (break_index(lambda v: v["metadata"].update(total_size=10**30)), "index", "too many digits"),
        (lambda folder: (folder / "model.safetensors.index.json").unlink(), "index", "3 weight files, but no"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_bytes(b"\xef\xbb\xbf{}"),
            "index",
            "byte order",
        ),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer", "tokenizer.json is not there"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "tokenizer", "not valid JSON"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer", "has no vocabulary"),
        (lambda folder: (folder / "tokenizer.json").write_text('{"model": {"vocab": {}}}'), "tokenizer", "is empty"),
        (
            lambda folder: (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": "b"}}}'),
            "tokenizer",
            "no voc",
        ),
        (lambda folder: (folder / "tokenizer_config.json").unlink(), "tokenizer", "tokenizer_config.json is not there"),
    ],
)
def test_files_that_are_wrong(good: Path, spoil: Callable[[Path], object], rule: str, words: str) -> None:
    spoil(good)
    finding = findings(good)[rule]
    told = " ".join((finding.text, *finding.evidence))
    assert finding.state == FAIL and words in told, finding
    assert exit_code(look(good).findings) == 1


def test_tensors_that_nobody_could_see_are_not_called_missing(good: Path) -> None:
    shards_of(good)[2].unlink()
    found = findings(good)
    assert found["tensors"].state == found["shapes"].state == found["index"].state == NOT_SEEN
    assert look(good).found.sha256 is None


def test_a_tensor_in_two_files(good: Path) -> None:
    first, second = shards_of(good)[:2]
    second.write_bytes(first.read_bytes())
    assert "stand in two files" in findings(good)["index"].text


def test_two_headers_that_swap_their_files(good: Path) -> None:
    first, second = shards_of(good)[:2]
    first.rename(good / "x")
    second.rename(first)
    (good / "x").rename(second)
    assert findings(good)["index"].state == FAIL


@pytest.fixture
def stranger() -> Iterator[Path]:
    """A folder that another user can reach, and this process as that user, for what root may always read."""
    place = Path(tempfile.mkdtemp(prefix="sm86-weights-"))
    place.chmod(0o755)
    folder = made.write(place / "m", small())
    if os.getuid() == 0:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        shutil.rmtree(place)


def closed(path: Path, mode: int) -> None:
    mine = os.geteuid()
    os.seteuid(os.getuid())
    path.chmod(mode)
    os.seteuid(mine)


@pytest.mark.parametrize(
    ("name", "rule"),
    [("config.json", "config"), (FIRST, "weight-files"), ("tokenizer.json", "tokenizer")],
)
def test_files_that_may_not_be_read(stranger: Path, name: str, rule: str) -> None:
    closed(stranger / name, 0)
    finding = findings(stranger)[rule]
    assert finding.state == FAIL and "Permission denied" in " ".join((finding.text, *finding.evidence))


def test_a_small_file_that_cannot_be_read_is_not_called_as_locked(stranger: Path) -> None:
    lock = make_lock(locate(stranger), None, None, lambda count: None)
    closed(stranger / "tokenizer_config.json", 0)
    seen = inspect(locate(stranger), SMALL, lock, False, lambda count: None)
    finding = next(finding for finding in seen.findings if finding.rule == "lock")
    assert (finding.state, finding.evidence) == (NOT_SEEN, ("tokenizer_config.json",))


def test_a_folder_that_may_not_be_read(stranger: Path) -> None:
    closed(stranger, 0)
    with pytest.raises(CouldNotRun, match="cannot be read: Permission denied"):
        look(stranger)
    closed(stranger, 0o755)


def test_the_embedded_model_is_judged_by_what_applies(tmp_path: Path) -> None:
    model = load_envelope("cpu-smoke").model
    folder = write_model(tmp_path / "m", LLAMA, shards=1)
    made.write_tokenizer(folder)
    made.write_index(folder, {"w": "model-00001-of-00001.safetensors"}, 64)
    found = findings(folder, _wanted(model))
    assert {found[rule].state for rule in ("architecture", "index", "weight-files", "tokenizer")} == {PASS}
    rules = ("quantization", "packing", "autoround-version", "config-values", "tensors", "shapes", "unquantized")
    assert {found[rule].state for rule in rules} == {NOT_APPLICABLE}
