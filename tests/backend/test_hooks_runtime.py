"""What the hooks do to the modules they patch, with stand-ins for vLLM's."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sm86.backend.diagnostics import nan_watch
from sm86.backend.hooks import deep_gemm, mhc_splits, rope_tables, routed_experts, tile_scheduler, warmup
from sm86.backend.hooks import install as installing
from sm86.backend.kernels import indexer_logits, pages
from sm86.backend.layout import indexer_page
from sm86.backend.refusal import Refused


def moe_module() -> SimpleNamespace:
    """vLLM 0.26.0's AutoGPTQMoEMethod as far as the clamp goes: its quant config never carries the limit."""

    class AutoGPTQMoEMethod:
        wna16_moe_backend = SimpleNamespace(value="MARLIN")

        def get_fused_moe_quant_config(self, layer: Any) -> SimpleNamespace:
            return SimpleNamespace(gemm1_clamp_limit=None)

    return SimpleNamespace(AutoGPTQMoEMethod=AutoGPTQMoEMethod)


def test_the_routed_experts_get_their_limit() -> None:
    module = moe_module()
    layer = SimpleNamespace(swiglu_limit=10.0)
    method = module.AutoGPTQMoEMethod()
    assert method.get_fused_moe_quant_config(layer).gemm1_clamp_limit is None, "what 0.26.0 does"
    routed_experts.HOOK.apply(module)
    assert method.get_fused_moe_quant_config(layer).gemm1_clamp_limit == 10.0
    assert method.get_fused_moe_quant_config(SimpleNamespace(swiglu_limit=2)).gemm1_clamp_limit == 2.0
    assert method.get_fused_moe_quant_config(SimpleNamespace(swiglu_limit=None)).gemm1_clamp_limit is None


def test_a_moe_backend_that_may_not_clamp_is_refused() -> None:
    module = moe_module()
    routed_experts.HOOK.apply(module)
    method = module.AutoGPTQMoEMethod()
    method.wna16_moe_backend = SimpleNamespace(value="HUMMING")
    with pytest.raises(Refused, match="HUMMING"):
        method.get_fused_moe_quant_config(SimpleNamespace(swiglu_limit=10.0))
    method.get_fused_moe_quant_config(SimpleNamespace(swiglu_limit=None))


def test_the_rest_of_deepgemm_is_a_wall(device: str) -> None:
    module = SimpleNamespace()
    deep_gemm.HOOK.apply(module)
    with pytest.raises(Refused, match="fp8_einsum"):
        module.fp8_einsum(1, 2)
    assert module._import_deep_gemm() is None, "what vLLM's own functions take for: not installed"
    hidden, matrix = torch.randn(2, 128, device=device).to(torch.bfloat16), torch.randn(24, 128, device=device)
    out, squares = torch.empty(3, 2, 24, device=device), torch.empty(3, 2, device=device)
    module.tf32_hc_prenorm_gemm(hidden, matrix, out, squares, 3)
    torch.testing.assert_close(out.sum(0), hidden.float() @ matrix.t(), rtol=1e-4, atol=1e-3)


def test_no_flashmla_schedule() -> None:
    class DeepseekSparseSWAMetadataBuilder: ...

    module = SimpleNamespace(
        _LAYER_TYPE_SWAONLY="a",
        _LAYER_TYPE_C4A="b",
        _LAYER_TYPE_C128A="c",
        DeepseekSparseSWAMetadataBuilder=DeepseekSparseSWAMetadataBuilder,
    )
    tile_scheduler.HOOK.apply(module)
    assert DeepseekSparseSWAMetadataBuilder().build_tile_scheduler(4) == {"a": None, "b": None, "c": None}


def test_the_warm_up_follows_vllms_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from sm86.backend import warmup as warming

    told: list[tuple[str, Any]] = []
    monkeypatch.setattr(warming, "warm_up", lambda worker: told.append(("ours", worker)))
    module = SimpleNamespace(kernel_warmup=lambda worker: told.append(("vllm", worker)))
    warmup.HOOK.apply(module)
    module.kernel_warmup("worker")
    assert told == [("vllm", "worker"), ("ours", "worker")]


def test_splits_do_not_follow_the_batch() -> None:
    module = SimpleNamespace()
    mhc_splits.HOOK.apply(module)
    assert {module.compute_num_split(64, 4096, grid) for grid in range(1, 100)} == {16}


