"""`invoke plan` as a person uses it: words, exit codes, JSON, files, widths, and wrong input of every kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm86.cli.guard import guard
from sm86.cli.plan import plan
from sm86.doctor.facts import Gpu, Rig
from sm86.doctor.facts_json import to_json
from sm86.errors import CheckFailed, CouldNotRun
from sm86.spec import load_all, load_envelope
from tests.plan.plan_shapes import DEEP, GRAPH, config_of

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "tests" / "verify" / "logs"
MIB = 2**20


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


def model(folder: Path, shape) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(shape)))
    return str(folder)


def facts(path: Path, count: int = 8, free_mib: int = 24_258, name: str = "NVIDIA GeForce RTX 3090") -> str:
    gpus = [
        Gpu(n, name=name, memory_total=24_576 * MIB, memory_free=free_mib * MIB, capability=(8, 6))
        for n in range(count)
    ]
    path.write_text(json.dumps(to_json(Rig(gpus=tuple(gpus)))))
    return str(path)


# --- plans -----------------------------------------------------------------------------------------------------------


def test_all_envelopes_side_by_side(capsys):
    assert plan() == 0
    said = capsys.readouterr().out
    for envelope in load_all():
        assert (envelope.name in said) is envelope.uses_gpu
    assert "1,284 to 3,089" in said and "uncertain" in said and "H200" in said


@pytest.mark.parametrize("width", [80, 100, 112, 120, 200])
@pytest.mark.parametrize("question", ["overview", "bad rig", "one", "fit", "what-if", "check"])
def test_tables_fit_their_width_and_cut_nothing(capsys, monkeypatch, tmp_path, width, question):
    monkeypatch.setenv("COLUMNS", str(width))
    calls = {
        "overview": {},
        "bad rig": {"rig": facts(tmp_path / "rig.json", free_mib=2_000)},
        "one": {"envelope": "sm86-80k-4seq"},
        "fit": {"fit": True, "dry_run": True},
        "what-if": {"what_if": True},
        "check": {"check": str(LOGS / "recorded_kv1790.log")},
    }
    plan(**calls[question])
    said = capsys.readouterr().out
    assert "…" not in said
    table = said.split("\n\n#")[0] if question == "fit" else said
    assert max(len(line) for line in table.splitlines()) <= width
    assert all(sign.isprintable() for line in said.splitlines() for sign in line), "piped output has control characters"


def test_one_envelope_part_by_part(capsys):
    assert plan("sm86-262k") == 0
    said = capsys.readouterr().out
    for words in (
        "17,855,152,128",
        "1,330,790,400",
        "GPU KV cache size: 273,022 tokens",
        "Maximum concurrency for 262,144 tokens per request: 1.04x",
        "minimum 1,273 blocks",
        "C4 states",
        "C128 states",
        "not measured",
    ):
        assert words in said, words


def test_an_uncertain_envelope_is_a_finding(capsys):
    assert plan("sm86-524k") == 1
    assert "mend: see `invoke plan --what-if`" in capsys.readouterr().out


def test_json_has_every_part_in_bytes(capsys):
    assert plan("sm86-262k", json=True) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["schema"], values["version"]) == ("sm86.plan", 1)
    made = values["plans"][0]
    assert sum(part["low"] for part in made["parts"]) == made["used"]["low"]
    assert sum(part["high"] for part in made["parts"]) == made["used"]["high"]
    assert made["gpu"]["free"] - made["used"]["high"] == made["left"]["low"]
    assert made["lines"]["minimum"] == 1273 and made["passed"] is True


def test_settings_in_place_of_an_envelopes(capsys):
    assert plan(context="393216", blocks="1760") == 1
    assert "estimated maximum model length is 385280" in " ".join(capsys.readouterr().out.split())
    assert plan(context="393216", blocks="1792") == 0
    assert "GPU KV cache size: 404,734 tokens" in capsys.readouterr().out
    assert plan(sequences="2", context="262144", json=True) == 0
    assert json.loads(capsys.readouterr().out)["plans"][0]["server"]["blocks"] >= 2048


def test_a_pool_in_bytes(capsys):
    assert plan("sm86-262k", pool_bytes=str(3 * 2**29), json=True) == 0
    lines = json.loads(capsys.readouterr().out)["plans"][0]["lines"]
    assert lines["blocks"] == 3 * 2**29 // 1_039_680 and lines["override"] is None
    assert plan("sm86-262k", pool_bytes=str(3 * 2**30), blocks="1280", json=True) == 0
    lines = json.loads(capsys.readouterr().out)["plans"][0]["lines"]
    assert lines["override"] == "Overriding num_gpu_blocks=3098 with num_gpu_blocks_override=1280"


def test_asynchronous_scheduling(capsys):
    plan("sm86-262k", async_scheduling="on", json=True)
    server = json.loads(capsys.readouterr().out)["plans"][0]["server"]
    assert server["in_flight"] == 1024 and server["blocks"] == 1504


def test_a_model_of_ones_own(capsys, tmp_path):
    assert plan("sm86-262k", model=model(tmp_path / "m", GRAPH), json=True) == 0
    small = json.loads(capsys.readouterr().out)["plans"][0]
    assert small["used"]["high"] < 8 * 2**30


def test_the_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert plan(png="all.png") == 0
    data = (tmp_path / "all.png").read_bytes()
    assert data.startswith(b"\x89PNG") and int.from_bytes(data[16:20], "big") > 1000
    assert plan("sm86-262k", png="one.png", json=True) == 0
    assert (tmp_path / "one.png").stat().st_size > 10_000


# --- rigs ------------------------------------------------------------------------------------------------------------


def test_a_rig_of_doctors_facts(tmp_path, capsys):
    assert plan("sm86-262k", rig=facts(tmp_path / "rig.json")) == 0
    assert "8x NVIDIA GeForce RTX 3090 (rig.json)" in capsys.readouterr().out
    assert plan("sm86-262k", rig=facts(tmp_path / "rig.json", free_mib=21_000)) == 1
    assert "GPU 0, 1, 2, 3, 4, 5, 6, 7: others hold 3258 MiB each" in capsys.readouterr().out


def test_a_rig_too_small_for_the_shipped_envelopes(tmp_path):
    with pytest.raises(CouldNotRun, match="needs 8 GPUs or more"):
        plan(rig=facts(tmp_path / "rig.json", count=4))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "JSON"),
        ("{", "JSON"),
        ("[]", "schema"),
        ('{"schema": "sm86.plan", "version": 1}', "sm86.plan"),
        ('{"schema": "sm86.rig", "version": 99, "facts": {}}', "version"),
        ('{"schema": "sm86.rig", "version": 1, "facts": {"gpus": "many"}}', "kind"),
        ('{"schema": "sm86.rig", "version": 1, "facts": {}}', "GPU"),
        ('{"schema": "sm86.rig", "version": 1, "facts": {"gpus": []}}', "no GPU"),
        ("[" * 100_000, "JSON"),
        ("\0\1", "JSON"),
    ],
)
def test_a_file_that_is_no_rig(tmp_path, text, word):
    (tmp_path / "rig.json").write_text(text)
    with pytest.raises(CouldNotRun, match=word):
        plan(rig="rig.json")


@pytest.mark.parametrize("name", ["8x3091", "nosuch.json", "nosuch.toml", ".", "/dev/null.json"])
def test_no_such_rig(name):
    with pytest.raises(CouldNotRun):
        plan(rig=name)


def test_a_near_miss_names_the_near_one():
    with pytest.raises(CouldNotRun) as refused:
        plan(rig="8x3091")
    assert "did you mean 8x3090?" in refused.value.mend


@pytest.mark.parametrize("text", ["", "[]", "{}", "not json", '{"architectures": ["LlamaForCausalLM"]}', "[" * 50_000])
def test_a_model_that_is_none(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CouldNotRun):
        plan(model=str(tmp_path))


def test_no_such_model():
    with pytest.raises(CouldNotRun, match="cannot read"):
        plan(model="nowhere")


# --- fit -------------------------------------------------------------------------------------------------------------


def test_fit_writes_one_envelope_that_loads(tmp_path, capsys):
    assert plan(fit=True, rig="4xa6000") == 0
    said = capsys.readouterr().out
    assert "written: 4xa6000-1024k.toml" in said
    assert load_envelope(str(tmp_path / "4xa6000-1024k.toml")).serve.context == 1_048_576
    # the same again is no conflict, another envelope at the same place is
    assert plan(fit=True, rig="4xa6000") == 0
    with pytest.raises(CouldNotRun, match="is there already"):
        plan(fit=True, rig="4xa6000", out="4xa6000-1024k.toml", context="65536")


def test_no_envelope_is_written_under_a_shipped_ones_name(tmp_path):
    with pytest.raises(CouldNotRun, match="a shipped envelope"):
        plan(fit=True, out=str(tmp_path / "sm86-262k.toml"))
    assert not list(tmp_path.iterdir())


def test_no_envelope_is_written_for_a_model_that_its_family_does_not_serve(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(config_of(DEEP)))
    with pytest.raises(CouldNotRun, match="another one"):
        plan(fit=True, model=str(tmp_path))
    assert plan(fit=True, model=str(tmp_path), dry_run=True) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_fit_dry_run_writes_nothing(tmp_path, capsys):
    assert plan(fit=True, dry_run=True) == 0
    assert "[serve]" in capsys.readouterr().out and list(tmp_path.iterdir()) == []


def test_fit_as_json(capsys, tmp_path):
    assert plan(fit=True, dry_run=True, json=True) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["schema"] == "sm86.plan.fit" and values["written"] is None
    assert values["candidates"][0]["sure"] and "[serve]" in values["toml"]


def test_what_only_may_fit_is_written_and_is_a_finding(tmp_path):
    assert plan(fit=True, rig="8x3080-20g", out="small.toml") == 1
    assert "uncertain" in load_envelope(str(tmp_path / "small.toml")).caveat


def test_what_cannot_fit_writes_nothing(tmp_path):
    with pytest.raises(CheckFailed, match="weights alone take"):
        plan(fit=True, rig="4x3090", out="none.toml")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", ["Big.toml", "x y.toml", "none", "a.yaml"])
def test_a_name_that_no_envelope_may_have(tmp_path, out):
    with pytest.raises(CouldNotRun) as refused:
        plan(fit=True, out=out)
    assert "/tmp" not in refused.value.what
    assert list(tmp_path.iterdir()) == []


def test_fit_for_facts_of_a_rig(tmp_path, capsys):
    assert plan(fit=True, rig=facts(tmp_path / "rig.json"), dry_run=True) == 0
    assert 'name = "rig-8gpu-510k"' in capsys.readouterr().out


# --- what if, check --------------------------------------------------------------------------------------------------


def test_what_if_answers_both_contexts(capsys):
    assert plan(what_if=True) == 1
    said = capsys.readouterr().out
    assert "393,216" in said and "524,288" in said and "Where the 30 MiB went" in said
    assert plan(what_if="393216") == 0
    assert plan(what_if="1048576", json=True) == 1
    values = json.loads(capsys.readouterr().out.split("\n{", 1)[-1].join(["{", ""]))
    assert values["answers"][0]["enough"] is None and values["published_miss"]["differences"]


def test_check_of_a_real_boot(tmp_path, capsys):
    deep = model(tmp_path / "deep", DEEP)
    assert plan(check=str(LOGS / "recorded_kv1791.log"), model=deep) == 0
    assert "as predicted" in capsys.readouterr().out
    assert plan(check=str(LOGS / "recorded_kv1791.log"), model=deep, json=True) == 0
    values = json.loads(capsys.readouterr().out)
    size = next(one for one in values["checks"] if one["name"] == "GPU KV cache size")
    assert size["printed"] == size["predicted"] == "404,508 tokens" and size["line"] > 1
    assert plan(check=str(LOGS / "recorded_kv1791.log")) == 1
    assert "off: checkpoint size (line" in capsys.readouterr().out


def test_check_from_standard_input():
    data = (LOGS / "recorded_kv1790.log").read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "plan", "--check", "-"],
        cwd=ROOT,
        input=data,
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert done.returncode == 1 and b"estimated maximum length 392,960" in b" ".join(done.stdout.split())


@pytest.mark.parametrize("log", ["nosuch.log", "."])
def test_no_such_log(log):
    with pytest.raises(CouldNotRun):
        plan(check=log)


# --- wrong arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"context": "0"},
        {"context": "many"},
        {"context": "-1"},
        {"context": "2000000"},
        {"context": "9" * 40},
        {"sequences": "0"},
        {"sequences": "1.5"},
        {"batched_tokens": ""},
        {"async_scheduling": "maybe"},
        {"blocks": "0"},
        {"pool_bytes": "-5"},
        {"tensor_parallel": "3"},
        {"tensor_parallel": "16"},
        {"envelope": "nosuch"},
        {"envelope": "cpu-smoke"},
        {"fit": True, "what_if": True},
        {"fit": True, "check": "x"},
        {"fit": True, "envelope": "sm86-262k"},
        {"fit": True, "blocks": "5"},
        {"what_if": True, "context": "5"},
        {"what_if": "0"},
        {"what_if": "x"},
        {"what_if": "2000000"},
        {"check": "x", "context": "5"},
        {"check": "x", "png": "a.png"},
        {"out": "a.toml"},
        {"dry_run": True},
        {"png": "a.jpg"},
        {"png": "nofolder.png/a.jpg"},
    ],
    ids=str,
)
def test_wrong_arguments_are_two_lines_and_2(given, capsys, tmp_path):
    assert guard(lambda: plan(**given)) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.strip().splitlines()) == 2 and list(tmp_path.iterdir()) == []


def test_a_bare_what_if_on_the_command_line():
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "plan", "--what-if", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert [answer["context"] for answer in json.loads(done.stdout)["answers"]] == [393_216, 524_288]


def test_a_topology_is_no_rig_and_is_not_asked_for(tmp_path):
    path = tmp_path / "topo.txt"
    path.write_text("\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n")
    with pytest.raises(CouldNotRun) as told:
        plan(rig=str(path))
    assert "topo" not in told.value.mend and "invoke doctor --json" in told.value.mend
