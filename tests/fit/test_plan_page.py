"""The page on planning says what the planner says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sm86.fit.memory_plan import plan, plan_envelope, server_of
from sm86.fit.what_if import published
from sm86.plan.memory import KINDS, mib
from sm86.report.plan_table import print_overview, print_plan
from sm86.report.plan_words import bar, console, span
from sm86.spec import load_all, load_envelope
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


def test_a_bar_never_grows_beyond_its_column(capsys: pytest.CaptureFixture[str]):
    """A plan far beyond the GPU's memory pushed its own numbers out of the table."""
    server = replace(server_of(load_envelope("sm86-262k")), ranks=1)
    print_plan(console(), plan("too much", server, RIG))
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(len(line) for line in shown.splitlines() if ">" in line) <= 120
    out = console()
    assert len(bar(out, 10, 20, 20, 30)) == 30
    assert len(bar(out, 19, 21, 20, 30)) == len(bar(out, 100, 200, 20, 30)) == 31


def test_no_number_is_cut_short_on_a_narrow_terminal(capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    made = plan_envelope(load_envelope("sm86-262k"), RIG)
    print_plan(console(), made)
    print_overview(console(), [(made, "published")])
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert f"{made.parts[0].size.low:,}" in shown and span(made.left) in shown
