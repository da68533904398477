"""A recorded run on a GPU that is no SM86: its page marks every number, compares none, and says what is missing.

The records are of 2026-12-01: one H200 told to be an SM86, a random checkpoint of 8 layers, envelope sm86-proof. Ids,
paths and the kernel's name are replaced. The trace's part is the analysis of the trace in tests/trace/data.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sm86.cli.report import report
from sm86.record import Record, Verdict, load
from sm86.report.build import document
from sm86.report.document import Document, Tiles
from sm86.report.gather import Gathered, Source, gather
from sm86.report.markdown import markdown
from sm86.report.sections.measured import coherence
from sm86.spec import load_all, load_proofs
from tests.report import made_up

DATA = Path(__file__).parent / "gpu_data"
NOW = datetime(2026, 12, 2, tzinfo=UTC)
MARK = "**other GPU**"


def sources() -> list[Source]:
    return [Source(load(path), path.name) for path in sorted(DATA.rglob("*.json"))]


def gathered() -> Gathered:
    return gather(sources(), [], [*load_all(), *load_proofs()])


@pytest.fixture(scope="module")
def made() -> Document:
    return document(gathered(), NOW)


@pytest.fixture(scope="module")
def text(made: Document) -> str:
    return markdown(made)


def of_kind(kind: str) -> Record:
    return next(source.record for source in sources() if source.record.kind == kind)


def test_every_number_is_marked_as_of_another_gpu(made: Document, text: str) -> None:
    numbers = [line for line in text.splitlines() if re.search(r"\*\*[\d.,]+\*\*", line)]
    assert len(numbers) > 15
    assert [line for line in numbers if MARK not in line] == []
    figures = made.figures()
    assert len(figures) == 5 and {figure.chart.mark for figure in figures} == {"other GPU"}
    tiles = [
        tile
        for section in made.sections
        for block in section.blocks
        if isinstance(block, Tiles)
        for tile in block.tiles
    ]
    assert [tile.mark for tile in tiles] == ["other GPU"]
    assert "emulated" not in text


def test_nothing_published_stands_beside_it(text: str) -> None:
    published = {e.published.aggregate_tok_s for e in load_all() if e.published}
    assert len(published) >= 4
    for number in published:
        assert not re.search(rf"(?<![\d.]){re.escape(f'{number:g}')}(?![\d.]) *tok/s", text)
    assert "against published" not in text and "against it" not in text
    assert "There is nothing to publish: no record is of an SM86 rig (other GPU only)" in text
    assert "None is compared with a published one" in text


def test_a_benchmark_without_a_number_says_why_and_does_not_blame_the_text(text: str) -> None:
    row = next(line for line in text.splitlines() if line.startswith("| `sm86-proof` | 4 x 32,768 |"))
    assert "no number" in row and "not applicable" in row and "fail" not in row
    assert "Checks of the measurement: 5 pass, 1 fail, 3 not applicable, 1 warn" in text
    assert "| **fail** | `window` |" in text and "| warn | `prefix cache` |" in text
    assert "no number, as repeat 1: the prompts did not come from the prefix cache" in text


def test_coherence_is_what_its_own_checks_say() -> None:
    record = of_kind("bench")
    assert coherence(record) == "not applicable"

    def turned(name: str, state: str) -> str:
        verdicts = tuple(Verdict(v.name, state if v.name == name else v.state, v.text) for v in record.verdicts)
        return coherence(replace(record, verdicts=verdicts))

    assert turned("coherence: text", "pass") == "pass"
    assert turned("coherence: known answers", "not seen") == "not seen"
    assert turned("coherence: log probabilities", "fail") == "fail"
    assert turned("window", "pass") == "not applicable"
    assert coherence(replace(record, verdicts=())) == "not seen"


def test_the_trace_is_told_once_with_short_names_and_who_limits(text: str) -> None:
    part = text.split("### Trace buckets")[1].split("### Rig check")[0]
    assert "19 of 20 steps averaged" in part and "Layers found: 3 CSA, 3 HCA, 2 SWA." in part
    assert "The GPU idles 69% of a step" in part and "the host" in part
    assert "the first recorded 20 decode steps" in part
    assert part.count("MoE experts") == 1 and "moe_experts" not in part.replace("\\", "")
    row = next(line for line in part.splitlines() if line.startswith("| shared expert and linear | 101 |"))
    assert row.rstrip("| ").endswith("marlin::Marlin") and MARK in row


def test_telemetry_has_names_that_a_person_reads(text: str) -> None:
    assert "Telemetry of 1 GPU: 12 samples" in text
    # a range only where there is one
    assert "| 1,980 | 3,201 | 253.8 (214.2 to 305.6) |" in text
    assert "| GPU | SM clock, MHz | memory clock, MHz |" in text and "received, MB/s" in text and "busy, %" in text


def test_the_rig_check_shows_what_is_wrong_first_and_once(text: str) -> None:
    part = text.split("### Rig check")[1].split("### Not measured")[0]
    assert (
        part.index("`gpu-model`")
        < part.index("`compose`")
        < part.index("`ecc`")
        < part.index("In order: 27")
        < part.index("`gpu-count`")
    )
    assert part.count("`gpu-model`") == 1 and "facts / facts" not in part and "findings" not in part


def test_a_rig_s_logs_are_counted_apart_from_another_gpu_s() -> None:
    rig = made_up.sources([made_up.record("verify", "sm86-64k", 1, verdicts=(Verdict("argv", "pass", ""),))])
    both = document(gather([*sources(), *rig], [], load_all()), NOW)
    tiles = [
        tile
        for section in both.sections
        for block in section.blocks
        if isinstance(block, Tiles)
        for tile in block.tiles
    ]
    assert sorted((tile.mark, tile.value) for tile in tiles) == [("", "1 of 1"), ("other GPU", "1 of 1")]


def test_redacted_it_names_no_machine_and_keeps_the_numbers(tmp_path: Path) -> None:
    assert report([str(DATA)], str(tmp_path / "out"), redact=True, png=False) == 0
    said = "".join((tmp_path / "out" / name).read_text() for name in ("report.md", "report.html"))
    for planted in (
        "GPU-00000000-0000-4000",
        "1000000000001",
        "192.0.2.2",
        "/models/proof",
        "/venv/",
    ):
        assert planted not in said, planted
    assert "0.834" in said and "NVIDIA H200" in said and "580.159.04" in said
