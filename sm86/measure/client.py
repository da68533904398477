"""The client: one connection and one thread per sequence, the time taken when a read returns. Effects: network.

Standard library only. The connection's socket timeout bounds each read, a timer bounds the whole request: a
server that sends keep-alives for ever, or a byte now and then, ends in a fault like one that is silent.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sm86.errors import CouldNotRun
from sm86.json_text import parse as parse_json
from sm86.measure.limits import Limits
from sm86.measure.stream import Chunk, Done, Event, StreamParser
from sm86.measure.timeline import StreamBroken, Timeline, build, check_count, check_event

MAX_ANSWER_BYTES = 64 * 1024 * 1024
READ_BYTES = 65536

UNREACHABLE, REFUSED, TIMEOUT, BROKEN, NONSENSE = "unreachable", "refused", "timeout", "broken", "nonsense"


class ServerFault(Exception):
    """The server did not do its part. kind: one of the five words above; status: of HTTP, where there was one;
    server_said: its own words, empty where it had none."""

    def __init__(self, kind: str, problem: str, status: int | None = None, server_said: str = "") -> None:
        super().__init__(problem)
        self.kind = kind
        self.problem = problem
        self.status = status
        self.server_said = " ".join(server_said.split())[:400]


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is. `path` is what stands before /v1, without a slash at its end."""

    scheme: str
    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def parse_address(text: str) -> Address:
    """The address in a base URL; a trailing /v1 is taken off. Raises CouldNotRun for anything else than http(s)."""
    mend = "give a base URL such as http://127.0.0.1:8000"
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError as error:
        raise CouldNotRun(f"{text!r} is not a base URL: {error}", mend) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise CouldNotRun(f"{text!r} is not a base URL", mend)
    if not all(sign.isprintable() and sign != " " for sign in text.strip()):
        raise CouldNotRun(f"{text!r} is not a base URL: it holds blanks or control characters", mend)
    if parts.username or parts.password:
        raise CouldNotRun("the base URL holds a user name or password", "leave it out; give the API key in a file")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    default = 443 if parts.scheme == "https" else 80
    return Address(parts.scheme, parts.hostname, default if port is None else port, path)


@dataclass(frozen=True, slots=True)
class Request:
    """One streaming request. body: without `stream`; queued_tokens: prompt tokens that may have to be prefilled
    before its first token comes."""

    path: str
    body: Mapping[str, Any]
    max_tokens: int
    queued_tokens: int


def is_api_key(text: str) -> bool:
    """Whether a text can be sent as a bearer token: printable ASCII without blanks."""
    return bool(text) and all("!" <= character <= "~" for character in text)


