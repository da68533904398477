"""`invoke model.check`, `model.lock` and `model.fetch` as a person calls them."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sm86.cli import engines, model, model_view
from sm86.cli.guard import guard
from sm86.host.hub import Hub, Listing
from sm86.launch.checks import require_model
from sm86.weights.folder import look
from sm86.weights.lock import read as read_lock
from tests.conftest import ROOT
from tests.weights import checkpoints as made
from tests.weights import hub_server as stand_in
from tests.weights.checkpoints import MODEL, small
from tests.weights.hub_server import COMMIT, REPOSITORY, StandIn

OTHER = "f" * 40
SECRET = "hf_abcdefghijklmnopqrstuvwxyz"
SHARD = "model-00002-of-00003.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made.write(tmp_path / "m", small())


def states(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    values = json.loads(capsys.readouterr().out)
    assert (values["schema"], values["version"]) == ("sm86.model-check", 1)
    return {finding["rule"]: finding["state"] for finding in values["findings"]}


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_check_says_what_it_is_and_where_it_comes_from(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert model.check(str(folder)) == 1, "its sizes are not the published ones"
    out = capsys.readouterr().out
    assert "already quantized (auto-round with 4 bits and group size 128, written by AutoRound 0.14.0)" in out
    assert "quantization is a property of the checkpoint" in out
    assert f"model hash  {look(folder).sha256}" in out
    assert "fail            config-values: " in out and f"mend: use {MODEL.repository}" in out


def test_names_from_a_file_cannot_write_to_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.write_shard(folder / "\x1b[2Jold.safetensors", {"\x1b[31mx": made.tensors_of(small())["norm.weight"]})
    (folder / SHARD).unlink()
    (folder / SHARD).symlink_to("\x1b]0;title\x07")
    assert model.check(str(folder)) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\x07" not in out and "?]0;title?" in out


def test_the_hash_is_the_launcher_s(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the launcher's manifest, and with it every record, calls the model by."""
    require_model(look(folder), MODEL)
    model.check(str(folder), json=True)
    assert json.loads(capsys.readouterr().out)["model_hash"] == look(folder).sha256


def test_lock_then_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = folder.with_name("m.lock.json")
    assert model.lock(str(folder), dry_run=True) == 0 and not lock.exists()
    assert model.lock(str(folder), repository=REPOSITORY, revision=COMMIT) == 0
    held = read_lock(lock)
    assert (held.repository, held.revision, held.model_hash) == (REPOSITORY, COMMIT, look(folder).sha256)
    assert held.files[SHARD].sha256 == hashlib.sha256((folder / SHARD).read_bytes()).hexdigest()
    assert set(held.files) == {path.name for path in folder.iterdir()}
    capsys.readouterr()
    model.check(str(folder), json=True)
    found = states(capsys)
    assert (found["lock"], found["bytes"]) == ("pass", "not applicable")
    model.check(str(folder), hash=True, json=True)
    assert states(capsys)["bytes"] == "pass"


