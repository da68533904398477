"""The documents name what exists: rules, failures, variables, and headings that their links point to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sm86.boot.kinds import KINDS
from sm86.launch.overrides import KNOWN_SM86_NAMES, OVERRIDES
from sm86.render.all import ROOT
from sm86.render.runbook import CHECKLIST, COMM_MATRIX
from sm86.spec import load_all

RUNBOOK = (ROOT / "docs/runbook.md").read_text(encoding="utf-8")
TROUBLESHOOTING = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
RULES = {rule for envelope in load_all() for rule in envelope.rules}


def test_the_checklist_names_every_rule_once() -> None:
    named = [rule for row in CHECKLIST for rule in row.rules]
    assert sorted(named) == sorted(set(named))
    assert set(named) == RULES


def test_the_runbook_maps_every_script_to_its_envelope() -> None:
    for envelope in load_all():
        if envelope.runbook_script:
            assert f"| `{envelope.name}` | `{envelope.runbook_script}` |" in RUNBOOK


def test_the_runbook_has_every_override_and_published_number() -> None:
    for override in OVERRIDES:
        assert f"| `{override.name}` |" in RUNBOOK
    for envelope in load_all():
        if envelope.published:
            assert f"{envelope.published.aggregate_tok_s} tok/s" in RUNBOOK


def test_the_comm_matrix_sets_overrides_that_exist() -> None:
    known = {override.name for override in OVERRIDES}
    assert {name for _, settings in COMM_MATRIX for name, _ in settings} <= known


def test_troubleshooting_has_every_failure_of_a_boot() -> None:
    missing = [kind.name for kind in KINDS if f"`{kind.name}`" not in TROUBLESHOOTING]
    assert not missing


def test_the_rules_that_troubleshooting_names_exist() -> None:
    section = TROUBLESHOOTING.split("## Verify complains")[1].split("\n## ")[0]
    named = set(re.findall(r"^\| `([a-z-]+)`", section, re.MULTILINE)) | set(re.findall(r" or `([a-z-]+)`", section))
    assert named and named <= RULES


@pytest.mark.parametrize("text", [RUNBOOK, TROUBLESHOOTING], ids=["runbook", "troubleshooting"])
def test_variables_that_are_named_exist(text: str) -> None:
    assert set(re.findall(r"\bSM86_[A-Z_]*[A-Z]\b", text)) <= KNOWN_SM86_NAMES


def test_the_launcher_knows_every_variable_that_the_code_reads() -> None:
    """A name that one part reads and the launcher does not know would make the launcher refuse to start."""
    read: dict[str, str] = {}
    for path in sorted((ROOT / "sm86").rglob("*.py")):
        for name in re.findall(r"[\"'](SM86_[A-Z_]*[A-Z])[\"']", path.read_text(encoding="utf-8")):
            read.setdefault(name, path.name)
    assert {name: file for name, file in read.items() if name not in KNOWN_SM86_NAMES} == {}


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_links_inside_the_repository_lead_somewhere(name: str) -> None:
    page = ROOT / "docs" / name
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        path = page.parent / file if file else page
        assert path.exists(), f"{name}: {target}"
        if anchor:
            assert anchor in _anchors(path), f"{name}: {target}"


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