class Cancellation:
    """Ends the requests that were given it: their connections are shut, whatever they are waiting for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shut: list[Callable[[], None]] = []
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        with self._lock:
            self._set = True
            calls, self._shut = self._shut, []
        for call in calls:
            call()

    def watch(self, shut: Callable[[], None]) -> None:
        """Call `shut` when cancelled, at once if that has been."""
        with self._lock:
            if not self._set:
                self._shut.append(shut)
                return
        shut()


class Client:
    """A server and how to talk to it. The key is sent as a bearer token and appears in no message."""

    def __init__(self, address: Address, api_key: str | None = None, limits: Limits | None = None) -> None:
        self.address = address
        self.limits = limits or Limits()
        if api_key is not None and not is_api_key(api_key):
            # http.client's own message would quote the header, and so the key
            raise CouldNotRun("the API key holds characters that no HTTP header can carry", "give the key alone")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def get_text(self, path: str) -> str:
        """The body of a plain answer, as text. Raises ServerFault."""
        return self._answer("GET", path, None).decode("utf-8", "replace")

    def get_json(self, path: str) -> Any:
        """The JSON of a plain answer. Raises ServerFault (kind nonsense when it is none)."""
        return _json(self._answer("GET", path, None), path)

    def post_json(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON of the answer to a JSON body. Raises ServerFault."""
        return _json(self._answer("POST", path, body), path)

    def post(self, path: str) -> None:
        """Ask for something to be done, with an empty body and no answer but its success. Raises ServerFault."""
        self._answer("POST", path, {})

    def stream(
        self,
        request: Request,
        on_tokens: Callable[[int], None] | None = None,
        cancelled: Cancellation | None = None,
        ready: threading.Barrier | None = None,
    ) -> Timeline:
        """Send one streaming request and follow it to its end.

        on_tokens is told how many new tokens came, at the server's count. With `ready`, the connection is made
        first, and the request leaves when all parties have arrived. Raises ServerFault.
        """
        whole = self.limits.whole(request.queued_tokens, request.max_tokens)
        with _Connection(self, self.limits.connect_s, whole, cancelled) as connection:
            body = json.dumps(
                {
                    **request.body,
                    "stream": True,
                    # vLLM needs both: the second has no effect without the first
                    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
                },
                ensure_ascii=False,
            ).encode("utf-8", "surrogatepass")
            if ready is not None:
                ready.wait(self.limits.connect_s + 5)
            sent_at = time.perf_counter()
            connection.send("POST", request.path, body, self._headers)
            first_by = sent_at + self.limits.until_first_token(request.queued_tokens)
            response = connection.response(first_by)
            if response.status != 200:
                raise _refused(request.path, response.status, connection.read_all(response, first_by))
            return self._follow(connection, response, sent_at, first_by, on_tokens)

    def _follow(
        self,
        connection: _Connection,
        response: http.client.HTTPResponse,
        sent_at: float,
        deadline: float,
        on_tokens: Callable[[int], None] | None,
    ) -> Timeline:
        parser = StreamParser()
        events: list[Event] = []
        tokens = 0
        while True:
            data, at = connection.read(response, deadline)
            new = parser.feed(data, at) if data else parser.end(at)
            events += new
            counts = [e.completion_tokens for e in new if isinstance(e, Chunk) and e.completion_tokens]
            try:
                for event in new:
                    check_event(event)
                for count in counts:
                    check_count(tokens, count)
                if not data or any(isinstance(event, Done) for event in new):
                    return build(sent_at, events)
            except StreamBroken as broken:
                kind = REFUSED if broken.reported else NONSENSE
                raise ServerFault(kind, broken.problem, broken.code, broken.server_said) from None
            if counts and max(counts) > tokens:
                if on_tokens is not None:
                    on_tokens(max(counts) - tokens)
                tokens = max(counts)
            if any(isinstance(e, Chunk) and (e.completion_tokens or e.text or e.reasoning) for e in new):
                deadline = at + self.limits.between_tokens_s

    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        limit = self.limits.answer_s
        with _Connection(self, min(self.limits.connect_s, limit), limit, None) as connection:
            payload = None if body is None else json.dumps(body).encode()
            deadline = time.perf_counter() + limit
            connection.send(method, path, payload, self._headers)
            response = connection.response(deadline)
            data = connection.read_all(response, deadline)
            if response.status != 200:
                raise _refused(path, response.status, data)
            return data


