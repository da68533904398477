"""Fetching from a hub that cuts, lies, stalls and refuses: what arrives is whole or has another name."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm86.errors import CheckFailed, CouldNotRun, Sm86Error
from sm86.host import hub_fetch
from sm86.host.hub import TRIES, Hub, Listing, endpoint_of
from sm86.host.hub_fetch import WORK, Fetch, wanted_files
from sm86.host.hub_token import Token, find_token, require_safe_way
from tests.weights import hub_server as stand_in
from tests.weights.hub_server import COMMIT, REPOSITORY, StandIn

BIG = "model-00001-of-00001.safetensors"
SECRET = "hf_abcdefghijklmnopqrstuvwxyz"


def contents() -> dict[str, bytes]:
    return {
        BIG: random.Random(86).randbytes(300_000),
        "config.json": b'{"a": 1}',
        "tokenizer.json": b'{"b": 2}',
        "empty.txt": b"",
        ".gitattributes": b"x",
        "pytorch_model.bin": b"y" * 9000,
        "modeling.py": b"import os",
    }


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of this machine knows nothing of a server of this test."""
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def hub() -> Iterator[StandIn]:
    with stand_in.serving(contents()) as made:
        yield made


class Told:
    """Progress that a test can read."""

    def __init__(self) -> None:
        self.done = 0
        self.lines: list[str] = []
        self.waits: list[float] = []

    def advance(self, count: int) -> None:
        self.done += count

    def say(self, text: str) -> None:
        self.lines.append(text)

    @property
    def words(self) -> str:
        return "\n".join(self.lines)


def made(hub: StandIn, target: Path, told: Told, token: str | None = None, silence_s: float = 20.0) -> Fetch:
    client = Hub(hub.endpoint, Token(token, "HF_TOKEN") if token else None, silence_s)
    listing = client.listing(REPOSITORY, "main", told.waits.append)
    return Fetch(client, listing, target, told, told.waits.append)


def fetch(hub: StandIn, target: Path, told: Told | None = None) -> Told:
    told = told or Told()
    made(hub, target, told).run()
    return told


def whole(target: Path) -> bool:
    names = (BIG, "config.json", "tokenizer.json", "empty.txt")
    return all((target / name).read_bytes() == contents()[name] for name in names)


def names_in(target: Path) -> set[str]:
    return {path.name for path in target.iterdir()}


def parts(target: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (target / WORK).glob("*.part") if path.stat().st_size}


def test_everything_that_serving_needs_comes_and_nothing_else(hub: StandIn, tmp_path: Path) -> None:
    told = Told()
    files = made(hub, tmp_path / "m", told).run()
    assert whole(tmp_path / "m")
    assert names_in(tmp_path / "m") == {BIG, "config.json", "tokenizer.json", "empty.txt", WORK}
    assert files[BIG] == (300_000, hashlib.sha256(contents()[BIG]).hexdigest())
    assert files["config.json"][1] == hashlib.sha256(contents()["config.json"]).hexdigest()
    assert told.done == sum(size for size, _ in files.values()) and told.waits == []


def test_what_is_there_is_checked_once_and_not_fetched_again(hub: StandIn, tmp_path: Path) -> None:
    fetch(hub, tmp_path / "m")
    hub.seen.clear()
    told = fetch(hub, tmp_path / "m")
    assert len(hub.seen) == 1 and "checking" not in told.words, "only the list was asked for"
    (tmp_path / "m" / WORK / "done.json").unlink()
    told = fetch(hub, tmp_path / "m")
    assert f"{BIG} is there: checking it" in told.words and hub.asked(BIG) == []


def test_a_changed_file_of_the_right_size_is_fetched_anew(hub: StandIn, tmp_path: Path) -> None:
    fetch(hub, tmp_path / "m")
    (tmp_path / "m" / BIG).write_bytes(b"x" * 300_000)
    told = fetch(hub, tmp_path / "m")
    assert whole(tmp_path / "m") and "other contents than the hub lists" in told.words


