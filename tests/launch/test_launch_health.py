"""The health check: answers, dead engines, engines that hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sm86.launch import health
from tests.launch.launch_machine import ROOT

METRICS = """# HELP vllm:num_requests_running Number of requests
vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{model_name="m",engine="0"} 2.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 3.0
vllm:iteration_tokens_total_count{engine="0"} 41.0
vllm:iteration_tokens_total_count{engine="1"} 1.0
vllm:iteration_tokens_total_sum{engine="0"} 1.5e+03
process_open_fds 7
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))


class Server(ThreadingHTTPServer):
    answers: dict[str, tuple[int, str]]


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = self.server.answers[self.path]  # type: ignore[attr-defined]
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    made = Server(("127.0.0.1", 0), Handler)
    made.answers = {"/health": (200, ""), "/metrics": (200, METRICS)}
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def test_samples_are_summed_by_name() -> None:
    found = health.samples(METRICS)
    assert found[health.STEPS] == 42
    assert [found[name] for name in health.REQUESTS] == [1, 2]


def test_a_healthy_server(server: Server) -> None:
    assert health.check("127.0.0.1", server.server_port) == ""


@pytest.mark.parametrize(("status", "words"), [(503, "the engine is dead"), (500, "answers 500"), (404, "answers 404")])
def test_a_server_that_says_no(server: Server, status: int, words: str) -> None:
    server.answers["/health"] = (status, "")
    assert words in health.check("127.0.0.1", server.server_port)


def test_nobody_there(server: Server) -> None:
    port = server.server_port
    server.shutdown()
    server.server_close()
    assert f"no answer from 127.0.0.1:{port}" in health.check("127.0.0.1", port)


@pytest.mark.parametrize("answer", [(500, ""), (200, ""), (200, "nonsense\xff")])
def test_metrics_that_say_nothing_are_no_fault(server: Server, answer: tuple[int, str]) -> None:
    server.answers["/metrics"] = answer
    for _ in range(2):
        assert health.check("127.0.0.1", server.server_port) == ""


def busy(steps: float, running: float = 1, waiting: float = 0) -> dict[str, float]:
    return {health.STEPS: steps, health.REQUESTS[0]: running, health.REQUESTS[1]: waiting}


@pytest.mark.parametrize(("running", "waiting"), [(4, 0), (0, 3)])
def test_requests_without_a_step_become_unhealthy(running: float, waiting: float) -> None:
    problem, state = health.judge(1000, busy(7, running, waiting), None)
    for now in (1010, 1000 + health.STALL_S - 1):
        problem, state = health.judge(now, busy(7, running, waiting), state)
        assert problem == ""
    problem, state = health.judge(1000 + health.STALL_S, busy(7, running, waiting), state)
    assert "no engine step for 300 s" in problem
    # and healthy again with the next step
    assert health.judge(1400, busy(8, running, waiting), state)[0] == ""


def test_an_idle_server_is_healthy_for_ever_and_its_idle_time_does_not_count() -> None:
    _, state = health.judge(0, busy(7, 0), None)
    problem, state = health.judge(100_000, busy(7, 0), state)
    assert problem == ""
    assert health.judge(100_010, busy(7, 1), state)[0] == ""


def test_a_clock_set_back_makes_no_alarm() -> None:
    _, state = health.judge(10_000, busy(7), None)
    problem, state = health.judge(50, busy(7), state)
    assert problem == "" and state["since"] == 50


def test_a_stall_is_seen_across_checks(server: Server, tmp_path: Path) -> None:
    port = server.server_port
    assert health.check("127.0.0.1", port) == ""
    path = health._state_file(port)
    assert json.loads(path.read_text())["steps"] == 42
    path.write_text(json.dumps({"steps": 42, "since": time.time() - 400}))
    assert "3 requests and no engine step" in health.check("127.0.0.1", port)
    path.write_text("damaged")
    assert health.check("127.0.0.1", port) == ""


@pytest.mark.parametrize(
    ("bound", "reached"),
    [(None, "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.5", "10.0.0.5"), ("", "127.0.0.1")],
)
def test_the_address_it_asks(bound: str | None, reached: str) -> None:
    health.announce(bound, 8123)
    assert health._address(None) == (reached, 8123)
    assert health._address(9000) == ("127.0.0.1", 9000)


def test_without_a_word_from_the_launcher_the_usual_port() -> None:
    assert health._address(None) == ("127.0.0.1", 8000)
    health.serve_file().write_text("{}")
    assert health._address(None) == ("127.0.0.1", 8000)


def test_as_the_container_runs_it(server: Server, tmp_path: Path) -> None:
    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "sm86.launch.health", "--port", str(server.server_port)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
        )

    good = run()
    assert (good.returncode, good.stdout, good.stderr) == (0, "", "")
    server.answers["/health"] = (503, "")
    bad = run()
    assert (bad.returncode, bad.stdout) == (1, "unhealthy: /health answers 503: the engine is dead\n")
    assert bad.stderr == ""
