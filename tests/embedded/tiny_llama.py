"""A tiny llama in GGUF form: real quantization, real tokenizer metadata, a few kilobytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy

WIDTH, INNER, LAYERS, HEADS, KV_HEADS, HEAD = 64, 96, 2, 4, 2, 16
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "Ġt he", "1 2"]


def byte_alphabet() -> list[str]:
    """The 256 printable stand-ins that byte-level BPE uses for bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(byte) for byte in kept] + [chr(256 + n) for n in range(256 - len(kept))]


TOKENS = [*CONTROL, *byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]


def tensors(seed: int = 0) -> dict[str, numpy.ndarray]:
    """GGUF name -> float32 values, in GGUF's own order of rows."""
    rng = numpy.random.default_rng(seed)

    def make(*shape: int) -> numpy.ndarray:
        return (rng.standard_normal(shape) * 0.2).astype(numpy.float32)

    found = {"token_embd.weight": make(len(TOKENS), WIDTH), "output_norm.weight": make(WIDTH) + 1}
    for block in range(LAYERS):
        found |= {
            f"blk.{block}.attn_norm.weight": make(WIDTH) + 1,
            f"blk.{block}.attn_q.weight": make(HEADS * HEAD, WIDTH),
            f"blk.{block}.attn_k.weight": make(KV_HEADS * HEAD, WIDTH),
            f"blk.{block}.attn_v.weight": make(KV_HEADS * HEAD, WIDTH),
            f"blk.{block}.attn_output.weight": make(WIDTH, HEADS * HEAD),
            f"blk.{block}.ffn_norm.weight": make(WIDTH) + 1,
            f"blk.{block}.ffn_gate.weight": make(INNER, WIDTH),
            f"blk.{block}.ffn_up.weight": make(INNER, WIDTH),
            f"blk.{block}.ffn_down.weight": make(WIDTH, INNER),
        }
    return found


def metadata() -> dict[str, Any]:
    """What the file says of itself, by GGUF key."""
    return {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "general.license": "apache-2.0",
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.freq_base": 100000.0,
        "llama.rope.dimension_count": HEAD,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": len(TOKENS),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * (len(TOKENS) - len(CONTROL)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}",
    }


def write_gguf(
    path: Path, values: dict[str, numpy.ndarray], about: dict[str, Any], quantized: bool = True
) -> dict[str, numpy.ndarray]:
    """Write the file; returns the values that a reader gets back (the matrices after Q4_1)."""
    from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
    from gguf.quants import dequantize, quantize

    writer = GGUFWriter(path, about["general.architecture"])
    for key, value in about.items():
        if key == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_key_value(key, value, GGUFValueType.UINT32)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_string(key, value)
    stored = {}
    for name, array in values.items():
        if quantized and array.ndim == 2:
            packed = quantize(array, GGMLQuantizationType.Q4_1)
            writer.add_tensor(name, packed, raw_dtype=GGMLQuantizationType.Q4_1)
            stored[name] = dequantize(packed, GGMLQuantizationType.Q4_1)
        else:
            writer.add_tensor(name, array)
            stored[name] = array
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored
