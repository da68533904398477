"""vllm.models.deepseek_v4.attention: RoPE tables cut to the context (two of 256 MiB per GPU otherwise), and the plain
rotation for layers that only have a window.

The model stretches positions (YaRN) where keys are compressed, and nowhere else: so its authors' own inference code and
transformers have it. vLLM 0.26.0 changes the base for window-only layers but leaves the stretch on.
"""

from __future__ import annotations

from typing import Any

from sm86.backend.hooks.hook import Expected, Hook
from sm86.backend.refusal import Refused

MARGIN_ROWS = 256
"""Dummy and padded tokens of warm-up and graphs may carry positions a little beyond the context."""


def rows_kept(rows: int, context: int) -> int:
    """Rows of a table of `rows` that a server of `context` tokens can read. Raises Refused when there are too few."""
    if context > rows:
        raise Refused(
            f"the context of {context} tokens is beyond the RoPE table's {rows} positions",
            f"set --max-model-len to at most {rows}",
        )
    return min(rows, context + MARGIN_ROWS)


def plain_table(rows: int, dims: int, base: float, device: Any) -> Any:
    """fp32 [rows, dims]: cosines, then sines, of position times base^(-2i / dims)."""
    import torch

    pairs = torch.arange(0, dims, 2, dtype=torch.float32, device=device)
    # frequencies are rounded to fp32 before they are multiplied, as everywhere else this model is computed
    frequencies = 1.0 / base ** (pairs / dims)
    angles = torch.arange(rows, dtype=torch.float32, device=device)[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def _unstretch(rope: Any, config: Any) -> None:
    from sm86.backend.report import report_once

    if config.rope_theta == config.compress_rope_theta:
        # vLLM then makes one table for both kinds of layers
        raise Refused(
            f"window-only and compressed layers share the RoPE base {config.rope_theta}",
            "this checkpoint is not a DeepSeek-V4 that this backend knows",
        )
    table = rope.cos_sin_cache
    table.copy_(plain_table(table.shape[0], table.shape[1], config.rope_theta, table.device))
    report_once("window_rope", "plain")


def _apply(module: Any) -> None:
    from sm86.backend.report import report_once

    original = module.build_deepseek_v4_rope

    def build_deepseek_v4_rope(config: Any, **kwargs: Any) -> Any:
        rope = original(config, **kwargs)
        rows = rope.cos_sin_cache.shape[0]
        kept = rows_kept(rows, module.get_current_vllm_config().model_config.max_model_len)
        if kept < rows:
            # The table object is shared by all layers of its kind, so this happens once for each.
            rope.cos_sin_cache = rope.cos_sin_cache[:kept].clone()
            saved = (rows - kept) * rope.cos_sin_cache.shape[1] * rope.cos_sin_cache.element_size()
            report_once("rope_table_rows", kept)
            report_once("rope_table_saved_mib_each", saved // 2**20)
        if kwargs["compress_ratio"] <= 1 and not getattr(rope, "sm86_plain", False):
            _unstretch(rope, config)
            rope.sm86_plain = True
        return rope

    module.build_deepseek_v4_rope = build_deepseek_v4_rope


HOOK = Hook(
    name="rope-tables",
    module="vllm.models.deepseek_v4.attention",
    why="vLLM builds fp32 tables for 1,048,576 positions, 512 MiB per GPU, and stretches those of window-only layers",
    expects=(
        Expected("vllm.models.deepseek_v4.common.rope", "build_deepseek_v4_rope", "425d6c1805243d40"),
        Expected("vllm.models.deepseek_v4.attention", "DeepseekV4Attention.__init__", "a518234620f41f1b"),
    ),
    apply=_apply,
    imports=("build_deepseek_v4_rope", "get_current_vllm_config"),
)
