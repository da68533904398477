"""`--redact`: what is planted is found nowhere in what is written, and what a result needs stays."""

from __future__ import annotations

import getpass
import json
import platform
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm86.cli.report import report
from sm86.record import Verdict, save
from sm86.report.redact import redactor
from tests.report import made_up

PLANTED = {
    "GPU": "GPU-deadbeef-1234-5678-9abc-def012345678",
    "MIG": "MIG-0badcafe-1234-5678-9abc-def012345678",
    "host": "rig7",
    "host in full": "rig7.cellar.lan",
    "host in an address": "http://beastbox:8000/v1",
    "second host": "beastbox",
    "user": "gundula",
    "home": "/home/gundula/models/DeepSeek",
    "path": "/srv/secret-project/logs/run.log",
    "path of Windows": "C:\\Users\\gundula\\logs",
    "path of home": "~/ablit/weights",
    "login": "gundula@rig7:/data",
    "mail": "gundula@example.org",
    "IPv4": "10.20.30.40",
    "IPv4 with port": "203.0.113.77:51234",
    "IPv6": "2001:db8:85a3::8a2e:370:7334",
    "IPv6 local": "fe80::9af1:2dff:fe3c:1",
    "MAC": "9a:f1:2d:3c:4b:5a",
    "key of a hub": "hf_QwErTyUiOpAsDfGhJkLz",
    "key": "sk-proj-abcdefghijklmnop",
    "bearer": "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
    "key of an option": "hunter2hunter2",
    "serial": "1320921001234",
    "further name": "Projekt-Nordstern",
}
"""What names a machine or a person. Every value, and each of its telling parts, must be gone."""

PARTS = ("deadbeef", "0badcafe", "rig7", "cellar", "beastbox", "gundula", "secret-project", "ablit", "example.org")
PARTS += ("10.20.30.40", "203.0.113.77", "8a2e:370", "9af1:2dff", "9a:f1:2d", "QwErTy", "sk-proj", "eyJhbG", "hunter2")
PARTS += ("1320921001234", "Nordstern")


def planted(tmp_path: Path) -> Path:
    forms = {"key of an option": "--api-key={}", "bearer": "Bearer {}"}
    each = {f"fact {i}": forms.get(k, "{}").format(v) for i, (k, v) in enumerate(PLANTED.items()) if k != "serial"}
    every = " and ".join(each.values())
    conditions = made_up.conditions(model=PLANTED["home"], image_id="sha256:" + "b" * 64)
    gpus = ({"uuid": PLANTED["GPU"], "name": "NVIDIA GeForce RTX 3090", "serial": PLANTED["serial"]},)
    host = {"hostname": PLANTED["host in full"], "user": "gundula", "cpu": "AMD EPYC 7302", "cores": 32}
    conditions = replace(conditions, gpus=gpus, host=host, overrides={"NCCL_SOCKET_IFNAME": every})
    results = tmp_path / "results"
    for record in made_up.rig()[:3]:
        details = {
            **record.details,
            "note": every,
            "api_key": "hunter2hunter2",
            every: every,
            "findings": [{"rule": "argv", "evidence": [{"line": 3, "text": f"argv=[{every!r}]"}]}],
            "failure": {"what": every, "mend": every, "lines": [{"line": 1, "text": every}]},
            "comparison": {"verdict": "cannot be compared", "reasons": [every], "notes": [every]},
        }
        verdicts = (*record.verdicts, Verdict("extra", "fail", every))
        numbers = tuple(replace(number, note=every) for number in record.numbers)
        save(replace(record, conditions=conditions, details=details, verdicts=verdicts, numbers=numbers), results)
    for kind in ("plan", "comm", "trace", "ladder", "odd"):
        plain = made_up.record(
            kind, "sm86-262k", conditions=conditions, details={"rows": [{"a": every}], "b": every, **each}
        )
        save(plain, results)
    (results / "rig7-broken.json").write_text("{")
    (results / "foreign.json").write_text(json.dumps({"schema": every}))
    return results


def written(folder: Path) -> str:
    return "\n".join(path.read_text() for path in folder.iterdir() if path.suffix in (".html", ".md"))


