"""docs/examples.md quotes what the commands really give."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sm86.cli.verify import verify

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/examples.md").read_text(encoding="utf-8")
LOG = ROOT / "tests/backend/data/sm86-proof.log"
RECORDS = ROOT / "tests/report/data/cpu-smoke"
AGAIN = "write it anew in docs/examples.md"


def quoted(heading: str) -> list[str]:
    """The lines of the block below the first heading that begins so."""
    found = re.search(rf"^## {heading}.*?^```[a-z]*\n(.*?)^```", PAGE, re.S | re.M)
    assert found, heading
    return found[1].splitlines()


def holds(lines: list[str], real: str) -> None:
    """Every quoted line begins a line of `real`; a shortened one up to its last mark."""
    have = [line.strip() for line in real.splitlines()]
    for line in lines:
        start = line.strip().removesuffix("…").strip()
        assert any(each.startswith(start) for each in have), f"{line!r} is no longer what it gives: {AGAIN}"


def test_the_service() -> None:
    lines = quoted("A rendered service")
    assert len(lines) > 40
    holds(lines, (ROOT / "compose/sm86-262k.yaml").read_text(encoding="utf-8"))


def test_the_good_log(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SM86_RESULTS", str(tmp_path))
    assert verify("sm86-proof", str(LOG), "docker", None, False) == 0
    holds(quoted("A verify report: a good log"), capsys.readouterr().out)


def test_the_bad_log(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SM86_RESULTS", str(tmp_path))
    bad = tmp_path / "bad.log"
    # as bytes: carriage returns of progress bars are no line ends
    bad.write_bytes(re.sub(rb"num_gpu_blocks_override=\d+", b"num_gpu_blocks_override=1700", LOG.read_bytes()))
    assert verify("sm86-proof", str(bad), "docker", None, False) == 1
    holds(quoted("A verify report: a bad log"), capsys.readouterr().out)


def test_the_record() -> None:
    shown = json.loads("\n".join(quoted("A benchmark's record")))
    (real,) = (json.loads(path.read_text()) for path in RECORDS.glob("*-bench.json"))
    assert shown["numbers"] == [n for n in real["numbers"] if n["name"] in {m["name"] for m in shown["numbers"]}]
    assert all(verdict in real["verdicts"] for verdict in shown["verdicts"])
    assert shown["conditions"].items() <= real["conditions"].items()
    assert shown["conditions"]["mark"] == "CPU" and all(number["note"] for number in shown["numbers"])
