"""A server on loopback that streams completions at known rates, well or badly. It knows the codes in its prompts.

It keeps the time of every token it sent, so that a test can hold the client's rate to what was really sent.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sm86.measure import prose

MODEL = "replay-model"
CONTEXT = 2048
BLOCK = 16
WORD = re.compile(r"\s*(?:\w+|[^\w\s])")


def tokens_of(text: str) -> list[str]:
    return WORD.findall(text)


@dataclass
class Behaviour:
    """rate: tok/s of each sequence. The maps are by sequence (0-based) and concern the measured rounds only."""

    rate: float = 400.0
    per_chunk: int = 1
    events_per_write: int = 1
    late_s: dict[int, float] = field(default_factory=dict)
    ends_after: dict[int, int] = field(default_factory=dict)
    stall: dict[int, tuple[int, float]] = field(default_factory=dict)  # after so many tokens, so many seconds
    late_rounds: int = 1_000_000  # late_s holds in so many measured rounds, the first ones
    usage: str = "continuous"
    chat: bool = False
    reasoning_tokens: int = 0
    cached: bool = True
    warm_rounds: int = 1_000_000  # prompts stay in the cache for so many measured rounds, the first ones
    cached_told: bool = True
    logprobs: Any = -0.5
    alone_logprob: Any = -0.01
    key: str = ""
    model: str = MODEL
    context: int = CONTEXT
    version: str | None = "0.26.0"
    metrics: bool = True
    tokenizer: bool = True
    busy: int = 0
    preempts: int = 0
    extra_tokens: int = 0  # generated for somebody else while measuring
    natural_end: int = 150
    knows: bool = True
    forgets: set[int] = field(default_factory=set)
    leaks: dict[int, int] = field(default_factory=dict)
    loops: set[int] = field(default_factory=set)  # in measured text
    prose_loops: str = ""  # "together", or "always"
    mute: bool = False
    same_differs: bool = False
    fault: str = ""  # of the phase below
    fault_phase: str = "measured"
    fault_after: int = 20
    keep_alive: bool = False


class Replay:
    """The server; `sent[(phase, sequence)]` holds lists of (time, tokens so far), one list per request."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.lock = threading.Lock()
        self.prompts: dict[int, str] = {}
        self.sent: dict[tuple[str, int], list[list[tuple[float, int]]]] = {}
        self.requests: list[dict[str, Any]] = []
        self.generated = 1000
        self.running = behaviour.busy
        self.preemptions = 0
        self.hits = 0
        outer = self

        class Handler(_Handler):
            replay = outer

        self.server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def sequence(self, prompt: str) -> int:
        found = re.match(r"Chronicle (\S+)-(\d+),", prompt)
        if found is None:
            return 0
        index = int(found[2]) - 1
        if "/" not in found[1]:
            self.prompts.setdefault(index, prompt)
        return index

    def exposition(self) -> str:
        labels = '{engine="0",model_name="replay \\"model\\""}'
        with self.lock:
            return (
                "# HELP vllm:generation_tokens_total Number of generation tokens processed.\n"
                f"vllm:generation_tokens_total{labels} {float(self.generated)}\n"
                f"vllm:num_requests_running{labels} {float(self.running)}\n"
                f"vllm:num_requests_waiting{labels} 0.0\n"
                f"vllm:num_preemptions_total{labels} {float(self.preemptions)}\n"
                f"vllm:prefix_cache_hits_total{labels} {float(self.hits)}\n"
                f"vllm:prefix_cache_queries_total{labels} 1.0\n"
            )


