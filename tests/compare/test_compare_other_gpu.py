"""Records of a GPU that is no SM86: marked in the words and the JSON, and set beside no rig's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sm86.cli.compare import compare
from sm86.errors import CouldNotRun
from sm86.record import load, save

BOOT = next((Path(__file__).parents[1] / "report" / "gpu_data").rglob("*-boot.json"))


def test_each_line_is_marked_and_a_difference_stands_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = load(BOOT)
    host = {**first.conditions.host, "memory_mib": 1}
    other = save(replace(first, conditions=replace(first.conditions, host=host)), tmp_path)
    assert compare(str(BOOT), str(other)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "boot of sm86-proof  [other GPU]"
    timed = [line for line in lines if " s " in line and "->" in line]
    assert len(timed) == 6 and all(line.endswith("[other GPU]") for line in timed)
    assert sum("host's memory_mib" in line for line in lines) == 1
    assert compare(str(BOOT), str(other), json=True) == 0
    assert json.loads(capsys.readouterr().out)["pairs"][0]["mark"] == "other GPU"


def test_a_rig_and_another_gpu_are_no_pair(tmp_path: Path) -> None:
    first = load(BOOT)
    cards = tuple({**gpu, "name": "NVIDIA GeForce RTX 3090"} for gpu in first.conditions.gpus)
    rig = save(replace(first, conditions=replace(first.conditions, gpus=cards)), tmp_path)
    with pytest.raises(CouldNotRun) as fault:
        compare(str(rig), str(BOOT))
    assert "other GPU" in fault.value.what
