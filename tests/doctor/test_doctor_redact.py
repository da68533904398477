"""A bundle names nobody and no place: secrets are planted wherever a string may stand, and none is found again."""

from __future__ import annotations

import json
import typing
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from sm86.doctor.as_json import report_to_json
from sm86.doctor.facts import Docker, Driver, GpuProcess, Host, KernelLog, Port, Rig, Toolkit, Xid
from sm86.doctor.facts_json import from_text
from sm86.doctor.judge import judge
from sm86.doctor.redact import hashed, redacted, scrub
from sm86.doctor.want import Want
from tests.doctor.rigs import BAD, GOOD, gpus, part

SECRETS = {
    "host name": "zeppelin",
    "domain": "zeppelin.lab.example.org",
    "user": "marguerite",
    "home": "/home/marguerite/models/private-finetune",
    "path": "/mnt/customer-acme/weights",
    "windows path": r"C:\Users\marguerite\models",
    "address": "192.168.17.23",
    "IPv6": "fe80::1ff:fe23:4567:890a",
    "MAC": "52:54:00:ab:cd:ef",
    "mail": "marguerite@example.org",
    "url": "https://registry.acme.internal:5000/v2",
    "serial": "1322121099887",
    "UUID": "GPU-5f0c3c1e-9d1b-4f6e-8a77-0123456789ab",
    "bare UUID": "5f0c3c1e-9d1b-4f6e-8a77-0123456789ab",
    "token": "hf_AbCdEfGhIjKlMnOpQrStUv",
    "API key": "sk-proj-0123456789abcdef",
    "setting": "PASSWORD=correcthorse",
    "container id": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
}
KNOWN = ("zeppelin", "marguerite")


def bundle(rig: Rig) -> str:
    shown = redacted(rig, KNOWN)
    return json.dumps(report_to_json(shown, judge(shown, Want()), redacted=True), ensure_ascii=False)


def traces(text: str) -> list[str]:
    """Which secrets are left, whole or in the part that betrays them."""
    inner = {"setting": "correcthorse", "url": "acme", "path": "customer-acme", "home": "private-finetune"}
    return [name for name, secret in SECRETS.items() if inner.get(name, secret).lower() in text.lower()]


def test_secrets_where_they_really_stand() -> None:
    secret, dead = SECRETS, SECRETS["container id"]
    rig = gpus(
        lambda gpu: {
            "uuid": f"GPU-5f0c3c1e-9d1b-4f6e-8a77-0123456789a{gpu.index}" if gpu.index else secret["UUID"],
            "serial": secret["serial"],
            "memory_free": 1 << 30,
            "processes": (
                GpuProcess(
                    77, 9 << 30, f"python3 serve.py --model {secret['home']} --api-key {secret['API key']}",
                    f"container {secret['domain']}",
                ),
                GpuProcess(78, 9 << 30, f"{secret['path']}/python {secret['token']}", f"dead container {dead}"),
                GpuProcess(79, 1, f"ssh {secret['mail']} {secret['address']}", "host"),
            ),
        }
    )  # fmt: skip
    rig = replace(
        rig,
        driver=Driver("error", "580.126.09", problem=f"cannot open {secret['path']}"),
        host=replace(GOOD.host, kernel="6.8.0-45-generic-zeppelin", shm_leftovers=(f"psm_{secret['user']}",)),
        disks=tuple(replace(disk, path=secret["home"]) for disk in GOOD.disks or ()),
        docker=replace(
            GOOD.docker,
            problem=f"dial tcp {secret['address']}:2375",
            compose_problem=f"no {secret['home']}",
            gpu_containers=(secret["domain"],),
            lost_gpus=("marguerite-jupyter",),
            restarting=("acme-customer (35)",),
            runtimes=("runc", "acme-customer"),
        ),
        toolkit=Toolkit(
            "1.17.8", (), (f"nvidia.com/gpu={secret['UUID']}", "nvidia.com/gpu=0"), None, None, (secret["path"],)
        ),
        ports=(Port(8000, secret["address"], False, f"process 9 (python3 {secret['home']})"),),
        kernel_log=KernelLog(
            True,
            "journal",
            (Xid(31, "0000:01:00.0", 5.0, f"pid=77, name=marguerite, {secret['path']}"),),
            (f"zeppelin kernel: pcieport 0000:00:01.1: AER: Corrected error {secret['MAC']} {secret['address']}",),
            1,
        ),
        missed=(f"weights: {secret['path']} does not answer",),
    )
    text = bundle(rig)
    assert traces(text) == []
    assert "acme" not in text
    assert hashed(SECRETS["UUID"]) in text, "the same card can be told again in another bundle"
    assert "AER Corrected 0000:00:01.1" in text and '"python3"' in text and "6.8.0-45-generic" in text


