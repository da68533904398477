"""The client against a real server on loopback: rates as they were sent, and every way a server can fail."""

from __future__ import annotations

import http.client
import itertools
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from sm86.errors import CouldNotRun
from sm86.measure.api_key import VARIABLE, read_api_key
from sm86.measure.client import Client, Request, ServerFault, parse_address, run_together
from sm86.measure.limits import Limits
from sm86.measure.timeline import Timeline
from sm86.measure.window import Refusal, Window, steady_window
from tests.measure.conftest import PATIENT, QUICK
from tests.measure.replay import MODEL, Behaviour, Replay, sent_rate, serving


def client_of(replay: Replay, **more) -> Client:
    never = replay.behaviour.fault in ("silent", "hang", "keep-alives")
    return Client(parse_address(replay.url), limits=QUICK if never else PATIENT, **more)


pytestmark = pytest.mark.timing


def ask(sequence: int, tokens: int = 250) -> Request:
    body = {"model": MODEL, "prompt": f"Chronicle x-{sequence + 1}, a", "max_tokens": tokens, "ignore_eos": True}
    return Request("/v1/completions", body, tokens, 10)


def together(replay: Replay, sequences: int, tokens: int = 250, **more) -> tuple[Timeline, ...]:
    return run_together(client_of(replay), [ask(n, tokens) for n in range(sequences)], **more)


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(rate=500),
        Behaviour(rate=500, per_chunk=4),
        Behaviour(rate=500, events_per_write=3),
        Behaviour(rate=500, late_s={1: 0.2}),
        Behaviour(rate=500, ends_after={0: 200}),
        Behaviour(rate=500, stall={1: (120, 0.2)}),
        Behaviour(rate=500, chat=True, reasoning_tokens=150, keep_alive=True),
    ],
    ids=["plain", "4 tokens a chunk", "3 events a write", "late", "early end", "stall", "chat and reasoning"],
)
def test_the_rate_is_what_was_sent(behaviour):
    with serving(behaviour) as replay:
        lines = together(replay, 2)
    window = steady_window(lines)
    assert isinstance(window, Window)
    for sequence, rate in enumerate(window.sequences):
        truth = sent_rate(replay.sent["measured", sequence][0], window.start, window.end)
        assert rate.tok_s == pytest.approx(truth, rel=0.015)
    if behaviour.stall:
        assert window.sequences[1].longest_gap_s > 0.15
        assert window.sequences[1].tok_s < 0.9 * behaviour.rate
    else:
        assert window.aggregate_tok_s == pytest.approx(1000, rel=0.05)
    if behaviour.per_chunk > 1:
        assert all(line.chunks * 3 < line.tokens for line in lines)
    if behaviour.chat:
        assert all(line.reasoning and line.text and line.tokens == 250 for line in lines)


def test_the_time_is_taken_when_the_read_returns():
    with serving(Behaviour(rate=40)) as replay:
        (line,) = together(replay, 1, tokens=10)
    sent = replay.sent["measured", 0][0]
    assert [point.tokens for point in line.points] == [count for _, count in sent]
    assert all(0 <= point.at - at < 0.02 for point, (at, _) in zip(line.points, sent, strict=True))


def test_every_token_gives_new_patience():
    limits = Limits(first_token_s=0.3, prefill_tok_s=1e6, between_tokens_s=0.3, token_s=0.1)
    with serving(Behaviour(rate=40)) as replay:
        line = Client(parse_address(replay.url), limits=limits).stream(ask(0, tokens=40))
    assert line.tokens == 40 and line.points[-1].at - line.sent_at > 0.9


def test_usage_that_comes_only_at_the_end_gives_no_number():
    for usage in ("final", "none"):
        with serving(Behaviour(usage=usage, rate=5000)) as replay:
            lines = together(replay, 2)
        refusal = steady_window(lines)
        assert isinstance(refusal, Refusal) and "no token counts" in refusal.reason


def test_sequences_that_do_not_overlap_are_refused():
    with serving(Behaviour(rate=1000, late_s={1: 0.4})) as replay:
        refusal = steady_window(together(replay, 2))
    assert isinstance(refusal, Refusal) and "never all decoded together" in refusal.reason


def test_progress_counts_tokens_not_chunks():
    told: list[int] = []
    lock = threading.Lock()

    def tell(count: int) -> None:
        with lock:
            told.append(count)

    with serving(Behaviour(rate=5000, per_chunk=7)) as replay:
        together(replay, 3, on_tokens=tell)
    assert sum(told) == 750


def test_all_leave_at_the_same_moment(monkeypatch):
    """Even where it takes some of them longer to connect."""
    connect, calls = http.client.HTTPConnection.connect, itertools.count()

    def slower_each_time(self) -> None:
        time.sleep(0.05 * next(calls))
        connect(self)

    monkeypatch.setattr(http.client.HTTPConnection, "connect", slower_each_time)
    with serving(Behaviour(rate=5000)) as replay:
        lines = together(replay, 6, tokens=10)
    assert max(t.sent_at for t in lines) - min(t.sent_at for t in lines) < 0.05


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("500", "refused", "HTTP 500"),
        ("silent", "timeout", "silent"),
        ("hang", "timeout", "silent: it let the time for the next token pass"),
        ("keep-alives", "timeout", "silent"),
        ("reset", "broken", "broke while it was streaming"),
        ("bad chunking", "broken", "broke while it was streaming"),
        ("garbage", "nonsense", "no server-sent event"),
        ("not json", "nonsense", "not JSON"),
        ("error event", "refused", "error inside the stream (500)"),
        ("no done", "nonsense", "before [DONE]"),
        ("count falls", "nonsense", "count fell"),
    ],
)
def test_a_server_that_fails_in_the_middle(fault, kind, words):
    started = time.perf_counter()
    with serving(Behaviour(rate=500, fault=fault)) as replay:
        with pytest.raises(ServerFault) as caught:
            together(replay, 2)
        assert time.perf_counter() - started < 3.0
    assert caught.value.kind == kind
    assert words in caught.value.problem
    if fault == "500":
        assert caught.value.server_said == "EngineCore died"


