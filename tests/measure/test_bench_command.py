"""`invoke bench`: words, JSON, exit codes, and the record on disk."""

from __future__ import annotations

import itertools
import json
import os
import re

import pytest

from sm86.cli import bench as command
from sm86.cli.guard import guard
from sm86.measure.client import Client
from tests.measure.conftest import PATIENT, QUICK
from tests.measure.replay import Behaviour, serving

pytestmark = pytest.mark.timing

ENVELOPE = """
name = "replay"
title = "replayed"
status = "{status}"
engine = "{engine}"
[model]
repository = "none/none"
folder = "none"
architecture = "LlamaForCausalLM"
[serve]
served_model_name = "replay-model"
context = 2048
sequences = 2
tensor_parallel = 1
kv_cache_dtype = "auto"
block_size = 16
hybrid_kv_cache = true
max_num_batched_tokens = 512
async_scheduling = false
prefix_caching = true
gpu_memory_utilization = 0.5
speculative_config = "none"
[graphs]
mode = "NONE"
[boot]
expected_s = 10
limit_s = 20
[bench]
prompt_tokens = 400
decode_tokens = 600
repeats = 2
[verify]
rules = ["ready"]
"""
PUBLISHED = '[published]\nsource = "here"\naggregate_tok_s = 100.0\nper_sequence_tok_s = [50.0, 50.0]\n'


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the command against a replay server; gives (exit code, stdout, stderr, records)."""
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    calls = itertools.count()

    def call(behaviour: Behaviour | None = None, engine: str = "cpu", published: str = "", **more):
        path = tmp_path / "replay.toml"
        path.write_text(ENVELOPE.format(engine=engine, status="development") + published)
        limits = QUICK if behaviour is not None and behaviour.fault == "hang" else PATIENT
        monkeypatch.setattr(command, "Client", lambda address, key: Client(address, key, limits))
        results = tmp_path / f"results-{next(calls)}"
        with serving(behaviour or Behaviour(rate=6000, per_chunk=4)) as replay:
            url = more.pop("base_url", replay.url)
            code = guard(lambda: command.bench(str(path), url, results_dir=results, **more))
        captured = capsys.readouterr()
        records = sorted(results.rglob("*.json")) if results.exists() else []
        assert "Traceback" not in captured.out + captured.err
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
        return code, captured.out, captured.err, records

    return call


def test_a_good_run(run):
    code, out, err, records = run()
    assert code == 0
    assert re.search(r"together +\d+\.\d tok/s \(\d+\.\d to \d+\.\d\)  \[CPU\]", out)
    assert re.search(r"sequence 1 +\d+\.\d tok/s", out) and re.search(r"sequence 2 +\d+\.\d tok/s", out)
    assert "measured and coherent" in out
    assert [path.name.endswith("-bench.json") for path in records] == [True]
    assert str(records[0]) in out
    assert "\x1b" not in out + err
    assert "sm86: measure, repeat 2 of 2" in err


def test_every_line_with_a_speed_says_cpu(run):
    _, out, _, _ = run(published=PUBLISHED)
    speeds = [line for line in out.splitlines() if "tok/s" in line and not line.startswith("  published")]
    assert len(speeds) >= 4 and all("[CPU]" in line or "CPU number" in line for line in speeds)
    assert "cannot be compared" in out and "it is a CPU number" in out
    assert "definition not stated by the source" in out


def test_json_is_the_record(run):
    code, out, err, records = run(json=True)
    values = json.loads(out)
    assert code == 0 and values["schema"] == "sm86.record" and values["version"] == 1
    assert values == json.loads(records[0].read_text())
    assert str(records[0]) in err


def test_no_window_is_exit_1_and_no_number(run):
    code, out, _, records = run(Behaviour(rate=6000, per_chunk=4, ends_after={0: 50}))
    assert code == 1
    assert "no number" in out and "together " not in out.split("no number")[0]
    assert "not a result: window (fail)" in out
    assert [n["name"] for n in json.loads(records[0].read_text())["numbers"]] == ["time to first token"]


def test_incoherent_is_exit_1(run):
    code, out, _, _ = run(Behaviour(rate=6000, per_chunk=4, forgets={0}))
    assert code == 1 and "not a result: coherence: known answers (fail)" in out


def test_a_warning_is_exit_0(run):
    code, out, _, _ = run(Behaviour(rate=6000, per_chunk=4, extra_tokens=50))
    assert code == 0 and re.search(r"^warning +cross-check", out, re.M)


@pytest.mark.parametrize("fault", ["500", "hang", "reset", "garbage", "error event"])
def test_a_server_that_fails_is_exit_1_and_leaves_no_record(run, fault):
    code, out, err, records = run(Behaviour(rate=6000, per_chunk=4, fault=fault))
    assert (code, out, records) == (1, "", [])
    assert "failed in the middle" in err and "mend: " in err


@pytest.mark.parametrize(
    ("behaviour", "more", "words"),
    [
        (None, {"base_url": "http://127.0.0.1:9"}, "there is no server at"),
        (None, {"base_url": "nonsense"}, "not a base URL"),
        (None, {"repeats": "0"}, "--repeats is '0'"),
        (None, {"repeats": "many"}, "--repeats is 'many'"),
        (None, {"decode_tokens": "12"}, "too few"),
        (None, {"decode_tokens": "5000"}, "do not fit"),
        (None, {"api_key_file": "/nowhere/key"}, "cannot read the API key file"),
        (Behaviour(model="other"), {}, "serves other, not replay-model"),
        (Behaviour(key="right"), {}, "refused the API key"),
    ],
)
def test_what_could_not_run_is_exit_2_and_leaves_no_record(run, behaviour, more, words):
    code, out, err, records = run(behaviour, **more)
    assert (code, out, records) == (2, "", [])
    assert words in err and "mend: " in err


def test_the_key_comes_from_a_file_and_is_nowhere_shown(run, tmp_path):
    key = tmp_path / "key"
    key.write_text("sesame-123\n")
    code, out, err, records = run(Behaviour(rate=6000, per_chunk=4, key="sesame-123"), api_key_file=str(key))
    assert code == 0
    assert "sesame" not in out + err + records[0].read_text()


def test_conditions_unknown_are_marked(run):
    code, out, _, records = run(engine="cuda", published=PUBLISHED)
    assert code == 0
    assert "[conditions unknown]" in out
    assert "cannot be compared" in out and "GPUs are not known" in out
    assert json.loads(records[0].read_text())["conditions"]["mark"] == "conditions unknown"


def test_dry_run_sends_nothing(run):
    code, out, err, records = run(dry_run=True, base_url="http://127.0.0.1:9")
    assert (code, err, records) == (0, "", [])
    assert "measure 2 x 2 sequences x 600 tokens" in out
    code, out, _, _ = run(dry_run=True, json=True, base_url="http://127.0.0.1:9")
    assert json.loads(out)["schema"] == "sm86.bench-plan"


def test_bars_on_a_terminal(monkeypatch):
    bars = command.Bars()
    with bars:
        bars.stage("one", 10, "tokens")
        bars.advance(4)
        bars.stage("two", 5, "tokens")
        bars.advance(5)
    assert [(task.description, task.completed) for task in bars._bars.tasks] == [("one", 10), ("two", 5)]
