"""Made-up checkpoints: real names, types and shapes in real headers, holes for the tensors."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sm86.spec import load_checkpoint, load_envelope
from sm86.weights import layout
from sm86.weights.header import BITS, Tensor

MODEL = load_envelope("sm86-262k").model
FACTS = load_checkpoint(MODEL)
assert FACTS is not None

QUANTIZATION: dict[str, Any] = {
    "quant_method": "auto-round",
    "bits": 4,
    "group_size": 128,
    "sym": True,
    "data_type": "int",
    "packing_format": "auto_round:auto_gptq",
    "autoround_version": "0.14.0",
    "block_name_to_quantize": "layers.",
}


def config(layers: int = 43, experts: int = 256, **changes: Any) -> dict[str, Any]:
    """The published config.json, or one of fewer layers and experts."""
    assert FACTS is not None
    section = {**QUANTIZATION, "extra_config": {f"layers.{n}.attn.wo_a": {"bits": 16} for n in range(layers)}}
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        **FACTS.config,
        "num_hidden_layers": layers,
        "n_routed_experts": experts,
        "quantization_config": section,
        **changes,
    }


def small(**changes: Any) -> dict[str, Any]:
    """Four layers (two with a window only, one C4, one C128), two experts, small matrices."""
    sizes = {
        "vocab_size": 320,
        "hidden_size": 256,
        "num_attention_heads": 8,
        "head_dim": 32,
        "q_lora_rank": 128,
        "o_lora_rank": 128,
        "o_groups": 1,
        "moe_intermediate_size": 128,
        "num_experts_per_tok": 2,
        "num_hash_layers": 1,
        "index_n_heads": 4,
        "index_head_dim": 16,
        "compress_ratios": [0, 0, 4, 128, 0],
    }
    return config(4, 2, **{**sizes, **changes})


def tensors_of(values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Every tensor that a config asks for, in its usual form."""
    return {name: forms[0] for name, forms in layout.expected(values).items()}


def size_of(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * BITS[tensor.dtype] // 8


def header_of(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> tuple[bytes, int]:
    """The header's bytes and the bytes of all tensors."""
    values: dict[str, Any] = {"__metadata__": dict(metadata or {"format": "pt"})}
    at = 0
    for name, tensor in tensors.items():
        end = at + size_of(tensor)
        values[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(values, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8), at


def write_shard(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A file whose tensors are a hole: it has its full size and takes no room."""
    header, data = header_of(tensors)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + data)


def write_tokenizer(folder: Path, tokens: int = 300) -> None:
    vocabulary = {f"t{number}": number for number in range(tokens - 1)}
    whole = {"version": "1.0", "added_tokens": [{"id": tokens - 1, "content": "<eos>"}], "model": {"vocab": vocabulary}}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def write(
    folder: Path, values: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None, shards: int = 3
) -> Path:
    """A checkpoint's folder. tensors: others than the config asks for."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = dict(tensors if tensors is not None else tensors_of(values))
    names = list(whole)
    step = -(-len(names) // shards)
    index: dict[str, str] = {}
    for number in range(shards):
        part = names[number * step : (number + 1) * step]
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        write_shard(folder / file, {name: whole[name] for name in part})
        index |= dict.fromkeys(part, file)
    write_index(folder, index, sum(map(size_of, whole.values())))
    (folder / "config.json").write_text(json.dumps(values))
    write_tokenizer(folder, min(300, int(values["vocab_size"])))
    return folder


def write_index(folder: Path, index: Mapping[str, str], total: int) -> None:
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": dict(index)})
    (folder / "model.safetensors.index.json").write_text(text)


def shards_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def without(tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    gone = set(names)
    return {name: tensor for name, tensor in tensors.items() if name not in gone}


def quantize(tensors: Mapping[str, Tensor], base: str) -> dict[str, Tensor]:
    """The same checkpoint with one more linear in four bits, as an older revision has it."""
    rows, columns = tensors[f"{base}.weight"].shape
    rest = without(tensors, [f"{base}.weight"])
    rest[f"{base}.qweight"] = Tensor("I32", (columns // 8, rows))
    rest[f"{base}.qzeros"] = Tensor("I32", (columns // 128, rows // 8))
    rest[f"{base}.scales"] = Tensor("F16", (columns // 128, rows))
    return rest
