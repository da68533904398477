"""vllm...quantization.auto_gptq: with SM86_DETERMINISTIC_MOE=1 the routed experts run in a fixed order, for tests."""

from __future__ import annotations

from typing import Any

from sm86.backend.hooks.hook import Expected, Hook
from sm86.backend.refusal import Refused

PACKED = ("w13_qweight", "w13_scales", "w2_qweight", "w2_scales")
"""The layer's weights as they were loaded: experts first, gate before up, packed along the inputs."""


def _apply(module: Any) -> None:
    from sm86.backend.settings import settings

    if not settings().deterministic_moe:
        return
    original = module.AutoGPTQMoEMethod.process_weights_after_loading

    def process_weights_after_loading(self: Any, layer: Any) -> None:
        # Marlin repacks the weights in place of these: a copy is what the fixed order reads, at twice the memory
        first, second, third, fourth = (getattr(layer, name).detach().clone() for name in PACKED)
        original(self, layer)
        install(self, layer, (first, second, third, fourth))

    module.AutoGPTQMoEMethod.process_weights_after_loading = process_weights_after_loading


def install(method: Any, layer: Any, packed: tuple[Any, Any, Any, Any]) -> None:
    """Make the layer's experts run `kernels.routed_experts` on `packed`. Raises Refused for what that does not do."""
    from sm86.backend.report import report_once

    quant, experts = method.quant_config, method.moe_kernel.fused_experts
    if method.wna16_moe_backend.value != "MARLIN" or type(experts).__name__ != "MarlinExperts":
        raise Refused("SM86_DETERMINISTIC_MOE=1 stands in for Marlin's experts only", "start with --moe-backend marlin")
    if quant.weight_bits != 4 or quant.group_size != 128 or quant.desc_act or not quant.is_sym:
        raise Refused(
            "SM86_DETERMINISTIC_MOE=1 reads symmetric four-bit weights in groups of 128, in their own order",
            "unset it for this checkpoint",
        )
    limit = getattr(layer, "swiglu_limit", None)

    def apply(
        output: Any,
        hidden_states: Any,
        topk_weights: Any,
        topk_ids: Any,
        activation: Any,
        expert_map: Any,
        apply_router_weight_on_input: bool,
        **_: Any,
    ) -> None:
        from sm86.backend.kernels import routed_experts

        if expert_map is not None or apply_router_weight_on_input or activation.value != "silu":
            raise Refused(
                "SM86_DETERMINISTIC_MOE=1 knows neither expert parallelism nor another activation than silu", "unset it"
            )
        # the shared experts, and the sum over ranks, stay vLLM's
        routed_experts.launch(hidden_states, *packed, topk_weights, topk_ids, limit, out=output)

    experts.apply = apply
    report_once("deterministic_moe", True)


HOOK = Hook(
    name="deterministic-moe",
    module="vllm.model_executor.layers.quantization.auto_gptq",
    why="Marlin's order of sums follows the number of rows, so a token's bits depend on its company; only when asked",
    expects=(
        Expected(
            "vllm.model_executor.layers.quantization.auto_gptq",
            "AutoGPTQMoEMethod.process_weights_after_loading",
            "54a0184f63e2aea5",
        ),
        Expected(
            "vllm.model_executor.layers.quantization.auto_gptq", "AutoGPTQMoEMethod.create_weights", "e2d953b77ab9986e"
        ),
        Expected("vllm.model_executor.layers.fused_moe.experts.marlin_moe", "MarlinExperts.apply", "ed3219e493ae25f2"),
        Expected("vllm.model_executor.layers.fused_moe.modular_kernel", "FusedMoEKernel", "19bdda931c3a21e7"),
    ),
    apply=_apply,
)
