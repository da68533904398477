"""Plans of the shipped envelopes: what is left, and each check both ways."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sm86.errors import CouldNotRun
from sm86.fit.memory_plan import (
    FAIL,
    FITS,
    NO_FIT,
    PASS,
    UNCERTAIN,
    plan,
    plan_envelope,
    safe_utilization,
    server_of,
    verdict,
)
from sm86.plan.shape import FLASH
from sm86.plan.units import GIB, MIB, Bytes, total
from sm86.spec import load_all, load_envelope
from tests.fit.fit_rigs import RIG, RIGS, rig_of

RIG_ENVELOPES = [envelope for envelope in load_all() if envelope.uses_gpu]
BASE = server_of(load_envelope("sm86-262k"))


def state(made, name: str) -> str:
    return next(check.state for check in made.checks if check.name == name)


@pytest.mark.parametrize("envelope", RIG_ENVELOPES, ids=lambda e: e.name)
def test_every_shipped_envelope_on_its_rig(envelope):
    made = plan_envelope(envelope, RIG)
    assert state(made, "engine minimum") == state(made, "sequences seat") == state(made, "free at start") == PASS
    assert made.left.low == made.gpu.free - made.used.high
    assert total(size for _, size in made.by_kind()) == made.used
    if envelope.status in ("published", "development"):
        assert made.verdict == FITS and made.passed and made.left.low > 500 * MIB


def test_the_margins_of_the_published_envelopes():
    """As `docs/plan.md` has them: MiB left on each GPU."""
    left = {}
    for envelope in RIG_ENVELOPES:
        margin = plan_envelope(envelope, RIG).left
        left[envelope.name] = (round(margin.low / MIB), round(margin.high / MIB))
    assert left == {
        "sm86-64k": (2244, 4049),
        "sm86-80k-4seq": (1109, 2921),
        "sm86-114k-3seq": (1044, 2854),
        "sm86-176k-2seq": (952, 2759),
        "sm86-262k": (1284, 3089),
        "sm86-393k": (644, 2449),
        "sm86-524k": (-27, 1777),
    }


def test_1760_blocks_fail_and_1792_pass_at_393216():
    server = replace(BASE, context=393_216)
    refused, passed = (plan("x", replace(server, blocks=n), RIG) for n in (1760, 1792))
    assert state(refused, "engine minimum") == FAIL and state(passed, "engine minimum") == PASS
    mend = next(check.mend for check in refused.checks if check.name == "engine minimum")
    assert "1792" in mend and "385280" in mend


def test_two_sequences_of_262144_want_more_than_2048_blocks():
    two = replace(BASE, sequences=2, blocks=2048)
    made = plan("x", two, RIG)
    assert made.needed_blocks >= 2048 and state(made, "sequences seat") == FAIL
    assert state(plan("x", replace(two, blocks=made.needed_blocks), RIG), "sequences seat") == PASS


def test_the_groups_add_up_to_what_the_sequences_hold():
    for envelope in RIG_ENVELOPES:
        made = plan_envelope(envelope, RIG)
        assert sum(use.all for use in made.groups) + 1 == made.needed_blocks


def test_asynchronous_scheduling_doubles_what_is_in_flight():
    made = plan("x", replace(BASE, async_scheduling=True, blocks=1484), RIG)
    assert made.lines.minimum == 1484 and state(made, "engine minimum") == PASS


def test_a_pool_by_its_bytes():
    made = plan("x", BASE, RIG, pool_bytes=3 * GIB, pinned=False)
    assert made.server.blocks == 3 * GIB // 1_039_680 == made.lines.blocks
    assert made.lines.override is None and made.lines.passes
    both = plan("x", BASE, RIG, pool_bytes=3 * GIB)
    assert both.server.blocks == BASE.blocks and both.lines.override is not None
    none = plan("x", BASE, RIG, pool_bytes=0, pinned=False)
    assert none.lines.longest == 0 and state(none, "engine minimum") == FAIL


def test_98_percent_on_24_gib_is_no_pass():
    made = plan("x", BASE, RIG, utilization=0.98)
    assert state(made, "free at start") == UNCERTAIN and not made.passed
    mend = next(check.mend for check in made.checks if check.name == "free at start")
    assert str(safe_utilization(made)) in mend


def test_memory_held_by_others_counts_at_start_and_in_all():
    held = plan("x", BASE, rig_of(8, 23.69, used_mib=2000))
    assert state(held, "free at start") == FAIL
    assert held.left.low == plan("x", BASE, RIG).left.low - 2000 * MIB - (RIG.gpus[0].total - round(23.69 * GIB))


def test_the_safe_utilization_passes_and_a_hundredth_more_does_not():
    for rig in (RIG, RIGS["8x3080-20g"], rig_of(8, 22.0)):
        made = plan("x", BASE, rig)
        safe = safe_utilization(made, most=0.98)
        assert state(plan("x", BASE, rig, utilization=safe), "free at start") == PASS
        assert state(plan("x", BASE, rig, utilization=safe + 0.01), "free at start") != PASS


def test_what_vllm_will_call_available():
    made = plan("x", BASE, RIG)
    # weights and context alone leave more than it, and the cache of the envelope has room in it
    assert made.server.blocks * 1_039_680 < made.available.low < made.available.high < 5 * GIB


def test_loading_has_its_own_peak():
    made = plan("x", BASE, RIG)
    assert state(made, "loading") == PASS and made.loading.high < made.used.high
    # a short context on a tight GPU: the server would perhaps fit, and loading surely does not
    tight = plan("x", replace(BASE, context=8192, batched_tokens=128, blocks=128), rig_of(8, 19.5))
    assert tight.left.high > 0 and state(tight, "loading") == FAIL
    assert tight.verdict == NO_FIT and not tight.passed


def test_verdicts():
    assert [verdict(Bytes(0, 1)), verdict(Bytes(-1, 0)), verdict(Bytes(-2, -1))] == [FITS, UNCERTAIN, NO_FIT]


def test_old_gpus_are_told():
    made = plan("x", BASE, replace(RIG, capability=(7, 5)))
    assert state(made, "compute capability") == FAIL
    assert "compute capability" not in {check.name for check in plan("x", BASE, replace(RIG, capability=None)).checks}


def test_what_cannot_be_planned():
    with pytest.raises(CouldNotRun, match="served on the CPU"):
        server_of(load_envelope("cpu-smoke"))
    with pytest.raises(CouldNotRun, match="has 4 GPU"):
        plan("x", BASE, RIGS["4xa6000"])
    with pytest.raises(CouldNotRun, match="positions"):
        plan("x", replace(BASE, context=FLASH.positions + 1), RIG)
    with pytest.raises(CouldNotRun, match="cannot divide"):
        plan("x", replace(BASE, ranks=3), RIG)
    spec = load_envelope("sm86-262k")
    bad = replace(spec, environment=(*spec.environment, ("VLLM_SPARSE_INDEXER_MAX_LOGITS_MB", "much")))
    with pytest.raises(CouldNotRun, match="MAX_LOGITS"):
        server_of(bad)


def test_an_envelopes_own_bound_of_logits_counts():
    spec = load_envelope("sm86-524k")
    bound = replace(spec, environment=(*spec.environment, ("VLLM_SPARSE_INDEXER_MAX_LOGITS_MB", "64")))
    assert plan_envelope(spec, RIG).verdict == UNCERTAIN and plan_envelope(bound, RIG).verdict == FITS
