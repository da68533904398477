"""The independent reference: transformers' DeepSeek-V4 in plain torch, on the very weights that are served.

Variants differ from transformers in known, named ways, so that what is left over is the backend's own error:

    plain      fp32, as transformers computes it
    yarn       plain, with YaRN on the window-only layers too: what vLLM 0.26.0 builds by itself
    rounded    plain, with keys rounded through e4m3 and UE8M0 as the cache stores them: what the served model should be
    bf16       rounded, with bf16 weights and activations: its distance from `rounded` is the noise floor of bf16
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sm86.backend.kernels import e4m3
from sm86.backend.layout import HEAD_DIMS, INDEXER_DIMS, NOPE_DIMS, SCALE_GROUP
from sm86.backend.testing.checkpoint import EXPERT_WIDTH, unpack

VARIANTS = ("plain", "yarn", "rounded", "bf16")
"""Every form of the reference that `Reference.use` knows."""

QUERY_PART = 1024
_YARN = {
    "rope_type": "yarn",
    "factor": 16,
    "original_max_position_embeddings": 65536,
    "beta_fast": 32,
    "beta_slow": 1,
}
_RENAME = (
    (r"^embed\.", "model.embed_tokens."),
    (r"^head\.", "lm_head."),
    (r"^norm\.", "model.norm."),
    (r"^hc_head_(fn|base|scale)$", r"model.hc_head.hc_\1"),
    (r"^layers\.", "model.layers."),
    (r"\.attn_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"\.hc_(attn|ffn)_(fn|base|scale)$", r".\1_hc.\2"),
    (r"\.attn\.", ".self_attn."),
    (r"\.ffn\.", ".mlp."),
    (r"\.indexer\.compressor\.", ".compressor.indexer."),
    (r"self_attn\.indexer\.weights_proj\.", "self_attn.compressor.indexer.scorer.weights_proj."),
    (r"self_attn\.indexer\.wq_b\.", "self_attn.compressor.indexer.q_b_proj."),
    (r"(compressor|indexer)\.norm\.", r"\1.kv_norm."),
    (r"\.ape$", ".position_bias"),
    (r"\.attn_sink$", ".sinks"),
    (r"\.wq_a\.", ".q_a_proj."),
    (r"self_attn\.wq_b\.", "self_attn.q_b_proj."),
    (r"\.wkv\.", ".kv_proj."),
    (r"\.wgate\.", ".gate_proj."),
    (r"\.wo_a\.", ".o_a_proj."),
    (r"\.wo_b\.", ".o_b_proj."),
    (r"\.q_norm\.", ".q_a_norm."),
    (r"\.gate\.bias$", ".gate.e_score_correction_bias"),
    (r"shared_experts\.w1\.", "shared_experts.gate_proj."),
    (r"shared_experts\.w2\.", "shared_experts.down_proj."),
    (r"shared_experts\.w3\.", "shared_experts.up_proj."),
)
_EXPERT = re.compile(r"^layers\.(\d+)\.ffn\.experts\.(\d+)\.w([123])\.weight$")


@dataclass(frozen=True, slots=True)
class Scores:
    """For each position but the last: log-prob of the actual next token, the best token, its lead over the second."""

    logprob: torch.Tensor
    best: torch.Tensor
    lead: torch.Tensor


def renamed(name: str) -> str:
    """A checkpoint's tensor name as transformers calls it."""
    for pattern, replacement in _RENAME:
        name = re.sub(pattern, replacement, name)
    return name