@contextmanager
def serving(behaviour: Behaviour | None = None) -> Iterator[Replay]:
    replay = Replay(behaviour or Behaviour())
    thread = threading.Thread(target=replay.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield replay
    finally:
        replay.server.shutdown()
        replay.server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is part of the tests."""


class _Gone(Exception):
    pass


class _Handler(BaseHTTPRequestHandler):
    replay: Replay
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # a write per flush, so that several events can arrive in one read

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def plain(self, values: Any, status: int = 200, kind: str = "application/json") -> None:
        data = values.encode() if isinstance(values, str) else json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def authorized(self) -> bool:
        key = self.replay.behaviour.key
        if key and self.path.startswith("/v1") and self.headers.get("Authorization") != f"Bearer {key}":
            self.plain({"error": "Unauthorized"}, 401)
            return False
        return True

    def do_GET(self) -> None:
        b = self.replay.behaviour
        if not self.authorized():
            return
        if self.path == "/v1/models":
            self.plain({"object": "list", "data": [{"id": b.model, "max_model_len": b.context}]})
        elif self.path == "/version" and b.version is not None:
            self.plain("<html></html>" if b.version == "<html>" else {"version": b.version})
        elif self.path == "/metrics" and b.metrics:
            self.plain(self.replay.exposition(), kind="text/plain")
        else:
            self.plain({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.authorized():
            return
        if self.path == "/tokenize" and self.replay.behaviour.tokenizer:
            ids = list(range(len(tokens_of(body["prompt"])) + 1))
            self.plain({"count": len(ids), "max_model_len": CONTEXT, "tokens": ids})
        elif self.path == "/v1/completions":
            self.replay.requests.append(body)
            with suppress(_Gone, BrokenPipeError, ConnectionResetError):
                self.complete(body)
        else:
            self.plain({"detail": "Not Found"}, 404)

    # completions

    def complete(self, body: dict[str, Any]) -> None:
        replay, b = self.replay, self.replay.behaviour
        prompt = body["prompt"]
        prompt_tokens = len(tokens_of(prompt)) + 1
        if prompt_tokens + 1 > CONTEXT:
            self.plain({"error": {"message": "the prompt is longer than the context", "code": 400}}, 400)
            return
        sequence = replay.sequence(prompt)
        phase = _phase(body)
        measured = phase == "measured"
        failing = b.fault if b.fault_phase == phase else ""
        if failing == "500":
            self.plain({"error": {"message": "EngineCore died", "code": 500}}, 500)
            return
        if failing == "silent":
            time.sleep(30)
            return
        if failing == "nan 400":
            message = "Out of range float values are not JSON compliant: nan"
            self.plain({"error": {"message": message, "code": 400}}, 400)
            return
        texts = self.texts(body, phase, sequence)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        kept = b.cached and phase != "prime"
        if measured:
            kept = kept and len(replay.sent.get((phase, sequence), ())) < b.warm_rounds
        cached = (prompt_tokens - 1) // BLOCK * BLOCK if kept else 0
        with replay.lock:
            replay.running += 1
            replay.hits += cached
            if measured:
                replay.preemptions += b.preempts
                replay.generated += b.extra_tokens
        try:
            self.emit(body, phase, sequence, texts, prompt_tokens, cached, failing)
        finally:
            with replay.lock:
                replay.running -= 1

    def prose_asked_together(self, sequence: int) -> bool:
        """Whether this is the first time that the sequence's prose is asked: alone it is only asked again."""
        return len(self.replay.sent.get(("prose", sequence), ())) == 0

    def texts(self, body: dict[str, Any], phase: str, sequence: int) -> list[str]:
        """The text of every token the request will get."""
        b, prompt = self.replay.behaviour, body["prompt"]
        limit = body["max_tokens"]
        if phase == "measured":
            limit = min(limit, b.ends_after.get(sequence, limit))
        if phase == "alone":
            limit = min(limit, b.natural_end)
        facts = re.findall(r"The code of (\w+) is (\d+)\.", prompt)
        together = phase == "measured"
        if b.mute and phase in ("measured", "prose"):
            return [""] * limit
        if phase == "prose":
            loops = b.prose_loops == "always" or (b.prose_loops == "together" and self.prose_asked_together(sequence))
            words = ["again "] * 400 if loops else [w + " " for w in prose.words(f"prose {sequence}", 400)]
        else:
            if not b.knows or (together and sequence in b.forgets):
                facts = [(name, "0") for name, _ in facts]
            if together and sequence in b.leaks:
                other = self.replay.prompts[b.leaks[sequence]]
                code = re.findall(r"is (\d+)\.", other)[0]
                facts = [(facts[0][0], code), *facts[1:]]
            listed = f" {facts[0][1]}" + "".join(f"\n- {name}: {code}" for name, code in facts[1:]) if facts else ""
            tail = [w + " " for w in prose.words(f"tail {sequence}", 1600)]
            if together and sequence in b.loops:
                tail = ["over and ", "over "] * 800
            words = [*tokens_of(listed + "\n\nA comment:"), " ", *tail]
        return words[:limit]

    def emit(
        self,
        body: dict[str, Any],
        phase: str,
        sequence: int,
        texts: list[str],
        prompt_tokens: int,
        cached: int,
        failing: str,
    ) -> None:
        replay, b = self.replay, self.replay.behaviour
        measured = phase == "measured"
        sent: list[tuple[float, int]] = []
        with replay.lock:
            rounds = replay.sent.setdefault((phase, sequence), [])
            rounds.append(sent)
        late = measured and len(rounds) <= b.late_rounds
        start = time.perf_counter() + (b.late_s.get(sequence, 0.0) if late else 0.0)
        pause = 0.0
        pending: list[bytes] = []
        made = 0
        while made < len(texts):
            part = texts[made : made + b.per_chunk]
            made += len(part)
            if measured and sequence in b.stall and made > b.stall[sequence][0]:
                pause = b.stall[sequence][1]
            # the moment the last token of the chunk is due: absolute, so that the rate does not drift
            due = start + (made - 1) / b.rate + pause
            time.sleep(max(0.0, due - time.perf_counter()))
            if failing and made >= b.fault_after:
                self.fail(failing, pending)
            last = made >= len(texts)
            pending.append(self.chunk(body, phase, sequence, "".join(part), len(part), made, prompt_tokens, last))
            with replay.lock:
                replay.generated += len(part)
            if len(pending) >= b.events_per_write or last:
                sent.append((time.perf_counter(), made))
                self.put(b"".join(pending))
                pending.clear()
                if b.keep_alive:
                    self.put(b": keep-alive\n\n")
        if b.usage != "none":
            usage: dict[str, Any] = {"prompt_tokens": prompt_tokens, "completion_tokens": made}
            if b.cached_told:
                usage["prompt_tokens_details"] = {"cached_tokens": cached}
            self.put(_event({"choices": [], "usage": usage}))
        self.put(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def chunk(
        self,
        body: dict[str, Any],
        phase: str,
        sequence: int,
        text: str,
        count: int,
        made: int,
        prompt_tokens: int,
        last: bool,
    ) -> bytes:
        b = self.replay.behaviour
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if last else None}
        if b.chat:
            reasoning = made <= b.reasoning_tokens
            choice["delta"] = {"reasoning" if reasoning else "content": text}
        else:
            choice["text"] = text
        if body.get("logprobs") is not None and b.logprobs != "none":
            value = b.alone_logprob if phase == "alone" else b.logprobs
            choice["logprobs"] = {"token_logprobs": [value] * count}
        if body.get("return_token_ids"):
            shift = id(self) if b.same_differs else 0
            choice["token_ids"] = [made + shift]
        values: dict[str, Any] = {"id": "cmpl-1", "object": "text_completion", "choices": [choice]}
        if b.usage == "continuous":
            values["usage"] = {"prompt_tokens": prompt_tokens, "completion_tokens": made}
        return _event(values)

    def fail(self, failing: str, pending: list[bytes]) -> None:
        if pending:
            self.put(b"".join(pending))
        if failing == "hang":
            time.sleep(30)
        elif failing == "keep-alives":
            for _ in range(300):
                self.put(b": still here\n\n")
                time.sleep(0.1)
        elif failing == "reset":
            self.connection.shutdown(socket.SHUT_RDWR)
        elif failing == "garbage":
            self.put(b"\x00\xff<html>not an event\n\n")
        elif failing == "not json":
            self.put(b"data: {'choices': \n\n")
        elif failing == "error event":
            self.put(_event({"error": {"message": "EngineCore encountered an issue", "code": 500}}))
            self.put(b"data: [DONE]\n\n")
        elif failing == "nan event":
            self.put(_event({"error": {"message": "Out of range float values: nan", "code": 400}}))
            self.put(b"data: [DONE]\n\n")
        elif failing == "no done":
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()
        elif failing == "count falls":
            self.put(_event({"choices": [{"text": "x"}], "usage": {"completion_tokens": 1}}))
        elif failing == "bad chunking":
            self.wfile.write(b"zz\r\n")
            self.wfile.flush()
        else:
            raise AssertionError(failing)
        self.close_connection = True
        raise _Gone

    def put(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


def _phase(body: dict[str, Any]) -> str:
    if body.get("ignore_eos"):
        return "measured"
    if body.get("return_token_ids"):
        return "same"
    if body["temperature"] > 0:
        return "prose"
    return "prime" if body["max_tokens"] == 1 else "alone"


def _event(values: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(values).encode() + b"\n\n"


def sent_rate(points: list[tuple[float, int]], start: float, end: float) -> float:
    """tok/s that really left the server between two times of its clock, which is the client's."""
    inside = [(at, count) for at, count in points if start - 0.003 <= at <= end + 0.003]
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])
