"""vllm.models.deepseek_v4.nvidia.model: the attention class; checks of configuration, checkpoint, weights."""

from __future__ import annotations

from typing import Any

from sm86.backend.hooks.hook import Expected, Hook


def _apply(module: Any) -> None:
    from sm86.backend.attention.layer import make_layer
    from sm86.backend.diagnostics.nan_watch import WATCH
    from sm86.backend.hooks.install import check_applied
    from sm86.backend.quant.limits import check_weights
    from sm86.backend.quant.startup import check_config, check_model_folder
    from sm86.backend.report import report_once

    layer = make_layer(module.DeepseekV4Attention)
    checked: set[str] = set()

    def _select_dsv4_attn_cls(vllm_config: Any) -> type:
        # Asked again for every layer, but a checkpoint's index of a hundred thousand names is read once.
        model = vllm_config.model_config.model
        if model not in checked:
            check_config(vllm_config)
            check_model_folder(model, vllm_config.model_config.hf_config)
            checked.add(model)
        report_once("attention_backend", layer.backend_cls.get_name())
        report_once("attention_class", f"{layer.__module__}.{layer.__qualname__}")
        return layer

    module._select_dsv4_attn_cls = _select_dsv4_attn_cls

    load = module.DeepseekV4ForCausalLM.load_weights

    def load_weights(self: Any, weights: Any) -> Any:
        loaded = load(self, weights)
        # By now every module of the model is imported, so every hook must have run.
        check_applied()
        check_weights(self)
        return loaded

    logits = module.DeepseekV4ForCausalLM.compute_logits

    def compute_logits(self: Any, hidden_states: Any) -> Any:
        WATCH.observe(hidden_states)
        return logits(self, hidden_states)

    module.DeepseekV4ForCausalLM.load_weights = load_weights
    module.DeepseekV4ForCausalLM.compute_logits = compute_logits


HOOK = Hook(
    name="attention-class",
    module="vllm.models.deepseek_v4.nvidia.model",
    why="on SM86 the selector returns classes whose kernels exist for SM90, SM100 and SM120 only",
    expects=(
        Expected("vllm.models.deepseek_v4.nvidia.model", "_select_dsv4_attn_cls", "644685a3d00c94db"),
        Expected("vllm.models.deepseek_v4.nvidia.model", "DeepseekV4ForCausalLM.load_weights", "21a6e35438b71b7c"),
        Expected("vllm.models.deepseek_v4.nvidia.model", "DeepseekV4ForCausalLM.compute_logits", "7f7d0f779c67f732"),
        Expected("vllm.models.deepseek_v4.nvidia.model", "DeepseekV4DecoderLayer", "dd82d14277d34cd2"),
        Expected("vllm.models.deepseek_v4.attention", "DeepseekV4Attention", "d3e07e6623e66a26"),
        Expected("vllm.models.deepseek_v4.nvidia.flashmla", "DeepseekV4FlashMLAAttention", "e2a531c1daad0c41"),
        Expected("vllm.models.deepseek_v4.sparse_mla", "DeepseekV4FlashMLABackend", "6bdca30854b282e3"),
        Expected("vllm.models.deepseek_v4.sparse_mla", "DeepseekV4FlashMLAMetadataBuilder", "8c28e0f8cb27f416"),
        Expected(
            "vllm.models.deepseek_v4.common.ops.cache_utils", "compute_global_topk_indices_and_lens", "7744609b130f3189"
        ),
    ),
    apply=_apply,
    imports=("DeepseekV4Attention",),
)
