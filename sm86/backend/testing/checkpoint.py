"""Make a random DeepSeek-V4 checkpoint in the public W4A16 AutoRound layout: real names and widths, few experts.

    python -m sm86.backend.testing.checkpoint FOLDER --layers 8 --experts 16

The scales have five significant bits, so a four-bit value times its scale is exact in bf16 and fp16: the reference and
the served model hold the very same weights. The swiglu limit is small, so that a missing clamp shows.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sm86.backend.quant.checkpoint import BITS, GROUP_SIZE, ratios_of
from sm86.backend.testing.budget import progress
from sm86.files import write_atomic

HIDDEN = 4096
HEAD_DIM, ROPE_DIM = 512, 64
QUERY_RANK, OUTPUT_RANK = 1024, 1024
EXPERT_WIDTH = 2048
INDEX_HEADS, INDEX_DIM = 64, 128
HYPER = 4
SPREAD = 2.6
"""Standard deviation of the four-bit values: the range -8..7 is used, and hardly clipped."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What varies between proof checkpoints. heads 8 and groups 1 are one rank's share at tensor parallel 8."""

    layers: int = 8
    experts: int = 16
    vocabulary: int = 4096
    hash_layers: int = 3
    swiglu_limit: float = 2.0
    heads: int = 64
    groups: int = 8


@dataclass(frozen=True, slots=True)
class FourBit:
    """A quantized linear: values int8 [out, in] in -8..7, scales fp32 [in / 128, out]."""

    values: torch.Tensor
    scales: torch.Tensor


def config_of(shape: Shape) -> dict[str, Any]:
    """config.json without its quantization section; the values of DeepSeek-V4-Flash but for the counts in `shape`."""
    ratios = [*[0, 0, *[4, 128] * shape.layers][: shape.layers], 0]
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "vocab_size": shape.vocabulary,
        "hidden_size": HIDDEN,
        "moe_intermediate_size": EXPERT_WIDTH,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": 1,
        "head_dim": HEAD_DIM,
        "qk_rope_head_dim": ROPE_DIM,
        "q_lora_rank": QUERY_RANK,
        "o_lora_rank": OUTPUT_RANK,
        "o_groups": shape.groups,
        "num_experts_per_tok": 6,
        "n_routed_experts": shape.experts,
        "n_shared_experts": 1,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "max_position_embeddings": 1048576,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "compress_ratios": ratios,
        "hc_mult": HYPER,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "num_hash_layers": min(shape.hash_layers, shape.layers),
        "swiglu_limit": shape.swiglu_limit,
        "sliding_window": 128,
        "index_n_heads": INDEX_HEADS,
        "index_head_dim": INDEX_DIM,
        "index_topk": 512,
        "num_nextn_predict_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "initializer_range": 0.02,
        "use_cache": True,
        "rope_scaling": {
            "type": "yarn",
            "factor": 16,
            "original_max_position_embeddings": 65536,
            "beta_fast": 32,
            "beta_slow": 1,
        },
    }


def quantization_of(layers: int) -> dict[str, Any]:
    """The public checkpoint's quantization section: everything in four bits except what it names at sixteen."""
    return {
        "quant_method": "auto-round",
        "bits": BITS,
        "group_size": GROUP_SIZE,
        "sym": True,
        "data_type": "int",
        "packing_format": "auto_round:auto_gptq",
        "autoround_version": "0.14.0",
        "block_name_to_quantize": "layers.",
        "extra_config": {f"layers.{layer}.attn.wo_a": {"bits": 16, "data_type": "float"} for layer in range(layers)},
    }