def test_a_dry_run_names_what_would_be_locked(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The very files that the lock then holds: no read-me, no hidden file."""
    lock = folder.with_name("m.lock.json")
    (folder / "README.md").write_text("not a part")
    (folder / ".cache").write_text("neither")
    model.lock(str(folder), dry_run=True, json=True)
    told = json.loads(capsys.readouterr().out)
    model.lock(str(folder), dry_run=True)
    first, *names = capsys.readouterr().out.splitlines()
    assert not lock.exists()
    assert model.lock(str(folder)) == 0
    held = {name: file.size for name, file in read_lock(lock).files.items()}
    assert told["sizes"] == held and (told["files"], told["bytes"]) == (len(held), sum(held.values()))
    assert f"{len(held)} files" in first and f"write {lock}" in first
    assert {line.split()[-1] for line in names} == set(held) and len(names) == len(held)
    capsys.readouterr()
    monkeypatch.setattr(model_view, "SHOWN_FILES", 2)
    model.lock(str(folder), dry_run=True)
    first, *names = capsys.readouterr().out.splitlines()
    assert f"replace {lock}" in first and names[2:] == [f"  ... and {len(held) - 2} more"]


def test_what_the_lock_notices(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model.lock(str(folder))
    lock = folder.with_name("m.lock.json")
    before = lock.read_text()

    def found(**options: Any) -> dict[str, str]:
        capsys.readouterr()
        model.check(str(folder), json=True, **options)
        return states(capsys)

    flip(folder / SHARD)
    assert found()["lock"] == "pass", "a weight's own bytes are read only when asked for"
    assert found(hash=True)["bytes"] == "fail"
    assert guard(lambda: model.lock(str(folder))) == 1 and lock.read_text() == before
    flip(folder / SHARD)
    assert found(hash=True)["bytes"] == "pass"
    assert model.lock(str(folder)) == 0 and lock.read_text() == before

    flip(folder / "tokenizer.json", 30)
    assert found()["lock"] == "fail"
    flip(folder / "tokenizer.json", 30)
    (folder / "chat_template.jinja").write_text("{{ x }}")
    assert found()["lock"] == "fail"
    (folder / "chat_template.jinja").unlink()
    (folder / "README.md").write_text("x")
    (folder / ".hidden").write_text("x")
    assert found()["lock"] == "pass"
    (folder / "tokenizer_config.json").unlink()
    assert found()["lock"] == "fail" and found(hash=True)["bytes"] == "not seen"
    assert model.lock(str(folder), update=True) == 0 and lock.read_text() != before
    assert found()["lock"] == "pass"


def test_a_lock_of_another_place(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model.lock(str(folder), lock=str(tmp_path / "sub" / "other.json"))
    assert not folder.with_name("m.lock.json").exists()
    capsys.readouterr()
    model.check(str(folder), lock=str(tmp_path / "sub" / "other.json"), json=True)
    assert states(capsys)["lock"] == "pass"


def test_damage_is_not_locked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.truncate(folder / SHARD, 5000)
    assert guard(lambda: model.lock(str(folder))) == 1
    assert "is not whole" in capsys.readouterr().err and not folder.with_name("m.lock.json").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": "sm86.record"}',
        '{"schema": "sm86.model-lock", "version": 2}',
        '{"schema": "sm86.model-lock", "version": 1}',
        json.dumps({"schema": "sm86.model-lock", "version": 1, "repository": 7, "revision": None}),
        *(
            json.dumps(
                {
                    "schema": "sm86.model-lock",
                    "version": 1,
                    "repository": None,
                    "revision": None,
                    "model_hash": "0" * 64,
                    "files": files,
                }
            )
            for files in ([], {"../a": {"size": 1, "sha256": "0" * 64}}, {"a": {"size": -1, "sha256": "0" * 64}},
                          {"a": {"size": 1, "sha256": "x"}}, {"a": 1}, {"a": {"size": 10**40, "sha256": "0" * 64}})
        ),
    ],
)  # fmt: skip
def test_a_lock_file_that_is_none(folder: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    folder.with_name("m.lock.json").write_text(text)
    assert guard(lambda: model.check(str(folder))) == 2
    err = capsys.readouterr().err
    assert "m.lock.json" in err and "mend:" in err and "Traceback" not in err


def test_a_lock_file_that_would_wait_for_ever(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(folder.with_name("m.lock.json"))
    assert guard(lambda: model.check(str(folder))) == 2
    assert "it is a FIFO, not a regular file" in capsys.readouterr().err


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of this machine knows nothing of a server of this test."""
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    source = made.write(tmp_path / "source", small())
    files = {path.name: path.read_bytes() for path in source.iterdir()}
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "no-home"))
    with stand_in.serving(files) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
        yield served