def test_what_is_planted_is_found_without_and_gone_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = planted(tmp_path)
    assert report([str(results)], tmp_path / "open") == 1
    open_text = written(tmp_path / "open").replace("\\", "")
    assert all(part.replace("\\", "") in open_text for part in PARTS if part != "1320921001234")
    capsys.readouterr()

    code = report([str(results)], tmp_path / "shut", redact=True, hide=("Projekt-Nordstern",), json=True)
    assert code == 1
    told = capsys.readouterr()
    files = json.loads(told.out)
    said = json.dumps({**files, "files": []}) + told.err
    shut = written(tmp_path / "shut")
    for text in (shut, shut.replace("\\", ""), said):
        for part in PARTS:
            assert part.lower() not in text.lower(), part
    # pictures are posted too
    for path in (tmp_path / "shut").glob("*.png"):
        data = path.read_bytes()
        assert not any(part.encode() in data or part in path.name for part in PARTS)
    assert getpass.getuser() in ("root",) or getpass.getuser() not in shut
    assert platform.node() not in shut or platform.node().lower() in ("localhost", "ubuntu", "debian")


def test_what_a_result_needs_stays(tmp_path: Path) -> None:
    results = planted(tmp_path)
    report([str(results)], tmp_path / "out", redact=True, png=False)
    text = written(tmp_path / "out")
    for kept in (
        "57.2",
        "NVIDIA GeForce RTX 3090",
        "580.126.09",
        "0.26.0",
        "b" * 64,
        made_up.REVISION,
        "AMD EPYC 7302",
    ):
        assert kept in text
    assert "cpu-smoke" not in text and "sm86-262k" in text


def test_the_same_thing_has_the_same_word() -> None:
    guard = redactor([])
    first = guard.text("GPU-deadbeef-1234-5678-9abc-def012345678 on 10.1.2.3")
    assert guard.text("10.1.2.3 has GPU-deadbeef-1234-5678-9abc-def012345678") == "[address 1] has [GPU 1]"
    assert first == "[GPU 1] on [address 1]" and guard.text("10.1.2.4") == "[address 2]"


@pytest.mark.parametrize(
    "text",
    [
        "decode 57.3 tok/s, 4 x 81,920 tokens, 20 / 30 / 40, and/or, tok/s",
        "driver 580.126.09, torch 2.11.0+cu130, vLLM 0.26.0, 12:34:56 UTC",
        "sha256:718b12cd270a58e9ba674d8b66392612d96308a18b2cc3597f6a23e869419bd7",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL, marlin::Marlin, vllm.entrypoints.cli.main, 'tokens': 4096",
        "Intel/DeepSeek-V4-Flash-W4A16-AutoRound, https://huggingface.co/Intel/x, localhost, GPU-0, R3, token=None",
        "git_rev=d9c2ce67dc7f2723d7c9ef0f6cb7a8d4464f03d3; 62 entries, of cpu-smoke with digest 2396a0f90660de59",
    ],
)
def test_what_is_not_private_is_left_alone(text: str) -> None:
    assert redactor([]).text(text) == text


def test_a_checkpoints_folder_in_the_container_keeps_its_name() -> None:
    guard = redactor([])
    assert guard.values({"model": "/models/SmolLM2-135M-Instruct"}) == {"model": "SmolLM2-135M-Instruct"}
    assert guard.values({"model": "/home/x/SmolLM2"}) == {"model": "[path 1]"}


@given(st.lists(st.sampled_from([*PLANTED.values(), " ", "-", ":", "/", "=", "x", "[host 1]", "\n"]), max_size=8))
def test_twice_is_once(pieces: list[str]) -> None:
    guard = redactor([{"hostname": "rig7.cellar.lan", "user": "gundula"}])
    once = guard.text("".join(pieces))
    assert guard.text(once) == once


@pytest.mark.parametrize("name", ["host", "model", "driver", "verdicts", "seconds"])
def test_a_user_called_like_a_field_of_records_does_not_break_them(name: str, tmp_path: Path) -> None:
    record = made_up.record("doctor", "sm86-64k", 1, details={"process": {"user": name, "pid": 7}})
    save(record, tmp_path / "records")
    assert report([str(tmp_path / "records")], str(tmp_path / "out"), redact=True, png=False) == 0
    said = (tmp_path / "out" / "report.md").read_text()
    assert "process / user: [user 1]" in said.replace("\\", "") and "were not read" not in said


def test_hiding_a_word_of_the_format_leaves_records_readable(tmp_path: Path) -> None:
    save(
        made_up.record("verify", "sm86-64k", 1, verdicts=(Verdict("argv", "pass", "of a host"),)), tmp_path / "records"
    )
    assert report([str(tmp_path / "records")], str(tmp_path / "out"), redact=True, hide=["host"], png=False) == 0
    assert "of a [name 1]" in (tmp_path / "out" / "report.md").read_text().replace("\\", "")