def test_one_fault_ends_the_others_at_once():
    with serving(Behaviour(rate=20)) as replay:
        bad = Request("/nowhere", {"prompt": "x"}, 5, 1)
        started = time.perf_counter()
        with pytest.raises(ServerFault, match="/nowhere answered HTTP 404"):
            run_together(client_of(replay), [ask(0), ask(1), bad])
        assert time.perf_counter() - started < 1.0
        deadline = time.perf_counter() + 2.0
        while replay.running and time.perf_counter() < deadline:
            time.sleep(0.02)
        assert replay.running == 0


@contextmanager
def raw_server(answer):
    """A server that does with a connection what `answer` says."""
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection, stop), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stop.set()
        listener.close()


def trickle(connection, stop) -> None:
    """A byte of a header now and then, for ever: no single read ever times out."""
    try:
        while not stop.wait(0.05):
            connection.sendall(b"H")
    except OSError:
        pass


def trickle_body(connection, stop) -> None:
    try:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        while not stop.wait(0.05):
            connection.sendall(b":\n")
    except OSError:
        pass


def close(connection, stop) -> None:
    connection.close()


def not_http(connection, stop) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    connection.close()


@pytest.mark.parametrize(
    ("answer", "kind"), [(trickle, "timeout"), (trickle_body, "timeout"), (close, "broken"), (not_http, "broken")]
)
def test_servers_that_are_none(answer, kind):
    with raw_server(answer) as url:
        client = Client(parse_address(url), limits=QUICK)
        started = time.perf_counter()
        with pytest.raises(ServerFault) as caught:
            client.stream(ask(0, tokens=10))
        assert caught.value.kind == kind
        assert time.perf_counter() - started < 4.0


def test_an_endless_plain_answer_ends():
    with raw_server(trickle) as url, pytest.raises(ServerFault) as caught:
        Client(parse_address(url), limits=QUICK).get_json("/v1/models")
    assert caught.value.kind == "timeout"


def test_nobody_there():
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()
    with pytest.raises(ServerFault) as caught:
        Client(parse_address(f"http://127.0.0.1:{port}")).get_json("/v1/models")
    assert caught.value.kind == "unreachable"


def test_an_unknown_host():
    with pytest.raises(ServerFault) as caught:
        Client(parse_address("http://no-such-host.invalid:8000")).get_json("/v1/models")
    assert caught.value.kind == "unreachable"


def test_the_key_is_sent_and_never_shown(tmp_path):
    key = "secret-key-123"
    with serving(Behaviour(key=key)) as replay:
        assert client_of(replay, api_key=key).get_json("/v1/models")["data"]
        with pytest.raises(ServerFault) as caught:
            client_of(replay, api_key="wrong-key-456").get_json("/v1/models")
    assert caught.value.status == 401
    assert "wrong-key" not in str(caught.value) + caught.value.server_said


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://rig:8001/v1/", "http://rig:8001"),
        ("https://rig/api/v1", "https://rig:443/api"),
        ("http://[::1]:80", "http://[::1]:80"),
    ],
)
def test_addresses(text, shown):
    assert str(parse_address(text)) == shown


@pytest.mark.parametrize(
    "text",
    ["", "127.0.0.1:8000", "ftp://x", "http://", "http://x:99999", "http://x:port", "http://u:p@x", "http://x?a=1"],
)
def test_addresses_that_are_none(text):
    with pytest.raises(CouldNotRun) as caught:
        parse_address(text)
    assert caught.value.mend
    assert "u:p" not in caught.value.what


def test_key_files(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert read_api_key(None) is None
    monkeypatch.setenv(VARIABLE, "from-environment")
    assert read_api_key(None) == "from-environment"
    good = tmp_path / "key"
    good.write_bytes(b"\xef\xbb\xbffrom-file\r\n")
    assert read_api_key(str(good)) == "from-file"


@pytest.mark.parametrize(
    "content", [b"", b"  \n", b"two words", b"line\nline", "schl\u00fcssel".encode(), b"\xff\xfe", b"a\x00b"]
)
def test_bad_key_files_are_refused_without_showing_the_key(tmp_path, content):
    bad = tmp_path / "key"
    bad.write_bytes(content)
    with pytest.raises(CouldNotRun) as caught:
        read_api_key(str(bad))
    assert "words" not in caught.value.what.replace("more than one word", "")
    assert "schl" not in caught.value.what
    with pytest.raises(CouldNotRun):
        read_api_key(str(tmp_path / "missing"))
    with pytest.raises(CouldNotRun):
        read_api_key(str(tmp_path))


def test_a_key_that_no_header_can_carry_is_refused_by_the_client():
    with pytest.raises(CouldNotRun) as caught:
        Client(parse_address("http://x"), api_key="a\r\nX-Evil: 1")
    assert "Evil" not in caught.value.what
