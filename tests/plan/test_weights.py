"""Weights by class: against the published layout, the checkpoint maker's own tensors, and real boots' lines."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest

from sm86.errors import CouldNotRun
from sm86.plan import memory
from sm86.plan.shape import FLASH, Shape, shape_of
from sm86.plan.units import GIB, MIB
from sm86.plan.weights import (
    CLASSES,
    EXPERTS,
    PLACEHOLDERS,
    SLACK_PER_LAYER,
    VOCABULARY,
    checkpoint_bytes,
    draft_bytes,
    layer_tensors,
    padded_vocabulary,
    require_ranks,
    top_tensors,
    weights,
)
from sm86.weights import layout
from tests.plan.plan_shapes import DEEP, GRAPH, PIECEWISE, config_of, small

TYPES = {"BF16": "bf16", "F16": "fp16", "F32": "fp32", "I32": "int32", "I64": "int64"}
SIZES = {"bf16": 2, "fp16": 2, "fp32": 4, "int32": 4, "int64": 8}


def tensors_of(shape: Shape) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name -> type and shape of every tensor, experts written out."""
    named = [("", tensor) for tensor in top_tensors(shape)]
    named += [(f"layers.{n}.", tensor) for n in range(shape.layers) for tensor in layer_tensors(shape, n)]
    found = {}
    for at, tensor in named:
        numbers = range(tensor.times) if "*" in tensor.name else [0]
        for name, form in tensor.parts().items():
            found |= {at + name.replace("*", str(number)): form for number in numbers}
    return found


@pytest.mark.parametrize("shape", [small(8, 6, 512), small(4, 6, 512), small(43, 6, 512)], ids=lambda s: str(s.layers))
def test_names_and_shapes_are_those_that_a_checkpoint_must_hold(shape: Shape):
    wanted = layout.expected(config_of(shape))
    found = tensors_of(shape)
    assert found.keys() == wanted.keys()
    for name, (kind, extents) in found.items():
        assert extents == wanted[name][0].shape, name
        assert kind in {TYPES[form.dtype] for form in wanted[name]}, name


def test_bytes_of_the_checkpoint_are_the_sum_of_its_tensors():
    shape = small(8, 6, 512)
    total = 0
    for kind, extents in tensors_of(shape).values():
        size = SIZES[kind]
        for extent in extents:
            size *= extent
        total += size
    assert checkpoint_bytes(shape) == total


def test_the_makers_own_tensors(monkeypatch: pytest.MonkeyPatch):
    """Type and shape of every tensor that the checkpoint maker stores, at widths that a CPU fills in a second."""
    pytest.importorskip("torch")
    from sm86.backend.testing import checkpoint as making

    for name, value in {"HIDDEN": 256, "QUERY_RANK": 128, "OUTPUT_RANK": 128, "EXPERT_WIDTH": 128}.items():
        monkeypatch.setattr(making, name, value)
    made = making.Shape(layers=4, experts=6, vocabulary=320, hash_layers=1, heads=8, groups=1)
    shape = shape_of(making.config_of(made))
    kinds = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}
    kinds |= {"torch.int32": "int32", "torch.int64": "int64"}
    stored = {name: (kinds[str(t.dtype)], tuple(t.shape)) for name, t in making.stored(made, making.Maker("cpu"))}
    assert stored == tensors_of(shape)


@pytest.mark.parametrize(("shape", "printed"), [(GRAPH, 2.62), (DEEP, 9.85), (PIECEWISE, 1.33)])
def test_checkpoint_sizes_as_booted(shape: Shape, printed: float):
    assert round(checkpoint_bytes(shape) / GIB, 2) == printed


def test_the_public_checkpoints_size_lies_between_with_and_without_a_draft_layer():
    # 142.44 GiB is a third party's number; whether its draft layer is whole is not known
    stored = checkpoint_bytes(FLASH)
    assert stored < 142.44 * GIB < stored + draft_bytes(FLASH)
    assert round(stored / GIB, 2) == 141.65


