"""The page on planning says what the planner says."""

from __future__ import annotations

import re
from pathlib import Path

from sm86.fit.memory_plan import plan_envelope
from sm86.fit.what_if import published
from sm86.plan.memory import KINDS, mib
from sm86.report.plan_words import span
from sm86.spec import load_all
from sm86.spec.load_rig import rig_names
from tests.fit.fit_rigs import RIG, RIGS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "plan.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())


def test_the_table_of_envelopes():
    for envelope in load_all():
        if envelope.uses_gpu:
            made = plan_envelope(envelope, RIG)
            kinds = dict(made.by_kind())
            serve = envelope.serve
            row = f"| {envelope.name} | {serve.sequences} x {serve.context} | {mib(kinds[KINDS[0]].low)} "
            row += f"| {mib(kinds[KINDS[1]].low)} | {span(made.left)} | {made.verdict}"
            assert row in PAGE, row


def test_the_numbers_of_the_miss():
    answer = published(RIG)
    assert f"{mib(answer.carried)} MiB would be left" in WORDS
    assert f"{span(answer.stock.used)} MiB that the planner gives" in WORDS
    saved = {d.name: round((d.stock.low - d.own.low) / 2**20) for d in answer.differences}
    for number in (saved["RoPE tables"], saved["key gather workspace"], saved["indexer's logits"]):
        assert f"| {number} |" in PAGE


def test_every_profile_is_named():
    named = re.search(r"`sm86/spec/rigs/`: ([^)]*)\)", WORDS)
    assert named and set(named[1].split(", ")) == set(rig_names()) == set(RIGS)
