"""vllm...quantization.auto_gptq: the routed experts' swiglu_limit, which 0.26.0 drops without a word."""

from __future__ import annotations

from typing import Any

from sm86.backend.hooks.hook import Expected, Hook
from sm86.backend.refusal import Refused


def _apply(module: Any) -> None:
    from sm86.backend.report import report_once

    original = module.AutoGPTQMoEMethod.get_fused_moe_quant_config

    def get_fused_moe_quant_config(self: Any, layer: Any) -> Any:
        config = original(self, layer)
        limit = getattr(layer, "swiglu_limit", None)
        if limit is None or config is None:
            return config
        if self.wna16_moe_backend.value != "MARLIN":
            raise Refused(
                f"the {self.wna16_moe_backend.value} MoE backend is not known to apply swiglu_limit={limit}",
                "start with --moe-backend marlin",
            )
        if getattr(config, "gemm1_clamp_limit", None) is None:
            config.gemm1_clamp_limit = float(limit)
        if config.gemm1_clamp_limit != float(limit):
            raise Refused(f"the routed experts clamp at {config.gemm1_clamp_limit}, not at {limit}", "report this")
        report_once("swiglu_limit", float(limit))
        return config

    module.AutoGPTQMoEMethod.get_fused_moe_quant_config = get_fused_moe_quant_config


HOOK = Hook(
    name="routed-experts",
    module="vllm.model_executor.layers.quantization.auto_gptq",
    why="gptq_marlin_moe_quant_config has no clamp argument, so routed experts run unclamped: wrong numbers, silently",
    expects=(
        Expected(
            "vllm.model_executor.layers.quantization.auto_gptq",
            "AutoGPTQMoEMethod.get_fused_moe_quant_config",
            "30588ff6129522d9",
        ),
        Expected("vllm.model_executor.layers.fused_moe.config", "gptq_marlin_moe_quant_config", "e6331843f7fc4cf9"),
        Expected("vllm.model_executor.layers.fused_moe.experts.marlin_moe", "MarlinExperts", "175ed3b731704cad"),
        Expected("vllm.model_executor.layers.fused_moe.experts.marlin_moe", "fused_marlin_moe", "e12121aa802286d8"),
    ),
    apply=_apply,
)