@pytest.mark.parametrize(
    ("shape", "context", "batched", "rows", "workspace", "printed"),
    [
        (GRAPH, 16_384, 512, None, False, 2.65),
        (GRAPH, 16_384, 512, 1_048_576, False, 3.14),
        (GRAPH, 32_768, 512, None, True, 2.66),
        (DEEP, 393_216, 256, None, False, 10.04),
        (PIECEWISE, 16_384, 512, None, False, 1.35),
    ],
    ids=["graph", "full RoPE tables", "proof", "deep and kv1790 and kv1791", "piecewise"],
)
def test_model_loading_as_booted(shape, context, batched, rows, workspace, printed):
    """ "Model loading took": weights, their buffers, RoPE tables, and at most a MiB per layer of the allocator's."""
    tables = memory.rope_bytes(shape, rows or memory.rope_rows(shape, context, memory.SM86))
    own = memory.attention_workspace_bytes(132) if workspace else 0
    low = weights(shape, 1, 132).total + memory.load_buffer_bytes(shape, batched) + tables + own
    high = low + SLACK_PER_LAYER.high * shape.layers
    assert round(low / GIB, 2) <= printed <= round(high / GIB, 2)
    # the interval is narrow enough to tell: one more C4 layer would lie outside
    assert high - low <= MIB * shape.layers


def test_what_is_divided_and_what_is_not():
    one, eight = (weights(FLASH, ranks, 82) for ranks in (1, 8))
    first, second = dict(one.by_class), dict(eight.by_class)
    assert first[EXPERTS] == 8 * second[EXPERTS] == 142_841_217_024
    assert first[PLACEHOLDERS] == 8 * second[PLACEHOLDERS]
    assert one.replicated == eight.replicated
    for name in ("KV compressors (bf16)", "indexer (int4, bf16)", "gates and hash tables"):
        assert first[name] == second[name], name
    assert tuple(first) == CLASSES
    assert 18.5 < eight.total / GIB < 18.6


def test_what_loading_takes_on_top():
    """Two orders of inputs for both matrices of every layer's experts, and one layer's experts twice."""
    orders = 43 * 256 * (4096 + 256) * 4 * 2
    experts = 256 * (3 * 4096 * 256 // 2 + (2 * 32 * 256 + 2 * 4096) * 2)
    assert weights(FLASH, 8, 82).loading == orders + experts
    assert experts == dict(weights(FLASH, 8, 82).by_class)[EXPERTS] // 43


@pytest.mark.parametrize("ranks", [3, 5, 6, 7, 16, 32])
def test_an_impossible_division_names_the_possible_ones(ranks: int):
    with pytest.raises(CouldNotRun) as refused:
        require_ranks(FLASH, ranks)
    assert "1, 2, 4, 8" in refused.value.mend


def test_the_config_gives_the_shape_back():
    for shape in (FLASH, GRAPH, DEEP, PIECEWISE):
        assert shape_of(config_of(shape)) == shape


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "architectures"),
        ({"architectures": None}, "architectures"),
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 4100}, "hidden_size"),
        ({"n_routed_experts": 0}, "n_routed_experts"),
        ({"n_routed_experts": 10**12}, "n_routed_experts"),
        ({"num_hidden_layers": 45}, "compress_ratios"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers"),
        ({"compress_ratios": [4, 8] * 30}, "8"),
        ({"compress_ratios": [True] * 60}, "compress_ratios"),
        ({"compress_ratios": [0] * 60}, "4-fold"),
        ({"compress_ratios": None}, "compress_ratios"),
        ({"head_dim": 256}, "head_dim"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"o_groups": 7}, "output groups"),
        ({"num_hash_layers": -1}, "num_hash_layers"),
    ],
)
def test_a_config_that_cannot_be_is_refused(change, word):
    with pytest.raises(CouldNotRun, match=word):
        shape_of(config_of() | change, "x/config.json")


@pytest.mark.parametrize("config", [None, [], "text", 7, {}])
def test_what_is_no_config_is_refused(config):
    with pytest.raises(CouldNotRun):
        shape_of(config)


def test_classes_are_disjoint_and_whole():
    named = set(chain.from_iterable([t.belongs for t in layer_tensors(FLASH, n)] for n in range(43)))
    assert named | {t.belongs for t in top_tensors(FLASH)} | {PLACEHOLDERS} == set(CLASSES)
    half = replace(FLASH, ratios=FLASH.ratios[:21])
    assert weights(half, 8, 82).total < weights(FLASH, 8, 82).total


def test_a_vocabulary_is_padded_before_it_is_divided():
    """129280 rows need no padding; one row more takes 64 more, and a part of them on each rank."""
    assert padded_vocabulary(FLASH) == FLASH.vocabulary
    longer = replace(FLASH, vocabulary=FLASH.vocabulary + 1)
    assert padded_vocabulary(longer) == FLASH.vocabulary + 64
    grown = dict(weights(longer, 8, 82).by_class)[VOCABULARY] - dict(weights(FLASH, 8, 82).by_class)[VOCABULARY]
    assert grown == 2 * 64 // 8 * FLASH.hidden * 2