def test_rope_tables_are_cut_once_for_all_layers(capsys: pytest.CaptureFixture[str]) -> None:
    shared = SimpleNamespace(cos_sin_cache=torch.randn(4096, 64))
    whole = shared.cos_sin_cache.clone()
    config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=1000))
    module = SimpleNamespace(
        build_deepseek_v4_rope=lambda config, **rest: shared, get_current_vllm_config=lambda: config
    )
    rope_tables.HOOK.apply(module)
    for _ in range(3):
        assert module.build_deepseek_v4_rope(None, head_dim=512, compress_ratio=4) is shared
    assert torch.equal(shared.cos_sin_cache, whole[:1256])
    assert shared.cos_sin_cache.untyped_storage().nbytes() == 1256 * 64 * 4, "the rest is given back"
    config.model_config.max_model_len = 5000
    with pytest.raises(Refused):
        module.build_deepseek_v4_rope(None, compress_ratio=4)
    assert "rope_table_rows=1256" in capsys.readouterr().out


def test_window_only_layers_turn_plainly_and_compressed_ones_as_they_did(capsys: pytest.CaptureFixture[str]) -> None:
    made = {
        4: SimpleNamespace(cos_sin_cache=torch.randn(64, 64)),
        1: SimpleNamespace(cos_sin_cache=torch.randn(64, 64)),
    }
    stretched = made[4].cos_sin_cache.clone()
    module = SimpleNamespace(
        build_deepseek_v4_rope=lambda config, compress_ratio: made[compress_ratio],
        get_current_vllm_config=lambda: SimpleNamespace(model_config=SimpleNamespace(max_model_len=60)),
    )
    rope_tables.HOOK.apply(module)
    config = SimpleNamespace(rope_theta=10000.0, compress_rope_theta=160000.0)
    for ratio in (1, 4, 1):
        assert module.build_deepseek_v4_rope(config, compress_ratio=ratio) is made[ratio]
    assert torch.equal(made[4].cos_sin_cache, stretched)
    table = made[1].cos_sin_cache.double()
    for position in (0, 1, 63):
        for pair in (0, 7, 31):
            angle = position * 10000.0 ** (-2 * pair / 64)
            assert abs(float(table[position, pair]) - math.cos(angle)) < 1e-5
            assert abs(float(table[position, 32 + pair]) - math.sin(angle)) < 1e-5
    assert "window_rope=plain" in capsys.readouterr().out
    made[1].sm86_plain = False
    with pytest.raises(Refused, match="share the RoPE base"):
        module.build_deepseek_v4_rope(SimpleNamespace(rope_theta=1.0, compress_rope_theta=1.0), compress_ratio=1)


