"""How attention launches are cut: properties for every shape that serving can ask for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm86.backend.attention import plan

RTX_3090 = 82


@given(
    tokens=st.integers(1, 4096),
    heads=st.sampled_from([8, 16, 32, 64]),
    width=st.integers(1, 8192 + 128),
    multiprocessors=st.integers(1, 200),
)
def test_every_cut_can_run(tokens: int, heads: int, width: int, multiprocessors: int) -> None:
    cut = plan.choose(tokens, heads, width, multiprocessors)
    rows = tokens * heads // 8
    assert cut.tile_keys in (32, 64)
    assert 1 <= cut.splits <= plan.MAX_SPLITS
    assert (cut.combine == plan.SINGLE) == (cut.splits == 1)
    if cut.splits > 1:
        assert rows * cut.splits <= plan.resident_blocks(multiprocessors), "the workspace holds no more"


@pytest.mark.parametrize(
    ("tokens", "width", "want"),
    [
        (1, 128, plan.Cut(32, 4, plan.SHARED)),
        (1, 640, plan.Cut(32, 20, plan.SHARED)),
        (1, 2176, plan.Cut(64, 34, plan.SHARED)),
        (1, 3200, plan.Cut(64, 36, plan.SHARED)),
        (4, 640, plan.Cut(32, 20, plan.SHARED)),
        (8, 2176, plan.Cut(64, 20, plan.SHARED)),
        (512, 640, plan.Cut(64, 1, plan.SINGLE)),
    ],
)
def test_cuts_on_a_3090_at_tensor_parallel_8(tokens: int, width: int, want: plan.Cut) -> None:
    assert plan.choose(tokens, 8, width, RTX_3090) == want