def test_cut_connections_go_on_where_they_broke(hub: StandIn, tmp_path: Path) -> None:
    hub.faults[BIG] = [stand_in.cut(100_000), stand_in.cut(1), stand_in.cut(0), stand_in.cut(50_000)]
    told = fetch(hub, tmp_path / "m")
    assert whole(tmp_path / "m") and told.done == sum(
        len(contents()[name]) for name in names_in(tmp_path / "m") - {WORK}
    )
    asked = [headers.get("Range") for headers in hub.asked(BIG)]
    assert asked == [None, "bytes=100000-", "bytes=100001-", "bytes=100001-", "bytes=150001-"]


def test_a_connection_that_always_breaks_is_given_up_and_the_part_kept(hub: StandIn, tmp_path: Path) -> None:
    hub.faults[BIG] = [stand_in.cut(1000)] + [stand_in.cut(0)] * 50
    told = Told()
    with pytest.raises(CouldNotRun, match=r"does not come: .*") as fault:
        fetch(hub, tmp_path / "m", told)
    assert "what has come is kept" in fault.value.mend
    assert len(hub.asked(BIG)) == TRIES + 1 and told.waits == [1.0, 1.0, 2.0, 4.0, 8.0, 16.0]
    assert list(parts(tmp_path / "m").values()) == [1000] and not (tmp_path / "m" / BIG).exists()
    hub.faults.clear()
    hub.seen.clear()
    again = fetch(hub, tmp_path / "m")
    assert whole(tmp_path / "m") and hub.asked(BIG)[0]["Range"] == "bytes=1000-"
    assert "going on after 1,000 bytes" in again.words


def test_a_part_of_another_revision_is_not_continued(hub: StandIn, tmp_path: Path) -> None:
    hub.faults[BIG] = [stand_in.cut(1000)] + [stand_in.cut(0)] * 50
    with pytest.raises(CouldNotRun):
        fetch(hub, tmp_path / "m")
    hub.faults.clear()
    hub.files[BIG] = random.Random(87).randbytes(300_000)
    hub.seen.clear()
    fetch(hub, tmp_path / "m")
    assert (tmp_path / "m" / BIG).read_bytes() == hub.files[BIG]
    assert "Range" not in hub.asked(BIG)[0]


def test_a_damaged_part_is_noticed_and_fetched_from_its_beginning(hub: StandIn, tmp_path: Path) -> None:
    hub.faults[BIG] = [stand_in.cut(1000)] + [stand_in.cut(0)] * 50
    with pytest.raises(CouldNotRun):
        fetch(hub, tmp_path / "m")
    hub.faults.clear()
    part = next((tmp_path / "m" / WORK).glob(f"*{BIG}.part"))
    part.write_bytes(b"z" * 1000)
    told = fetch(hub, tmp_path / "m")
    assert whole(tmp_path / "m") and "once more, from its beginning" in told.words
    part.write_bytes(b"z" * 400_000)
    (tmp_path / "m" / BIG).unlink()
    fetch(hub, tmp_path / "m")
    assert whole(tmp_path / "m"), "a part that is larger than the file is no part of it"


def test_a_server_without_ranges_sends_it_all_again(hub: StandIn, tmp_path: Path) -> None:
    hub.ranges = False
    hub.faults[BIG] = [stand_in.cut(100_000)]
    told = fetch(hub, tmp_path / "m")
    assert whole(tmp_path / "m") and told.done == 300_000 + 16


def test_wrong_bytes_are_tried_once_more_and_never_named(hub: StandIn, tmp_path: Path) -> None:
    hub.faults[BIG] = [stand_in.wrong]
    assert "once more" in fetch(hub, tmp_path / "m").words and whole(tmp_path / "m")
    hub.faults = {"config.json": [stand_in.wrong] * 2}
    with pytest.raises(CheckFailed, match="came twice with other contents"):
        fetch(hub, tmp_path / "n")
    assert "config.json" not in names_in(tmp_path / "n")
    assert not any("config.json" in name for name in parts(tmp_path / "n"))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (stand_in.lying(-1000), "sends 299000 bytes of model-00001-of-00001.safetensors, its list says 300000"),
        (stand_in.lying(1000), "sends 301000 bytes"),
        (stand_in.long, "sends more of"),
        (stand_in.redirect("/elsewhere", X_Linked_Etag='"' + "0" * 64 + '"'), "other contents"),
        (lambda handler, name, data: handler.head(204, {}, 0), "answers 204"),
        (
            lambda handler, name, data: handler.head(200, {"X-Repo-Commit": "f" * 40}, len(data)),
            "revision ffffffffffff",
        ),
    ],
)
def test_answers_that_are_not_about_this_file(
    hub: StandIn, tmp_path: Path, answer: stand_in.Answer, words: str
) -> None:
    hub.faults[BIG] = [answer]
    with pytest.raises(CouldNotRun) as fault:
        fetch(hub, tmp_path / "m")
    assert words in fault.value.what and fault.value.mend
    assert BIG not in names_in(tmp_path / "m")