def test_fetch_pins_locks_and_can_be_checked(hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "models" / "m"
    assert model.fetch(str(target)) == 0
    out = capsys.readouterr()
    assert f"holds {REPOSITORY} at {COMMIT}" in out.out and "\x1b" not in out.out + out.err
    assert hub.seen[0][0] == f"/api/models/{REPOSITORY}/revision/main?blobs=true"
    held = read_lock(target.with_name("m.lock.json"))
    assert (held.repository, held.revision, held.model_hash) == (REPOSITORY, COMMIT, look(target).sha256)
    assert model.lock(str(target)) == 0 and read_lock(target.with_name("m.lock.json")) == held
    capsys.readouterr()
    model.check(str(target), hash=True, json=True)
    found = states(capsys)
    assert (found["lock"], found["bytes"], found["tensors"]) == ("pass", "pass", "pass")


def test_what_a_fetch_does_is_said_before_it_is_done(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hub that does not answer is asked for half a minute, and a first file takes as long: a pipe is told too."""
    said: list[str] = []
    listing_once = Hub._listing_once

    def slowly(self: Hub, repository: str, revision: str) -> Listing:
        said.append(capsys.readouterr().err)
        return listing_once(self, repository, revision)

    monkeypatch.setattr(Hub, "_listing_once", slowly)
    assert model.fetch(str(tmp_path / "m"), json=True) == 0
    assert said == [f"asking 127.0.0.1 which files {REPOSITORY} holds at main\n"]
    told = capsys.readouterr()
    assert told.err.startswith(f"{len(hub.files)} files to fetch, ") and str(tmp_path / "m") in told.err
    assert json.loads(told.out)["schema"] == "sm86.model-fetched"


def test_the_default_folder_is_the_envelope_s(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engines, "ROOT", tmp_path)
    monkeypatch.delenv("SM86_MODEL", raising=False)
    monkeypatch.setenv("SM86_MODELS_DIR", str(tmp_path / "elsewhere"))
    assert model.fetch(dry_run=True, json=True) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["folder"] == str(tmp_path / "elsewhere" / MODEL.folder)
    assert values["revision"] == COMMIT and values["files"][SHARD] == len(hub.files[SHARD])
    assert not (tmp_path / "elsewhere").exists() and len(hub.seen) == 1
    monkeypatch.delenv("SM86_MODELS_DIR")
    (tmp_path / ".env").write_text("SM86_MODELS_DIR=/from/dotenv\n")
    model.fetch(dry_run=True)
    assert f"into /from/dotenv/{MODEL.folder}" in capsys.readouterr().out
    (tmp_path / ".env").write_text("SM86_MODEL=Mine\n")
    model.fetch(dry_run=True)
    assert f"into {tmp_path / 'models' / 'Mine'}" in capsys.readouterr().out


def test_a_lock_pins_the_next_fetch(hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "m"
    assert model.fetch(str(target)) == 0
    before = hub.files["config.json"]
    hub.commit, hub.files["config.json"] = OTHER, json.dumps(small(extra=1)).encode()
    hub.seen.clear()
    # the stand-in answers every revision with its newest; a real hub would give the locked one
    assert guard(lambda: model.fetch(str(target))) == 1
    assert hub.seen[0][0] == f"/api/models/{REPOSITORY}/revision/{COMMIT}?blobs=true"
    assert "--update fetches the other one" in capsys.readouterr().err
    assert (target / "config.json").read_bytes() == before
    assert guard(lambda: model.fetch(str(target), revision=OTHER)) == 1
    assert model.fetch(str(target), revision=OTHER, update=True) == 0
    assert read_lock(tmp_path / "m.lock.json").revision == OTHER


def test_a_hub_that_lists_other_contents_for_the_locked_revision(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.fetch(str(tmp_path / "m"))
    data = bytearray(hub.files[SHARD])
    data[-1] ^= 1
    hub.files[SHARD] = bytes(data)
    assert guard(lambda: model.fetch(str(tmp_path / "m"))) == 1
    assert f"the hub lists other contents for {SHARD}" in capsys.readouterr().err


def test_a_repository_that_holds_no_checkpoint(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.files = {"config.json": b"{}", "README.md": b"x"}
    assert guard(lambda: model.fetch(str(tmp_path / "m"))) == 1
    assert "is no checkpoint" in capsys.readouterr().err and not (tmp_path / "m.lock.json").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"repository": "x"}, "no repository"),
        ({"repository": "../../etc/passwd"}, "no repository"),
        ({"revision": "../main"}, "no revision"),
        ({"revision": "a b"}, "no revision"),
        ({"connections": "0"}, "--connections"),
        ({"connections": "many"}, "--connections"),
        ({"envelope": "sm86-262"}, "no envelope"),
        ({"token_file": "/none"}, "token file /none is not there"),
    ],
)
def test_bad_options(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, str], words: str
) -> None:
    assert guard(lambda: model.fetch(str(tmp_path / "m"), **options)) == 2  # type: ignore[arg-type]
    assert words in capsys.readouterr().err and hub.seen == [] and not (tmp_path / "m").exists()


def test_a_hub_cache_is_not_fetched_into(hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    assert guard(lambda: model.fetch(str(snapshot))) == 2
    assert "is a hub cache" in capsys.readouterr().err


def command(hub: StandIn, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "HF_TOKEN": SECRET, "HF_ENDPOINT": hub.endpoint}
    argv = (sys.executable, "-m", "invoke", *arguments)
    return subprocess.Popen(
        argv, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


def test_ctrl_c_keeps_what_has_come(hub: StandIn, tmp_path: Path) -> None:
    size = len(hub.files[SHARD])
    hub.faults[SHARD] = [stand_in.silent(size // 2)]
    target = tmp_path / "m"
    process = command(hub, "model.fetch", "--to", str(target), "--connections", "1")
    end = time.monotonic() + 60

    def come() -> int:
        return sum(part.stat().st_size for part in target.rglob(f"*{SHARD}.part"))

    while not come() and time.monotonic() < end:
        time.sleep(0.05)
    assert come()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, "interrupted" in err, "Traceback" in err) == (130, True, False), err
    assert not (target / SHARD).exists()
    hub.held.set()
    process = command(hub, "model.fetch", "--to", str(target))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert (target / SHARD).read_bytes() == hub.files[SHARD]
    assert "Range" in hub.asked(SHARD)[-1] and f"{SHARD}: going on after" in err
    assert SECRET not in out + err and "\x1b" not in out + err
    files = [path.read_bytes() for path in target.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in data for data in files)


def test_a_disk_that_fills_up_in_the_middle(hub: StandIn, tmp_path: Path) -> None:
    """A limit on file sizes stands in for the disk: the write fails in the same place."""
    limit = len(hub.files[SHARD]) - 1000
    process = command(
        hub,
        "model.fetch",
        "--to",
        str(tmp_path / "m"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2 and "cannot write to" in err and "what has come is kept" in err, err
    assert "Traceback" not in err and not (tmp_path / "m" / SHARD).exists()
    assert not (tmp_path / "m.lock.json").exists()


@pytest.mark.parametrize(
    "odd", [{"repository": "a b"}, {"revision": "x\ny"}, {"repository": "one"}, {"revision": ".."}]
)
def test_what_another_rig_could_not_fetch_is_not_locked(
    folder: Path, capsys: pytest.CaptureFixture[str], odd: dict[str, str]
) -> None:
    assert guard(lambda: model.lock(str(folder), **odd)) == 2
    assert "'" in capsys.readouterr().err
    assert not (folder.parent / "m.lock.json").exists()


def test_two_locks_are_told_apart_by_what_differs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert model.lock(str(folder), repository="one/model") == 0
    assert guard(lambda: model.lock(str(folder), repository="other/model")) == 1
    told = capsys.readouterr().err
    assert "one/model" in told and "other/model" in told


def test_a_config_that_cannot_be_read_says_nothing_of_the_weights(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "config.json").write_text("{")
    assert model.check(str(folder)) == 1
    told = capsys.readouterr().out
    assert "provenance  not known: " in told and "not quantized" not in told
