"""`invoke doctor`: what it reads, what it prints, how it ends. Facts come from files; the machine's own are faked."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm86.cli import doctor as cli
from sm86.cli.guard import guard
from sm86.doctor.facts import Rig
from sm86.doctor.facts_json import from_text, to_json
from sm86.errors import CouldNotRun
from sm86.spec import load_envelope
from tests.conftest import ROOT
from tests.doctor.rigs import BAD, FOLDER, GOOD, REAL

GOOD_FILE = str(FOLDER / "rigs/8x3090.json")
BAD_FILE = str(FOLDER / "rigs/8x3090_bad.json")


def test_a_good_rig_ends_with_0_and_a_bad_one_with_1(capsys) -> None:
    assert cli.doctor(from_file=GOOD_FILE) == 0
    told = capsys.readouterr().out
    assert "composed facts: not gathered on a machine" in told
    assert told.splitlines()[-1] == "nothing wrong was found (40 ok)"
    assert cli.doctor(from_file=BAD_FILE) == 1
    told = capsys.readouterr().out
    assert "not ready for sm86-262k" in told.splitlines()[-1]
    assert all(sign.isprintable() or sign == "\n" for sign in told)


def test_what_is_wrong_comes_first_with_why_and_mend(capsys) -> None:
    cli.doctor(from_file=BAD_FILE)
    lines = capsys.readouterr().out.splitlines()
    states = [line.split()[0] for line in lines if line[:1].isalpha()]
    order = [state for state in states if state in ("fail", "warn", "ok")]
    assert order == sorted(order, key=("fail", "warn", "ok").index)
    at = next(number for number, line in enumerate(lines) if line.startswith("fail"))
    assert lines[at + 1].strip().startswith("why: ") and lines[at + 2].strip().startswith("mend: ")


@pytest.mark.parametrize("name", sorted(REAL))
def test_the_topology_of_a_real_machine(name: str, capsys) -> None:
    path = next((FOLDER / "topo").glob(f"{name}*"))
    assert cli.doctor(from_file=str(path)) == 0
    told = capsys.readouterr().out
    assert "placement: TP" in told
    assert ("by socket" in told) == (name not in ("p03", "p09"))
    assert "not everything was seen" in told.splitlines()[-1]
    assert "checks need more than these facts tell" in told


def test_each_card_has_its_line(capsys) -> None:
    cli.doctor(from_file=BAD_FILE)
    told = capsys.readouterr().out
    assert (
        "GPU 3    NVIDIA GeForce RTX 3090; 00000000:31:00.0; 24.00 GiB, 3.00 GiB free; 37 °C; 210 MHz; 25 W of 350; "
        "generation 1 x16 now; node 0\n"
    ) in told
    assert told.count("NVIDIA GeForce RTX 3090; ") == 8


def test_json_is_what_another_machine_can_judge(capsys, tmp_path) -> None:
    assert cli.doctor(from_file=BAD_FILE, json=True) == 1
    text = capsys.readouterr().out
    told = json.loads(text)
    assert (told["schema"], told["version"], told["redacted"]) == ("sm86.rig", 1, False)
    assert told["counts"]["fail"] == sum(finding["state"] == "fail" for finding in told["findings"])
    assert told["placement"]["tensor_parallel"] == 8
    (tmp_path / "again.json").write_text(text)
    assert cli.doctor(from_file=str(tmp_path / "again.json"), json=True) == 1
    assert json.loads(capsys.readouterr().out) == told


def test_standard_input(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(REAL["p04"].encode())))
    assert cli.doctor(from_file="-") == 0
    assert "TP4 x PP2 on GPUs 0-3 then GPUs 4-7" in capsys.readouterr().out


@pytest.mark.parametrize("coding", ["utf-16", "utf-8-sig", "latin-1"])
def test_text_in_other_codings(tmp_path, coding: str, capsys) -> None:
    path = tmp_path / "topo.txt"
    path.write_bytes((REAL["p04"] + ("\xfc" if coding == "latin-1" else "")).encode(coding))
    assert cli.doctor(from_file=str(path)) == 0


def big(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(100 << 20)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "not a regular file"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (lambda path: path.symlink_to(path), "symbolic links"),
        (big, "larger than 16 MiB"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_bytes(b" \n\n"), "is empty"),
        (lambda path: path.write_bytes(bytes(range(256)) * 8), "is binary"),
        (lambda path: path.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(100)), "is binary"),
        (lambda path: path.write_bytes(b"GPU0\t\x00\x00"), "is binary"),
        (lambda path: path.write_bytes(b"\xff\xfeG"), "neither"),
        (lambda path: path.write_text("hello\nworld\n"), "neither"),
        (lambda path: path.write_text("\tGPU0\tGPU1\n"), "no table"),
        (lambda path: path.write_text('{"schema": "sm86.rig", "version": 1'), "is no JSON"),
        (lambda path: path.write_text("[" * 100_000), "nests too deeply"),
        (lambda path: path.write_text('{"schema": "sm86.plan", "version": 1}'), "not 'sm86.rig'"),
        (lambda path: path.write_text('{"schema": "sm86.rig", "version": 99, "facts": {}}'), "version 99"),
        (lambda path: path.write_text('{"schema": "sm86.rig", "version": 1, "facts": {"gpus": 8}}'), "wrong kind"),
    ],
)
def test_a_file_that_cannot_be_judged(tmp_path, make, words: str, capfd) -> None:
    path = tmp_path / "facts"
    make(path)
    assert guard(lambda: cli.doctor(from_file=str(path), bundle=str(tmp_path / "bundle.json"))) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert words in err and "mend: " in err and "Traceback" not in err
    assert not (tmp_path / "bundle.json").exists()


def test_a_file_without_read_permission(tmp_path) -> None:
    path = tmp_path / "facts"
    path.write_text(REAL["p04"])
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root reads every file")
    with pytest.raises(CouldNotRun, match="Permission denied"):
        cli.read_rig(str(path))


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(CouldNotRun, match="cannot read"):
        cli.read_rig(name)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"from_file": GOOD_FILE, "probe": True}, "--probe"),
        ({"from_file": GOOD_FILE, "image": "x"}, "--probe"),
        ({"image": "x"}, "no --probe"),
        ({"envelope": "cpu-smoke"}, "needs no GPU"),
        ({"envelope": "sm86-1m"}, "no envelope"),
    ],
)
def test_arguments_that_do_not_go_together(arguments: dict, words: str) -> None:
    with pytest.raises(CouldNotRun) as told:
        cli.doctor(**arguments)
    assert words in told.value.what


def test_an_envelope_of_ones_own_is_judged_by_its_own_numbers(tmp_path) -> None:
    text = (ROOT / "sm86/spec/envelopes/sm86-64k.toml").read_text()
    (tmp_path / "my-rig.toml").write_text(text.replace('"sm86-64k"', '"my-rig"'))
    want = cli.want_of(load_envelope(str(tmp_path / "my-rig.toml")))
    assert (want.envelope, want.memory, want.ranks) == ("my-rig", 0, 8)
    assert cli.want_of(load_envelope("sm86-64k")).memory > 23 << 30


def test_a_bundle_holds_what_was_judged_and_no_names(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("USER", "marguerite")
    facts = json.loads(json.dumps(to_json(BAD)))
    facts["facts"]["ports"][0]["holder"] = "process 9 (/home/marguerite/server)"
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    assert cli.doctor(from_file=str(tmp_path / "facts.json"), bundle=str(tmp_path / "bundle.json")) == 1
    assert "bundle: " in capsys.readouterr().out.splitlines()[-1]
    text = (tmp_path / "bundle.json").read_text()
    assert json.loads(text)["redacted"] is True
    for word in ("marguerite", "/home", "/var/lib", "/mnt/nas", "litellm", "http.server", "1111-2222-3333"):
        assert word not in text
    assert cli.doctor(from_file=str(tmp_path / "bundle.json"), json=True) == 1
    before = [(f["rule"], f["state"]) for f in json.loads(text)["findings"]]
    assert before == [(f["rule"], f["state"]) for f in json.loads(capsys.readouterr().out)["findings"]]


def test_a_bundle_that_cannot_be_written(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CouldNotRun, match="cannot write"):
        cli.doctor(from_file=GOOD_FILE, bundle=str(tmp_path / "file" / "bundle.json"))


def test_dry_run_asks_nothing(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr(cli, "gather", lambda *_: pytest.fail("it gathered"))
    assert cli.doctor(probe=True, bundle=str(tmp_path / "b.json"), dry_run=True) == 0
    told = capsys.readouterr().out
    assert "compare every byte" in told and "redacted" in told
    assert not (tmp_path / "b.json").exists()


def test_this_machine_is_gathered_and_judged(monkeypatch, capsys) -> None:
    monkeypatch.setattr(cli, "gather", lambda envelope, probe, image: GOOD)
    assert cli.doctor() == 0
    assert "in .env: SM86_GPUS=GPU-" in capsys.readouterr().out
    monkeypatch.setattr(cli, "gather", lambda envelope, probe, image: Rig(gpus=()))
    assert cli.doctor() == 1
    told = capsys.readouterr().out
    assert "this machine has no NVIDIA GPU" in told and "do not apply here" in told


def test_words_of_others_cannot_steer_a_terminal(capsys, tmp_path) -> None:
    value = json.loads(json.dumps(to_json(BAD)))
    value["facts"]["gpus"][3]["processes"][0]["title"] = "evil\x1b]0;title\x07\nok       xid"
    (tmp_path / "facts.json").write_text(json.dumps(value))
    cli.doctor(from_file=str(tmp_path / "facts.json"))
    told = capsys.readouterr().out
    assert "\x1b" not in told and "\nok       xid               \n" not in told


def test_no_fact_of_another_machine_can_steer_a_terminal(capsys, tmp_path) -> None:
    """Every text in it, one after the other: none reaches the terminal as a code, nor makes a line of its own."""
    value = json.loads(json.dumps(to_json(BAD)))
    evil = "x\x1b]0;title\x07\nok       xid               no Xid since boot"

    def texts(part):
        for key, item in part.items() if isinstance(part, dict) else enumerate(part):
            if isinstance(item, str):
                yield part, key
            elif isinstance(item, dict | list):
                yield from texts(item)

    path, shown = tmp_path / "facts.json", 0
    for part, key in list(texts(value["facts"])):
        kept, part[key] = part[key], evil
        path.write_text(json.dumps(value))
        part[key] = kept
        try:
            cli.doctor(from_file=str(path))
        except CouldNotRun:
            continue
        told = capsys.readouterr().out
        shown += "0;title" in told
        assert "\x1b" not in told and "\nok       xid               no Xid" not in told, key
    assert shown > 10


def test_what_was_found_is_shown_even_where_it_cannot_be_written(tmp_path, capsys) -> None:
    (tmp_path / "bundle").mkdir()
    for as_json in (False, True):
        with pytest.raises(CouldNotRun):
            cli.doctor(from_file=BAD_FILE, bundle=str(tmp_path / "bundle"), json=as_json)
        assert "peer-access" in capsys.readouterr().out


def test_a_reader_that_leaves_takes_no_bundle_with_it(tmp_path, monkeypatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Gone())
    with pytest.raises(BrokenPipeError):
        cli.doctor(from_file=BAD_FILE, bundle=str(tmp_path / "bundle.json"))
    assert json.loads((tmp_path / "bundle.json").read_text())["redacted"] is True


def test_the_task(tmp_path) -> None:
    argv = [sys.executable, "-m", "invoke", "doctor", "--from", BAD_FILE, "--json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert from_text(done.stdout) == BAD
    argv = [sys.executable, "-m", "invoke", "doctor", "--from", str(tmp_path / "none")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "mend: " in done.stderr and "Traceback" not in done.stderr