@pytest.mark.parametrize("answered", ["bytes 5-299999/300000", "bytes 100-299999/300001", "100", ""])
def test_another_part_than_was_asked_for(hub: StandIn, tmp_path: Path, answered: str) -> None:
    hub.faults[BIG] = [
        stand_in.cut(100),
        lambda handler, name, data: handler.head(206, {"Content-Range": answered}, len(data) - 100),
    ]
    with pytest.raises(CouldNotRun, match="another part of"):
        fetch(hub, tmp_path / "m")


@pytest.mark.parametrize("code", [408, 425, 429, 500, 502, 503, 504])
def test_refusals_that_may_pass_are_waited_for(hub: StandIn, tmp_path: Path, code: int) -> None:
    hub.faults[BIG] = [stand_in.status(code), stand_in.cut(5), stand_in.status(code)]
    told = fetch(hub, tmp_path / "m")
    assert whole(tmp_path / "m") and f"the hub answers {code}" in told.words


def test_the_hub_s_own_waiting_time_is_kept_within_reason(hub: StandIn, tmp_path: Path) -> None:
    hub.faults[BIG] = [stand_in.status(429, Retry_After="37"), stand_in.status(503, Retry_After="99999")]
    hub.listing = [stand_in.status(429, Retry_After="5")]
    assert fetch(hub, tmp_path / "m").waits == [5.0, 37.0, 300.0]


def test_a_silent_server_counts_as_broken(hub: StandIn, tmp_path: Path) -> None:
    hub.faults[BIG] = [stand_in.silent(1000)]
    told = Told()
    made(hub, tmp_path / "m", told, silence_s=2.0).run()
    assert whole(tmp_path / "m") and "no byte came for too long" in told.words
    assert hub.asked(BIG)[1]["Range"] == "bytes=1000-"


@pytest.mark.parametrize(
    ("code", "token", "words", "mend"),
    [
        (401, None, "refuses a request without a token", "HF_TOKEN or --token-file"),
        (401, SECRET, "refuses the token from HF_TOKEN", "check the name"),
        (403, None, "refuses", "accept the model's terms"),
        (403, SECRET, "does not give", "accept the model's terms"),
        (404, None, "has no Intel/DeepSeek", "check the repository and the revision"),
        (410, None, "has no", "check the repository"),
        (418, None, "answers 418", "another mirror"),
    ],
)
def test_refusals_that_waiting_cannot_mend(
    hub: StandIn, tmp_path: Path, code: int, token: str | None, words: str, mend: str
) -> None:
    hub.listing = [stand_in.status(code, X_Error_Message=f"no {token}")]
    with pytest.raises(CouldNotRun) as fault:
        made(hub, tmp_path / "m", Told(), token)
    told = " ".join((fault.value.what, fault.value.mend, *fault.value.evidence))
    assert words in fault.value.what and mend in fault.value.mend and SECRET not in told
    assert len(hub.seen) == 1 and not (tmp_path / "m").exists()


def test_a_refusal_in_the_middle_ends_it_with_what_has_come(hub: StandIn, tmp_path: Path) -> None:
    hub.faults[BIG] = [stand_in.cut(1000), stand_in.status(403)]
    with pytest.raises(CouldNotRun, match="403"):
        fetch(hub, tmp_path / "m")
    assert 1000 in parts(tmp_path / "m").values()