def weights(folder: Path, device: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The checkpoint's tensors by original name, four-bit linears dequantized to `.weight`."""
    from safetensors import safe_open

    where = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    files = {name: safe_open(str(folder / name), "pt", device=device) for name in sorted(set(where.values()))}

    def get(name: str) -> torch.Tensor:
        return files[where[name]].get_tensor(name)

    for name in where:
        base = name.removesuffix(".qweight")
        if base != name:
            yield f"{base}.weight", unpack(get(name), get(f"{base}.scales"))
        elif not name.endswith((".qzeros", ".scales")):
            yield name, get(name)


class Reference:
    """transformers' model in fp32, filled from a checkpoint folder; `use` picks the variant (bf16 last, for good)."""

    def __init__(self, folder: Path, device: str) -> None:
        from transformers.models.deepseek_v4 import modeling_deepseek_v4 as modeling
        from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config

        raw = json.loads((folder / "config.json").read_text())
        for key in ("quantization_config", "architectures", "model_type", "rope_scaling", "torch_dtype", "topk_method"):
            raw.pop(key, None)
        self._config = DeepseekV4Config(**raw, rope_parameters=dict(_YARN))
        self._config._attn_implementation = "eager"
        self._config._experts_implementation = "eager"
        self._modeling = modeling
        self._device = device
        with torch.device("meta"):
            model = modeling.DeepseekV4ForCausalLM(self._config)
        self._model = model.to_empty(device=device).float()
        self._fill_rotary()
        self._fill(folder)
        self._model.eval()
        self._rotate: Callable[..., Any] = modeling.apply_rotary_pos_emb
        self._attend: Callable[..., Any] = modeling.eager_attention_forward
        modeling.eager_attention_forward = self._attend_in_parts
        self._plain_frequencies = self._model.model.rotary_emb.main_inv_freq.clone()

    def _fill_rotary(self) -> None:
        for module in self._model.modules():
            if isinstance(module, self._modeling.DeepseekV4RotaryEmbedding):
                fresh = self._modeling.DeepseekV4RotaryEmbedding(self._config)
                for name, value in fresh.named_buffers():
                    getattr(module, name).copy_(value.to(self._device))

    def _fill(self, folder: Path) -> None:
        targets = dict(self._model.named_parameters())
        targets |= {name: value for name, value in self._model.named_buffers() if "inv_freq" not in name}
        filled = set()
        with torch.no_grad():
            for name, value in weights(folder, self._device):
                expert = _EXPERT.match(name)
                if expert:
                    layer, number, which = map(int, expert.groups())
                    target = f"model.layers.{layer}.mlp.experts." + ("down_proj" if which == 2 else "gate_up_proj")
                    place = targets[target][number]
                    if which != 2:
                        place = place[:EXPERT_WIDTH] if which == 1 else place[EXPERT_WIDTH:]
                else:
                    target = renamed(name)
                    if target not in targets:
                        raise LookupError(f"{name} has no place in transformers' model ({target})")
                    place = targets[target]
                if place.shape != value.shape:
                    raise ValueError(f"{name}: {tuple(value.shape)}, transformers has {tuple(place.shape)}")
                place.copy_(value)
                filled.add(target)
        left = sorted(set(targets) - filled)
        if left:
            raise LookupError(f"not in the checkpoint: {left[:5]}")

    def use(self, variant: str) -> None:
        """Make the model the named variant."""
        frequencies = self._plain_frequencies
        if variant == "yarn":
            parameters = dict(_YARN)
            config = type(self._config)(
                **{**self._config.to_dict(), "compress_rope_theta": 10000.0, "rope_parameters": parameters}
            )
            frequencies = self._modeling.DeepseekV4RotaryEmbedding(config).compress_inv_freq
        self._model.model.rotary_emb.main_inv_freq.copy_(frequencies.to(self._device))
        self._modeling.apply_rotary_pos_emb = self._rounding if variant in ("rounded", "bf16") else self._rotate
        if variant == "bf16":
            self._to_bf16()

    def _rounding(self, x: torch.Tensor, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> torch.Tensor:
        """The rotation, then for keys (one head) the cache's rounding: queries pass unchanged."""
        y = self._rotate(x, cos, sin, unsqueeze_dim)
        if x.shape[1] == 1 and x.shape[-1] == HEAD_DIMS:
            nope = through_cache(x[..., :NOPE_DIMS], SCALE_GROUP)
            return torch.cat([nope, y[..., NOPE_DIMS:].to(torch.bfloat16).to(y.dtype)], -1)
        if x.shape[1] == 1 and x.shape[-1] == INDEXER_DIMS:
            return through_cache(y, INDEXER_DIMS)
        return y

    def _attend_in_parts(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **rest: Any
    ) -> tuple[torch.Tensor, None]:
        """transformers' own attention, a slice of the queries at a time: all at once takes 100 GiB at 20,000 tokens."""
        parts = []
        for first in range(0, query.shape[2], QUERY_PART):
            rows = slice(first, first + QUERY_PART)
            part_mask = mask[:, :, rows] if isinstance(mask, torch.Tensor) else mask
            parts.append(self._attend(module, query[:, :, rows], key, value, part_mask, **rest)[0])
        return torch.cat(parts, 1), None

    def _to_bf16(self) -> None:
        kinds = ("DeepseekV4Experts", "DeepseekV4TopKRouter", "DeepseekV4HashRouter", "DeepseekV4RMSNorm")
        for module in self._model.modules():
            if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)) or type(module).__name__ in kinds:
                for name, parameter in module.named_parameters(recurse=False):
                    if name != "e_score_correction_bias":
                        parameter.data = parameter.data.to(torch.bfloat16)

    @torch.inference_mode()
    def score(self, tokens: list[int]) -> Scores:
        """Scores of one sequence in one pass, on the CPU."""
        logits = self._model(input_ids=torch.tensor([tokens], device=self._device), use_cache=False).logits[0].float()
        following = torch.tensor(tokens[1:], device=self._device)
        logprob = torch.log_softmax(logits[:-1], -1).gather(1, following[:, None])[:, 0]
        top = logits[:-1].topk(2, -1)
        return Scores(logprob.cpu(), top.indices[:, 0].cpu(), (top.values[:, 0] - top.values[:, 1]).cpu())


def through_cache(x: torch.Tensor, group: int) -> torch.Tensor:
    """Round to bf16, then through e4m3 with one power-of-two scale per group, as an entry written and read back."""
    codes, exponent = e4m3.quantize_groups(x.to(torch.bfloat16).float(), group)
    value = e4m3.decode(codes).unflatten(-1, (-1, group)) * e4m3.power_of_two(exponent).unsqueeze(-1)
    return value.flatten(-2).to(x.dtype)