class _Connection:
    """One connection, shut when its time is up or the run is cancelled. Every network fault becomes a ServerFault."""

    def __init__(self, client: Client, connect_s: float, whole_s: float, cancelled: Cancellation | None) -> None:
        address = client.address
        self._address = address
        self._cancelled = cancelled
        self._whole_s = whole_s
        self._out_of_time = False
        self._waiting_for = "an answer"
        self._http: http.client.HTTPConnection
        if address.scheme == "https":
            context = ssl.create_default_context()
            self._http = http.client.HTTPSConnection(address.host, address.port, timeout=connect_s, context=context)
        else:
            self._http = http.client.HTTPConnection(address.host, address.port, timeout=connect_s)
        try:
            self._http.connect()
        except (OSError, UnicodeError) as error:
            raise ServerFault(UNREACHABLE, f"no connection to {address}: {_words(error)}") from None
        sock = self._http.sock
        assert sock is not None
        self._socket: socket.socket = sock
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timer = threading.Timer(whole_s, self._expire)
        self._timer.daemon = True
        self._timer.start()
        if cancelled is not None:
            cancelled.watch(self.shut)

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with contextlib.suppress(OSError):
            self._http.close()

    def _expire(self) -> None:
        self._out_of_time = True
        self.shut()

    def shut(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> None:
        own = {"Accept": "application/json, text/event-stream", **headers}
        if body is not None:
            own["Content-Type"] = "application/json"
        with self._faults("it was sent the request"):
            self._http.request(method, self._address.path + path, body, own)

    def response(self, deadline: float) -> http.client.HTTPResponse:
        self._waiting_for = "an answer"
        self._patience(deadline)
        with self._faults("it answered"):
            return self._http.getresponse()

    def read(self, response: http.client.HTTPResponse, deadline: float) -> tuple[bytes, float]:
        """(bytes, time): the time is taken when the read returns, before anything looks at the bytes."""
        self._waiting_for = "the next token"
        if self._cancelled is not None and self._cancelled.is_set():
            raise ServerFault(BROKEN, "cancelled")
        self._patience(deadline)
        with self._faults("it was streaming"):
            data = response.read1(READ_BYTES)
            return data, time.perf_counter()

    def read_all(self, response: http.client.HTTPResponse, deadline: float) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            data, _ = self.read(response, deadline)
            if not data:
                return b"".join(parts)
            parts.append(data)
            size += len(data)
            if size > MAX_ANSWER_BYTES:
                raise ServerFault(NONSENSE, f"an answer of more than {MAX_ANSWER_BYTES // 1024 // 1024} MiB")

    def _patience(self, deadline: float) -> None:
        left = deadline - time.perf_counter()
        if left <= 0:
            raise ServerFault(TIMEOUT, f"{self._address} is silent: it let the time for {self._waiting_for} pass")
        self._socket.settimeout(left)

    @contextlib.contextmanager
    def _faults(self, when: str):  # type: ignore[no-untyped-def]
        try:
            yield
        except (OSError, http.client.HTTPException, ValueError) as error:
            if self._cancelled is not None and self._cancelled.is_set():
                raise ServerFault(BROKEN, "cancelled") from None
            if self._out_of_time:
                problem = f"{self._address} did not finish within {self._whole_s:.0f} s"
                raise ServerFault(TIMEOUT, problem) from None
            if isinstance(error, TimeoutError):
                problem = f"{self._address} is silent: it let the time for {self._waiting_for} pass"
                raise ServerFault(TIMEOUT, problem) from None
            problem = f"the connection to {self._address} broke while {when}: {_words(error)}"
            raise ServerFault(BROKEN, problem) from None


def run_together(
    client: Client, requests: Sequence[Request], on_tokens: Callable[[int], None] | None = None
) -> tuple[Timeline, ...]:
    """Send all requests at the same moment and follow each on its own thread; results in the order given.

    The first fault ends the others, and is raised (ServerFault). An interrupt ends them all.
    """
    cancelled = Cancellation()
    ready = threading.Barrier(len(requests))
    results: list[Timeline | None] = [None] * len(requests)
    faults: list[ServerFault] = []
    lock = threading.Lock()

    def follow(index: int) -> None:
        try:
            results[index] = client.stream(requests[index], on_tokens, cancelled, ready)
        except threading.BrokenBarrierError:
            pass
        except ServerFault as fault:
            with lock:
                if not cancelled.is_set():
                    faults.append(fault)
                cancelled.set()
            ready.abort()
        except BaseException as error:
            with lock:
                faults.append(ServerFault(BROKEN, f"the client failed: {error!r}"))
                cancelled.set()
            ready.abort()
            raise

    threads = [threading.Thread(target=follow, args=(i,), daemon=True) for i in range(len(requests))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
                if faults:
                    break
            if faults:
                break
    finally:
        cancelled.set()
        ready.abort()
    if faults:
        raise faults[0]
    done = tuple(result for result in results if result is not None)
    if len(done) < len(requests):
        raise ServerFault(BROKEN, "not every sequence could be sent in time")
    return done


def _json(data: bytes, path: str) -> Any:
    try:
        return parse_json(data)
    except ValueError:
        said = data[:200].decode("utf-8", "replace")
        raise ServerFault(NONSENSE, f"{path} did not answer with JSON", server_said=said) from None


def _refused(path: str, status: int, data: bytes) -> ServerFault:
    said = data[:4000].decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        values = parse_json(data)
        error = values.get("error", values.get("detail")) if isinstance(values, dict) else None
        said = str(error.get("message", error) if isinstance(error, dict) else error) if error else said
    return ServerFault(REFUSED, f"{path} answered HTTP {status}", status, said)


def _words(error: BaseException) -> str:
    if isinstance(error, (http.client.IncompleteRead, http.client.RemoteDisconnected)):
        return "the server closed it"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