def planted(kind: Any, secret: str, place: str = "") -> Any:
    """A value of a type in which every string is a secret, through all the classes of the facts."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is str:
        return f"{place} {secret} x".strip()
    if is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return kind(**{item.name: planted(hints[item.name], secret, item.name) for item in fields(kind)})
    if origin is tuple:
        if arguments and arguments[-1] is Ellipsis:
            return (planted(arguments[0], secret, place),)
        return tuple(planted(argument, secret, place) for argument in arguments)
    if origin is not None:
        chosen = next(argument for argument in arguments if argument is not type(None))
        return planted(chosen, secret, place)
    return {int: 0, float: 0.5, bool: True}[kind]


@pytest.mark.parametrize("name", sorted(SECRETS.keys() - {"serial"}))
def test_a_secret_in_every_string_of_the_facts(name: str) -> None:
    secret = SECRETS[name]
    rig = planted(Rig, secret)
    assert secret in json.dumps(
        report_to_json(rig, judge(replace(rig, gpus=None), Want())), ensure_ascii=False
    ).replace("\\\\", "\\")
    rig = replace(rig, topology=GOOD.topology, gpus=(replace(rig.gpus[0], index=0),) * 8)
    shown = redacted(rig, KNOWN)
    assert (
        traces(json.dumps(report_to_json(shown, judge(replace(shown, gpus=None), Want()), True), ensure_ascii=False))
        == []
    )


def test_nothing_that_the_rules_need_is_lost() -> None:
    for rig in (GOOD, BAD):
        before, after = judge(rig, Want()), judge(redacted(rig, KNOWN), Want())
        assert [(f.rule, f.state) for f in before.findings] == [(f.rule, f.state) for f in after.findings]


def test_a_bundle_can_be_judged_again() -> None:
    assert from_text(bundle(BAD)) == redacted(BAD, KNOWN)


def test_redacting_twice_changes_nothing_more() -> None:
    once = redacted(BAD, KNOWN)
    assert [gpu.uuid for gpu in redacted(once, KNOWN).gpus or ()] != [None] * 8


@pytest.mark.parametrize(
    "text",
    [
        "0000:21:00.0",
        "00000000:21:00.0",
        "580.126.09",
        "NVIDIA GeForce RTX 3090",
        "0-63,128-191",
        "AMD EPYC 7763 64-Core Processor",
        "2026-11-30T12:00:00Z",
        "nvidia.com/gpu=0",
        "Intel(R) Xeon(R) Platinum 8352V CPU @ 2.10GHz",
        "6.8.0-45-generic",
        "io.containerd.runc.v2",
        "Ubuntu 24.04.1 LTS",
    ],
)
def test_what_betrays_nothing_stays(text: str) -> None:
    assert scrub(text) == text


def test_names_are_found_inside_other_words() -> None:
    assert scrub("psm_Marguerite_1 at ZEPPELIN.lan", KNOWN) == "psm_<name>_1 at <name>.lan"


def test_titles_keep_the_kind_of_program_alone() -> None:
    titles = (
        "VLLM::Worker_PP0_TP3_DCP0",
        "/usr/bin/python3.12 x.py",
        "/opt/acme/tool --key k",
        "Xorg -nolisten",
        "bash",
    )
    rig = gpus(
        lambda gpu: {"processes": tuple(GpuProcess(at, 1, title, "host") for at, title in enumerate(titles))}, [0]
    )
    found = [process.title for process in (redacted(rig).gpus or ())[0].processes or ()]
    assert found == ["VLLM::Worker_PP0_TP3_DCP0", "python3", "other", "Xorg", "other"]


def test_unknown_facts_stay_unknown() -> None:
    assert redacted(Rig(), KNOWN) == Rig()
    assert redacted(Rig(gpus=(), docker=Docker(), host=Host()), KNOWN).gpus == ()
    assert redacted(part("host", kernel=None)).host.kernel is None
