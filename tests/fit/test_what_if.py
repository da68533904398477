"""What must shrink: every saving is the difference of two plans, and what is called enough is enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sm86.fit.memory_plan import FITS, UNCERTAIN, override_for, plan, server_of
from sm86.fit.what_if import published, what_if
from sm86.plan.shape import FLASH
from sm86.plan.units import MIB
from sm86.spec import load_envelope
from tests.fit.fit_rigs import RIG, RIGS, rig_of

ONE = server_of(load_envelope("sm86-262k"))
FOUR = server_of(load_envelope("sm86-80k-4seq"))


def lever(answer, name, change=""):
    return next(one for one in answer.levers if one.name == name and change in one.change)


def test_393216_fits_here_and_524288_is_uncertain():
    assert what_if(ONE, 393_216, RIG).base.verdict == FITS
    longer = what_if(ONE, 524_288, RIG)
    assert longer.base.verdict == UNCERTAIN and longer.short.low == 0 and 0 < longer.short.high < 100 * MIB
    assert longer.enough == ("VLLM_SPARSE_INDEXER_MAX_LOGITS_MB=64",)


def test_what_is_enough_is_enough():
    server = replace(ONE, context=524_288, max_logits_mib=64)
    assert plan("x", replace(server, blocks=override_for(FLASH, server)), RIG).verdict == FITS


def test_a_smaller_batch_saves_blocks_logits_and_buffers():
    answer = what_if(ONE, 393_216, RIG)
    smaller = replace(ONE, context=393_216, batched_tokens=256)
    after = plan("x", replace(smaller, blocks=override_for(FLASH, smaller)), RIG)
    saved = lever(answer, "batched tokens", "-> 256").saves
    assert saved.low == answer.base.used.low - after.used.low
    assert saved.high == answer.base.used.high - after.used.high
    assert saved.low > 200 * MIB


def test_sequences_and_graph_sizes_are_levers_only_where_there_are_several():
    one, four = what_if(ONE, 393_216, RIG), what_if(FOUR, 393_216, RIG)
    assert "sequences" not in {found.name for found in one.levers}
    assert lever(four, "sequences").saves.low > 4_000 * MIB and lever(four, "graph sizes").saves.low >= 0
    assert four.enough is not None and four.enough[-1] == "1 sequence"


def test_asynchronous_scheduling_costs_blocks():
    answer = what_if(replace(ONE, async_scheduling=True), 393_216, RIG)
    assert lever(answer, "asynchronous scheduling").saves.low == (2016 - 1792) * 1_039_680


def test_nothing_is_enough_for_a_million_tokens():
    answer = what_if(ONE, 1_048_576, RIG)
    assert answer.enough is None and answer.short.low > 0


def test_weights_shrink_only_with_more_gpus():
    wide = what_if(replace(ONE, ranks=4), 524_288, RIGS["8xa6000"])
    assert lever(wide, "weights", "4 -> 8").possible and lever(wide, "weights").saves.low > 17_000 * MIB
    assert not lever(what_if(ONE, 524_288, RIG), "weights").possible


def test_what_others_hold_is_a_lever():
    answer = what_if(ONE, 524_288, rig_of(8, 23.69, used_mib=700))
    assert lever(answer, "other users").saves.low == 700 * MIB


@pytest.mark.parametrize("name", ["block size", "blocks", "unread zero points"])
def test_what_cannot_shrink_is_said_and_never_called_enough(name: str):
    answer = what_if(FOUR, 524_288, RIG)
    assert not lever(answer, name).possible and lever(answer, name).price
    assert all(name not in step for step in answer.enough or ())


def test_where_the_30_mib_went():
    answer = published(RIG)
    saved = {d.name: round((d.stock.low - d.own.low) / MIB) for d in answer.differences}
    assert saved["RoPE tables"] == 320 and saved["key gather workspace"] == 496
    assert answer.stock.lines.passes and answer.stock.server.blocks == 1792
    assert answer.stock.verdict == UNCERTAIN and answer.own.verdict == FITS
    sure = sum(d.stock.low - d.own.low for d in answer.differences if d.name != "CUDA graphs")
    assert answer.carried == sure - 30 * MIB


def test_what_does_not_load_does_not_fit():
    """Where loading takes more than serving, the settings of serving are not enough."""
    server = replace(server_of(load_envelope("sm86-64k")), batched_tokens=128, capture_sizes=())
    whole = what_if(server, 8192, RIG).base
    between = (whole.used.high + whole.loading.high) // 2
    assert whole.used.high < between < whole.loading.high
    answer = what_if(server, 8192, rig_of(8, between / 2**30))
    assert answer.base.left.low >= 0 and answer.base.verdict == UNCERTAIN
    assert answer.short.high > 0 and answer.enough is None