def test_a_hub_that_never_answers() -> None:
    told = Told()
    # bound and not listening: nobody else can answer on this port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        client = Hub(f"http://127.0.0.1:{taken.getsockname()[1]}", None)
        with pytest.raises(CouldNotRun, match=r"127.0.0.1 does not answer: Connection refused"):
            client.listing(REPOSITORY, "main", told.waits.append, told.say)
    assert told.waits == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert told.lines[0] == f"asking 127.0.0.1 which files {REPOSITORY} holds at main"
    assert told.lines[1:] == [
        f"127.0.0.1: Connection refused; again in {wait:.0f} s (try {number} of 6)"
        for number, wait in enumerate(told.waits, 2)
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"<html>sign in</html>",
        b"{}",
        b"[]",
        b"[" * 90000,
        json.dumps({"sha": "main", "siblings": []}).encode(),
        json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "a"}]}).encode(),
        json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "a", "size": 10**30, "blobId": "0" * 40}]}).encode(),
        json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "a", "size": 1, "blobId": "zz"}]}).encode(),
        json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "a\x1b[2J", "size": 1, "blobId": "0" * 40}]}).encode(),
        json.dumps({"sha": COMMIT, "siblings": [{"rfilename": 7, "size": 1}]}).encode(),
    ],
)
def test_what_is_no_hub(hub: StandIn, tmp_path: Path, data: bytes) -> None:
    hub.listing = [stand_in.body(data)]
    with pytest.raises(CouldNotRun, match="does not answer as a model hub does"):
        made(hub, tmp_path / "m", Told())


def test_names_that_lead_out_of_the_folder_are_not_fetched(hub: StandIn, tmp_path: Path) -> None:
    hub.files |= {"../evil.json": b"x", "a/b.json": b"x", "..\\c.json": b"x", "..": b"x"}
    fetch(hub, tmp_path / "m")
    assert whole(tmp_path / "m") and names_in(tmp_path) == {"m"}
    assert "evil.json" not in " ".join(names_in(tmp_path / "m"))


def test_the_token_goes_to_the_hub_and_not_where_it_redirects_to(hub: StandIn, tmp_path: Path) -> None:
    with stand_in.serving(contents()) as other:
        hub.other_host = other.endpoint
        made(hub, tmp_path / "m", Told(), SECRET).run()
        assert whole(tmp_path / "m")
        assert {headers.get("Authorization") for headers in hub.asked(BIG)} == {f"Bearer {SECRET}"}
        assert [path for path, _ in other.seen] == [f"/cdn/{BIG}"]
        assert all("Authorization" not in headers for _, headers in other.seen)


def test_the_token_stays_with_a_redirect_on_the_same_host(hub: StandIn, tmp_path: Path) -> None:
    hub.other_host = hub.endpoint
    made(hub, tmp_path / "m", Told(), SECRET).run()
    assert [h.get("Authorization") for path, h in hub.seen if path.startswith("/cdn/")] == [f"Bearer {SECRET}"]


def test_a_resumed_redirect_keeps_its_range(hub: StandIn, tmp_path: Path) -> None:
    hub.faults[BIG] = [stand_in.cut(1000)]
    with stand_in.serving(contents()) as other:
        hub.other_host = other.endpoint
        fetch(hub, tmp_path / "m")
        assert whole(tmp_path / "m") and other.seen[0][1]["Range"] == "bytes=1000-"


@pytest.mark.parametrize(
    ("endpoint", "safe"),
    [
        ("https://hub.example", True),
        ("http://127.0.0.1:80", True),
        ("http://localhost", True),
        ("http://[::1]:80", True),
        ("http://hub.example", False),
        ("http://127.example.org", False),
        ("http://10.0.0.1", False),
    ],
)
def test_a_token_goes_only_where_nobody_listens(endpoint: str, safe: bool) -> None:
    require_safe_way(None, endpoint)
    if safe:
        return require_safe_way(Token(SECRET, "HF_TOKEN"), endpoint)
    with pytest.raises(CouldNotRun, match="unencrypted") as fault:
        require_safe_way(Token(SECRET, "HF_TOKEN"), endpoint)
    assert SECRET not in fault.value.what + fault.value.mend


