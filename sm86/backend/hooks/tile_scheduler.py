"""vllm.v1.attention.backends.mla.sparse_swa: no FlashMLA schedule; the SM86 attention plans from shapes alone."""

from __future__ import annotations

from typing import Any

from sm86.backend.hooks.hook import Expected, Hook


def _apply(module: Any) -> None:
    kinds = (module._LAYER_TYPE_SWAONLY, module._LAYER_TYPE_C4A, module._LAYER_TYPE_C128A)

    def build_tile_scheduler(self: Any, num_decode_tokens: int) -> dict[str, None]:
        return dict.fromkeys(kinds)

    module.DeepseekSparseSWAMetadataBuilder.build_tile_scheduler = build_tile_scheduler


HOOK = Hook(
    name="tile-scheduler",
    module="vllm.v1.attention.backends.mla.sparse_swa",
    why="the schedule comes from FlashMLA's library, which a build for SM86 does not contain",
    expects=(
        Expected(
            "vllm.v1.attention.backends.mla.sparse_swa", "DeepseekSparseSWAMetadataBuilder.build", "a01b85624acfd0c9"
        ),
        Expected(
            "vllm.v1.attention.backends.mla.sparse_swa",
            "DeepseekSparseSWAMetadataBuilder.build_tile_scheduler",
            "12cd724ea05690f8",
        ),
    ),
    apply=_apply,
)