class Maker:
    """Random tensors, each from its own name's seed: the same whatever the order or the shape of the rest."""

    def __init__(self, device: str) -> None:
        self.device = device

    def _generator(self, name: str) -> torch.Generator:
        generator = torch.Generator(device=self.device)
        generator.manual_seed(zlib.crc32(name.encode()))
        return generator

    def normal(
        self,
        name: str,
        shape: tuple[int, ...],
        deviation: float,
        mean: float = 0.0,
        dtype: torch.dtype = torch.bfloat16,
    ) -> torch.Tensor:
        """Normal values of that shape, drawn in fp32."""
        value = torch.randn(shape, generator=self._generator(name), device=self.device)
        return (value * deviation + mean).to(dtype)

    def four_bit(self, name: str, rows: int, columns: int, gain: float = 1.0) -> FourBit:
        """A linear whose output has about `gain` times its input's deviation."""
        generator = self._generator(name)
        values = (
            torch.randn((rows, columns), generator=generator, device=self.device).mul_(SPREAD).round_().clamp_(-8, 7)
        )
        raw = torch.rand((columns // GROUP_SIZE, rows), generator=generator, device=self.device) * 0.6 + 0.7
        mantissa, exponent = torch.frexp(raw * (gain / math.sqrt(columns) / SPREAD))
        return FourBit(values.to(torch.int8), torch.ldexp(torch.round(mantissa * 32) / 32, exponent))

    def routes(self, name: str, vocabulary: int, experts: int, chosen: int) -> torch.Tensor:
        """Hash routing: each token's experts, int64 [vocabulary, chosen], no expert twice."""
        order = torch.rand((vocabulary, experts), generator=self._generator(name), device=self.device)
        return order.argsort(-1)[:, :chosen].to(torch.int64)


def pack(linear: FourBit) -> dict[str, torch.Tensor]:
    """GPTQ packing: qweight int32 [in / 8, out], eight inputs (plus 8) a word; qzeros; scales fp16 [in / 128, out]."""
    rows, columns = linear.values.shape
    nibbles = (linear.values.t().to(torch.int64) + 8).reshape(columns // 8, 8, rows)
    words = torch.zeros(columns // 8, rows, dtype=torch.int64, device=nibbles.device)
    for place in range(8):
        words |= nibbles[:, place] << (4 * place)
    words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    zeros = torch.full((columns // GROUP_SIZE, rows // 8), 0x77777777, dtype=torch.int32, device=words.device)
    return {"qweight": words, "qzeros": zeros, "scales": linear.scales.to(torch.float16)}


def unpack(qweight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The inverse of `pack`: bf16 [out, in], exact."""
    words = qweight.to(torch.int64) & 0xFFFFFFFF
    eighth, rows = words.shape
    nibbles = torch.stack([(words >> (4 * place)) & 15 for place in range(8)], 1)
    values = nibbles.reshape(eighth * 8, rows).t() - 8
    return (values.float() * scales.float().t().repeat_interleave(GROUP_SIZE, dim=1)).to(torch.bfloat16)


def _hyper(make: Maker, prefix: str, part: str) -> Iterator[tuple[str, torch.Tensor]]:
    mixes = HYPER * (HYPER + 2)
    size = HYPER * HIDDEN
    yield f"{prefix}hc_{part}_fn", make.normal(prefix + part + "fn", (mixes, size), size**-0.5, dtype=torch.float32)
    yield f"{prefix}hc_{part}_base", make.normal(prefix + part + "b", (mixes,), 0.5, dtype=torch.float32)
    yield f"{prefix}hc_{part}_scale", make.normal(prefix + part + "s", (3,), 0.1, 0.7, torch.float32)


def _attention(make: Maker, shape: Shape, prefix: str, ratio: int) -> Iterator[tuple[str, torch.Tensor | FourBit]]:
    inner = shape.heads * HEAD_DIM
    yield prefix + "wq_a", make.four_bit(prefix + "wq_a", QUERY_RANK, HIDDEN)
    yield prefix + "q_norm.weight", make.normal(prefix + "qn", (QUERY_RANK,), 0.1, 1.0)
    yield prefix + "wq_b", make.four_bit(prefix + "wq_b", inner, QUERY_RANK)
    yield prefix + "wkv", make.four_bit(prefix + "wkv", HEAD_DIM, HIDDEN)
    yield prefix + "kv_norm.weight", make.normal(prefix + "kvn", (HEAD_DIM,), 0.2, 1.5)
    out = (shape.groups * OUTPUT_RANK, inner // shape.groups)
    yield prefix + "wo_a.weight", make.normal(prefix + "wo_a", out, 3 * out[1] ** -0.5)
    yield prefix + "wo_b", make.four_bit(prefix + "wo_b", HIDDEN, shape.groups * OUTPUT_RANK)
    yield prefix + "attn_sink", make.normal(prefix + "sink", (shape.heads,), 1.0, dtype=torch.float32)
    if ratio <= 1:
        return
    compressors = [(prefix, HEAD_DIM)]
    if ratio == 4:
        compressors.append((prefix + "indexer.", INDEX_DIM))
        yield prefix + "indexer.wq_b", make.four_bit(prefix + "iwq_b", INDEX_HEADS * INDEX_DIM, QUERY_RANK)
        yield prefix + "indexer.weights_proj.weight", make.normal(prefix + "iwp", (INDEX_HEADS, HIDDEN), HIDDEN**-0.5)
    for owner, dims in compressors:
        width = dims * (2 if ratio == 4 else 1)
        at = owner + "compressor."
        yield at + "ape", make.normal(at + "ape", (ratio, width), 0.5, dtype=torch.float32)
        yield at + "wkv.weight", make.normal(at + "wkv", (width, HIDDEN), HIDDEN**-0.5)
        yield at + "wgate.weight", make.normal(at + "wg", (width, HIDDEN), HIDDEN**-0.5)
        yield at + "norm.weight", make.normal(at + "n", (dims,), 0.2, 1.5)


def _experts(make: Maker, shape: Shape, prefix: str, hashed: bool) -> Iterator[tuple[str, torch.Tensor | FourBit]]:
    yield prefix + "gate.weight", make.normal(prefix + "g", (shape.experts, HIDDEN), HIDDEN**-0.5)
    if hashed:
        yield prefix + "gate.tid2eid", make.routes(prefix + "t", shape.vocabulary, shape.experts, 6)
    else:
        yield prefix + "gate.bias", make.normal(prefix + "gb", (shape.experts,), 0.5, dtype=torch.float32)
    for expert in [*(f"experts.{number}" for number in range(shape.experts)), "shared_experts"]:
        at = f"{prefix}{expert}."
        yield at + "w1", make.four_bit(at + "1", EXPERT_WIDTH, HIDDEN, 1.5)
        yield at + "w3", make.four_bit(at + "3", EXPERT_WIDTH, HIDDEN, 1.5)
        yield at + "w2", make.four_bit(at + "2", HIDDEN, EXPERT_WIDTH)


def tensors(shape: Shape, make: Maker) -> Iterator[tuple[str, torch.Tensor | FourBit]]:
    """Every tensor of the checkpoint by name; quantized linears by base name."""
    config = config_of(shape)
    yield "embed.weight", make.normal("embed", (shape.vocabulary, HIDDEN), 1.0)
    yield "head.weight", make.normal("head", (shape.vocabulary, HIDDEN), 3.0 * HIDDEN**-0.5)
    yield "norm.weight", make.normal("norm", (HIDDEN,), 0.1, 1.0)
    size = HYPER * HIDDEN
    yield "hc_head_fn", make.normal("hc_head_fn", (HYPER, size), size**-0.5, dtype=torch.float32)
    yield "hc_head_base", make.normal("hc_head_base", (HYPER,), 0.5, dtype=torch.float32)
    yield "hc_head_scale", torch.full((1,), 0.7, device=make.device)
    for layer, ratio in enumerate(ratios_of(config)):
        prefix = f"layers.{layer}."
        for part in ("attn", "ffn"):
            yield f"{prefix}{part}_norm.weight", make.normal(prefix + part + "n", (HIDDEN,), 0.1, 1.0)
            yield from _hyper(make, prefix, part)
        yield from _attention(make, shape, prefix + "attn.", ratio)
        yield from _experts(make, shape, prefix + "ffn.", layer < config["num_hash_layers"])


def stored(shape: Shape, make: Maker) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor as it is stored, on the CPU."""
    for name, value in tensors(shape, make):
        parts = (
            {f"{name}.{key}": part for key, part in pack(value).items()}
            if isinstance(value, FourBit)
            else {name: value}
        )
        for key, part in parts.items():
            yield key, part.cpu().contiguous()


def write_tokenizer(folder: Path) -> None:
    """A byte tokenizer: token n is byte n, and two specials; larger ids of the vocabulary decode to nothing."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary |= {"<bos>": 256, "<eos>": 257}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>")
    fast.save_pretrained(str(folder))


def write(folder: Path, shape: Shape, device: str, shard_bytes: int = 2 << 30) -> int:
    """Write the checkpoint into `folder`, in shards of about `shard_bytes`; gives its size in bytes.

    config.json comes last, so a folder that has one is whole.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    where: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    total = held = number = 0

    def flush() -> None:
        nonlocal held, number
        name = f"model-{number:05d}.safetensors"
        progress(f"{name}: {held / 2**30:.2f} GiB")
        save_file(shard, str(folder / name))
        where.update(dict.fromkeys(shard, name))
        shard.clear()
        held, number = 0, number + 1

    for name, tensor in stored(shape, Maker(device)):
        shard[name] = tensor
        held += tensor.numel() * tensor.element_size()
        total += tensor.numel() * tensor.element_size()
        if held >= shard_bytes:
            flush()
    if shard:
        flush()
    index = {"metadata": {"total_size": total}, "weight_map": where}
    write_atomic(folder / "model.safetensors.index.json", json.dumps(index))
    write_tokenizer(folder)
    config = config_of(shape) | {"quantization_config": quantization_of(shape.layers)}
    write_atomic(folder / "config.json", json.dumps(config, indent=1))
    return total


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m sm86.backend.testing.checkpoint", description=__doc__)
    default = Shape()
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--layers", type=int, default=default.layers, help="first two window-only, then C4 and C128 in turn"
    )
    parser.add_argument("--experts", type=int, default=default.experts, help="routed experts per layer, at least 6")
    parser.add_argument("--vocabulary", type=int, default=default.vocabulary, help="at least 258, a multiple of 64")
    parser.add_argument("--hash-layers", type=int, default=default.hash_layers, help="layers routed by token hash")
    parser.add_argument("--swiglu-limit", type=float, default=default.swiglu_limit)
    parser.add_argument("--heads", type=int, default=default.heads)
    parser.add_argument(
        "--groups", type=int, default=default.groups, help="output groups; with --heads 8, 1 is a TP8 rank"
    )
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="where values are drawn"
    )
    given = parser.parse_args(arguments)
    if given.experts < 6 or given.vocabulary < 258 or given.vocabulary % 64 or given.layers < 1:
        parser.error("experts must be at least 6, the vocabulary at least 258 and a multiple of 64, layers at least 1")
    if given.heads % given.groups or given.heads % 8:
        parser.error("heads must be a multiple of 8 and of the groups")
    shape = Shape(
        given.layers,
        given.experts,
        given.vocabulary,
        given.hash_layers,
        given.swiglu_limit,
        given.heads,
        given.groups,
    )
    size = write(given.folder, shape, given.device)
    print(f"{given.folder}: {shape.layers} layers, {shape.experts} experts, {size / 2**30:.2f} GiB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