def test_where_a_token_is_found(tmp_path: Path) -> None:
    def found(environment: dict[str, str], given: Path | None = None) -> str | None:
        token = find_token(environment, given, tmp_path)
        return token.value if token else None

    assert found({}) is None
    (tmp_path / ".cache/huggingface").mkdir(parents=True)
    (tmp_path / ".cache/huggingface/token").write_text("login\n")
    (tmp_path / "named").write_text("named\n")
    (tmp_path / "given").write_text("given")
    assert found({}) == "login"
    assert found({"HF_HOME": str(tmp_path)}) is None
    assert found({"HF_TOKEN_PATH": str(tmp_path / "named")}) == "named"
    assert found({"HF_TOKEN_PATH": str(tmp_path / "named"), "HF_TOKEN": "own"}) == "own"
    assert found({"HF_TOKEN": "own"}, tmp_path / "given") == "given"
    assert SECRET not in repr(Token(SECRET, "HF_TOKEN"))


@pytest.mark.parametrize("text", [b"", b"two words\n", b"\xff\xfe", b"x" * 5000, b"a\nb"])
def test_a_token_that_is_none(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "t").write_bytes(text)
    with pytest.raises(CouldNotRun) as fault:
        find_token({}, tmp_path / "t", tmp_path)
    assert "two words" not in fault.value.what
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "none", "."):
        with pytest.raises(CouldNotRun):
            find_token({}, tmp_path / name, tmp_path)


@pytest.mark.parametrize(
    "text", ["ftp://x", "hub.example", "https://", "https://user:pass@hub.example", "https://x:99999", "https://x/?a=1"]
)
def test_an_endpoint_that_is_none(text: str) -> None:
    with pytest.raises(CouldNotRun, match="HF_ENDPOINT is no address") as fault:
        endpoint_of({"HF_ENDPOINT": text})
    assert "pass@" not in fault.value.what + fault.value.mend


def test_endpoints_that_are_good() -> None:
    assert endpoint_of({}) == endpoint_of({"HF_ENDPOINT": " "}) == "https://huggingface.co"
    assert endpoint_of({"HF_ENDPOINT": "https://mirror.example/hub/"}) == "https://mirror.example/hub"
    with pytest.raises(CouldNotRun, match="HF_HUB_OFFLINE"):
        endpoint_of({"HF_HUB_OFFLINE": "1"})


def test_a_full_disk_is_told_before_anything_is_fetched(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    free = hub_fetch.SPARE_BYTES + 300_015
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free))
    with pytest.raises(CouldNotRun, match="GB are needed") as fault:
        fetch(hub, tmp_path / "m")
    assert "nothing was fetched" in fault.value.mend and hub.asked(BIG) == []
    free += 1
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free))
    fetch(hub, tmp_path / "m")
    assert whole(tmp_path / "m")


def test_two_fetches_into_one_folder(hub: StandIn, tmp_path: Path) -> None:
    one = made(hub, tmp_path / "m", Told())
    with one._alone(), pytest.raises(CouldNotRun, match="another fetch"):
        fetch(hub, tmp_path / "m")


@pytest.mark.parametrize("kind", ["file", "link", "read-only"])
def test_a_target_that_cannot_be_written(hub: StandIn, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "m"
    if kind == "file":
        target.write_text("x")
    elif kind == "link":
        target.symlink_to("/proc/nowhere")
    else:
        target = Path("/proc/m")
    with pytest.raises(Sm86Error) as fault:
        fetch(hub, target)
    assert "cannot write to" in fault.value.what


def test_which_files_are_wanted() -> None:
    from sm86.host.hub import RemoteFile

    names = (
        "a.safetensors",
        "config.json",
        "chat_template.jinja",
        "README.md",
        "LICENSE",
        "x.bin",
        "y.gguf",
        ".a",
        "z.py",
    )
    listing = Listing(REPOSITORY, COMMIT, tuple(RemoteFile(name, 1, "0" * 64, None) for name in names))
    assert [file.name for file in wanted_files(listing)] == list(names[:5])
