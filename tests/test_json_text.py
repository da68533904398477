"""JSON from outside that nests too deeply is bad input as any other, wherever it is read."""

import json
from pathlib import Path

import pytest

from sm86.errors import CouldNotRun
from sm86.json_text import parse
from sm86.launch.overrides import read as read_override
from sm86.record.store import load
from sm86.spec.toml_table import read_toml

DEEP = "[" * 100_000
SOURCES = Path(__file__).resolve().parents[1] / "sm86"


@pytest.mark.parametrize("text", [DEEP, DEEP.encode(), '{"a":' * 100_000, "", "{", b"\xff\xfe\xff"])
def test_every_fault_is_a_value_error(text):
    with pytest.raises(ValueError):
        parse(text)


def test_values():
    assert parse('{"a": [1, "é"]}') == {"a": [1, "é"]}
    assert parse(json.dumps("x").encode()) == "x"


def test_readers_refuse_it_in_words(tmp_path):
    record = tmp_path / "record.json"
    record.write_text(DEEP)
    spec = tmp_path / "deep.toml"
    spec.write_text(f"a = {DEEP}")
    for read in (
        lambda: load(record),
        lambda: read_toml(spec),
        lambda: read_override("SPECULATIVE_CONFIG", DEEP, "--override"),
    ):
        with pytest.raises(CouldNotRun):
            read()


def test_nothing_that_reads_foreign_json_goes_past_it():
    """The backend's tests and the probe inside an image read what the product itself wrote, and stand alone."""
    alone = {"json_text.py", "probe.py"}
    for path in SOURCES.rglob("*.py"):
        if path.name not in alone and "backend" not in path.parts:
            assert "json.loads(" not in path.read_text() and "json_module.loads(" not in path.read_text(), path