@pytest.mark.parametrize(("rank", "lines"), [(0, 1), (1, 0)])
def test_real_batches_are_told_once(
    rank: int, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sm86.backend import settings
    from sm86.backend.hooks import graph_dispatch

    class GPUModelRunner:
        parallel_config = SimpleNamespace(rank=rank)
        compilation_config = SimpleNamespace(cudagraph_capture_sizes=[1, 4])
        cudagraph_dispatcher = SimpleNamespace(
            cudagraph_mode=SimpleNamespace(name="FULL_DECODE_ONLY"), keys_initialized=True
        )
        uniform_decode_query_len = 1
        use_async_scheduling = False

        def _determine_batch_execution_and_padding(self, **arguments: Any) -> tuple:
            return SimpleNamespace(name="FULL"), SimpleNamespace(num_tokens=1), False, None, None

        def _dummy_run(self, tokens: int) -> str:
            self._determine_batch_execution_and_padding(
                num_tokens=tokens, num_reqs=1, max_num_scheduled_tokens=1, use_cascade_attn=False
            )
            return "done"

        def execute_model(self) -> None: ...

        def _bookkeeping_sync(self, *arguments: Any) -> None: ...

    monkeypatch.setattr(settings, "settings", lambda: settings.Settings(dispatch_debug=True))
    output = type("AsyncGPUModelRunnerOutput", (), {"get_output": lambda self: None})
    graph_dispatch.HOOK.apply(SimpleNamespace(GPUModelRunner=GPUModelRunner, AsyncGPUModelRunnerOutput=output))
    runner = GPUModelRunner()
    assert runner._dummy_run(1) == "done" and capsys.readouterr().out == ""
    runner._determine_batch_execution_and_padding(
        num_tokens=1, num_reqs=1, max_num_scheduled_tokens=1, use_cascade_attn=False
    )
    assert capsys.readouterr().out.count("SM86 cudagraph hit cg_mode=FULL num_tokens=1") == lines


def test_the_draft_steps_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from sm86.backend import settings
    from sm86.backend.hooks import draft_dispatch

    class SpecDecodeBaseProposer:
        def propose(self) -> None:
            self._determine_batch_execution_and_padding(40)
            self._determine_batch_execution_and_padding(num_tokens=1)

        def _determine_batch_execution_and_padding(self, num_tokens: int) -> tuple:
            return SimpleNamespace(name="NONE" if num_tokens > 1 else "PIECEWISE"), num_tokens, None

    monkeypatch.setattr(settings, "settings", lambda: settings.Settings(spec_debug=1))
    draft_dispatch.HOOK.apply(SimpleNamespace(SpecDecodeBaseProposer=SpecDecodeBaseProposer))
    proposer = SpecDecodeBaseProposer()
    for _ in range(3):
        proposer.propose()
    proposer._determine_batch_execution_and_padding(5)
    assert capsys.readouterr().out.splitlines() == [
        "SM86 draft cudagraph prefill cg_mode=NONE num_tokens=40 padded_tokens=40",
        "SM86 draft cudagraph decode cg_mode=PIECEWISE num_tokens=1 padded_tokens=1",
    ]


def test_the_indexer_step(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One mixed batch: two decode rows and a prefill of three tokens, through the replaced forward."""
    from sm86.backend.attention import indexer, native

    _, cache = pages.empty_cache(6, indexer_page(), 8640, 0, device)
    pages.write_indexer(cache, torch.arange(6 * 64, device=device), torch.randn(6 * 64, 128, device=device).bfloat16())
    table = torch.tensor([[1, 2], [3, 0]], dtype=torch.int32, device=device)
    query = torch.randn(5, 64, 128, device=device).to(torch.bfloat16)
    weights = torch.randn(5, 64, device=device)
    lengths = torch.tensor([[70], [3]], dtype=torch.int32, device=device)
    chunk = SimpleNamespace(
        token_to_seq=torch.zeros(66, dtype=torch.int32, device=device),
        cu_seq_lens=torch.tensor([0, 66], dtype=torch.int32, device=device),
        block_table=torch.tensor([[4, 5]], dtype=torch.int32, device=device),
        token_start=2,
        token_end=5,
        cu_seqlen_ks=torch.zeros(3, dtype=torch.int32, device=device),
        cu_seqlen_ke=torch.tensor([64, 65, 66], dtype=torch.int32, device=device),
    )
    own = SimpleNamespace(
        num_decode_tokens=2,
        num_prefills=1,
        prefill=SimpleNamespace(chunks=[chunk]),
        decode=SimpleNamespace(requires_padding=False, seq_lens=lengths, block_table=table),
    )
    seen: dict[str, torch.Tensor] = {}

    def prefill_topk(logits, starts, ends, out, rows, stride, step, k) -> None:
        seen["prefill"] = logits.clone()
        assert (rows, stride, step, k) == (3, 66, 1, 512) and bool((out == -1).all())
        out[:, 0] = 7

    def decode_topk(logits, lengths, out, scratch, k, width) -> None:
        seen["decode"] = logits.clone()
        assert k == 512 and scratch.numel() == indexer.TOPK_WORKSPACE_BYTES and bool((out == -1).all())
        out[:, 0] = 9

    monkeypatch.setattr(torch.ops, "_C", SimpleNamespace(persistent_topk=decode_topk), raising=False)
    monkeypatch.setattr(native, "workspace", lambda device: SimpleNamespace(multiprocessors=82))
    module = SimpleNamespace(
        get_forward_context=lambda: SimpleNamespace(attn_metadata={"k": own}),
        current_workspace_manager=lambda: SimpleNamespace(
            get_simultaneous=lambda *specs: [torch.empty(shape, dtype=kind) for shape, kind in specs]
        ),
        eager_break_during_capture=lambda function: function,
        ops=SimpleNamespace(top_k_per_row_prefill=prefill_topk),
    )
    forward = indexer.make_forward(module, 512)
    buffer = torch.full((8, 512), 3, dtype=torch.int32, device=device)
    op = SimpleNamespace(
        k_cache=SimpleNamespace(prefix="k", kv_cache=cache),
        topk_indices_buffer=buffer,
        topk_tokens=512,
        max_model_len=128,
    )
    assert forward(op, torch.zeros(5, 8, device=device), query, None, weights) is buffer
    assert buffer[:, 0].tolist() == [9, 9, 7, 7, 7, 3, 3, 3] and set(buffer[:5, 1:].flatten().tolist()) == {-1}
    want = indexer_logits.decode_reference(query[:2].unsqueeze(1), weights[:2], cache, lengths, table, 128)
    torch.testing.assert_close(seen["decode"][0, :70], want[0, :70], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(seen["decode"][1, :3], want[1, :3], rtol=1e-4, atol=1e-3)
    columns = indexer_logits.Columns(chunk.token_to_seq, chunk.cu_seq_lens, chunk.block_table)
    want = indexer_logits.prefill_reference(
        query[2:], weights[2:], cache, columns, chunk.cu_seqlen_ks, chunk.cu_seqlen_ke
    )
    there = torch.isfinite(want)
    torch.testing.assert_close(seen["prefill"][there], want[there], rtol=1e-4, atol=1e-3)
    # A prompt too short for a compressed key has no chunk: its rows must still say that there is none.
    own.prefill.chunks = []
    buffer.fill_(3)
    forward(op, torch.zeros(5, 8, device=device), query, None, weights)
    assert buffer[:, 0].tolist() == [9, 9, -1, -1, -1, 3, 3, 3]
    own.prefill = None
    buffer.fill_(3)
    forward(op, torch.zeros(5, 8, device=device), query, None, weights)
    assert buffer[:, 0].tolist() == [9, 9, -1, -1, -1, 3, 3, 3]
    own.decode.requires_padding = True
    with pytest.raises(Refused, match="unequal query lengths"):
        forward(op, torch.zeros(5, 8, device=device), query, None, weights)


def test_the_attention_class_is_chosen_after_one_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sm86.backend.attention import layer as layers
    from sm86.backend.hooks import attention_class
    from sm86.backend.quant import startup

    class Ours:
        backend_cls = SimpleNamespace(get_name=lambda: layers.BACKEND_NAME)

    checks: list[str] = []
    observed: list[Any] = []
    monkeypatch.setattr(nan_watch.WATCH, "observe", observed.append)
    monkeypatch.setattr(layers, "make_layer", lambda base: Ours)
    monkeypatch.setattr(startup, "check_config", lambda config: checks.append("config"))
    monkeypatch.setattr(startup, "check_model_folder", lambda model, config: checks.append(model))

    class DeepseekV4ForCausalLM:
        def __init__(self, absmax: float) -> None:
            self.absmax = absmax

        def load_weights(self, weights: Any) -> str:
            return "loaded"

        def compute_logits(self, hidden: Any) -> str:
            return "logits"

        def named_modules(self) -> Any:
            norm = SimpleNamespace(weight=torch.full((4,), self.absmax))
            yield "layers.0.attn", type("Sm86Attention", (), {"kv_norm": norm})()

    module = SimpleNamespace(DeepseekV4Attention=object, DeepseekV4ForCausalLM=DeepseekV4ForCausalLM)
    attention_class.HOOK.apply(module)
    config = SimpleNamespace(model_config=SimpleNamespace(model="m", hf_config={}))
    assert [module._select_dsv4_attn_cls(config) for _ in range(43)] == [Ours] * 43
    assert checks == ["config", "m"]
    assert capsys.readouterr().out.count("attention_backend=FLASHINFER_MLA_SPARSE_DSV4") == 1
    assert DeepseekV4ForCausalLM(1.5).load_weights([]) == "loaded"
    assert DeepseekV4ForCausalLM(1.5).compute_logits("hidden") == "logits"
    assert observed == ["hidden"], "what a token is sampled from is looked at"
    with pytest.raises(Refused, match="kv_norm"):
        DeepseekV4ForCausalLM(float("nan")).load_weights([])
    monkeypatch.setattr(installing, "installed", lambda: SimpleNamespace(missing=lambda: ["a-hook"]))
    with pytest.raises(Refused, match="not applied: a-hook"):
        DeepseekV4ForCausalLM(1.5).load_weights([])


class MarlinExperts:
    """Stands for vLLM's class of that name, which would run the repacked weights."""

    def apply(self, **_: Any) -> None:
        raise AssertionError("Marlin's experts ran")


def gptq_module(**changes: Any) -> SimpleNamespace:
    """AutoGPTQMoEMethod as far as its weights go: they are repacked in place, and the kernel is made then."""
    quant = {"weight_bits": 4, "group_size": 128, "desc_act": False, "is_sym": True} | changes

    class AutoGPTQMoEMethod:
        wna16_moe_backend = SimpleNamespace(value="MARLIN")
        quant_config = SimpleNamespace(**quant)

        def process_weights_after_loading(self, layer: Any) -> None:
            layer.w13_qweight.zero_()
            self.moe_kernel = SimpleNamespace(fused_experts=MarlinExperts())

    return SimpleNamespace(AutoGPTQMoEMethod=AutoGPTQMoEMethod)


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from sm86.backend import settings

    monkeypatch.setattr(settings, "settings", lambda: settings.Settings(deterministic_moe=True))


def expert_layer(device: str) -> tuple[SimpleNamespace, Any]:
    from tests.backend.test_kernels_experts import Layer

    weights = Layer(256, 128, 3, device)
    layer = SimpleNamespace(
        w13_qweight=weights.gate_up.clone(),
        w13_scales=weights.gate_up_scales,
        w2_qweight=weights.down,
        w2_scales=weights.down_scales,
        swiglu_limit=0.5,
    )
    return layer, weights


@pytest.mark.usefixtures("asked_for")
def test_the_experts_run_in_a_fixed_order_on_the_weights_as_loaded(device: str, capsys: Any) -> None:
    from sm86.backend.hooks import deterministic_moe
    from sm86.backend.kernels import routed_experts as kernel

    module = gptq_module()
    deterministic_moe.HOOK.apply(module)
    method, (layer, weights) = module.AutoGPTQMoEMethod(), expert_layer(device)
    method.process_weights_after_loading(layer)
    hidden = torch.randn(1, 256, device=device).to(torch.bfloat16)
    router, chosen = torch.rand(1, 2, device=device), torch.tensor([[2, 0]], device=device, dtype=torch.int32)
    out = torch.empty_like(hidden)
    given = {"w1": None, "w2": None, "global_num_experts": 3, "a1q_scale": None, "workspace13": None}
    given |= {"expert_map": None, "activation": SimpleNamespace(value="silu"), "apply_router_weight_on_input": False}
    experts = method.moe_kernel.fused_experts
    experts.apply(output=out, hidden_states=hidden, topk_weights=router, topk_ids=chosen, **given)
    want = weights.run(kernel.reference, hidden, router, chosen, 0.5, dtype=torch.float64)
    assert float((out.double() - want.double()).norm() / want.double().norm()) < 6e-3
    assert "deterministic_moe=true" in capsys.readouterr().out
    given["expert_map"] = torch.tensor([0])
    with pytest.raises(Refused, match="expert parallelism"):
        experts.apply(output=out, hidden_states=hidden, topk_weights=router, topk_ids=chosen, **given)


@pytest.mark.usefixtures("asked_for")
@pytest.mark.parametrize("changes", [{"weight_bits": 8}, {"group_size": 64}, {"desc_act": True}, {"is_sym": False}])
def test_other_weights_are_refused_in_a_fixed_order(changes: dict[str, Any], device: str) -> None:
    from sm86.backend.hooks import deterministic_moe

    module = gptq_module(**changes)
    deterministic_moe.HOOK.apply(module)
    with pytest.raises(Refused, match="four-bit weights in groups of 128"):
        module.AutoGPTQMoEMethod().process_weights_after_loading(expert_layer(device)[0])


def test_nothing_changes_where_it_was_not_asked_for() -> None:
    from sm86.backend.hooks import deterministic_moe

    module = gptq_module()
    before = module.AutoGPTQMoEMethod.process_weights_after_loading
    deterministic_moe.HOOK.apply(module)
    assert module.AutoGPTQMoEMethod.process_weights_after_loading is before
