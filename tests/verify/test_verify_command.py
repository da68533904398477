"""The command: exit codes, words, JSON, records, and every input that is no log."""

import gzip
import io
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sm86.boot.state import MISSING, RUNNING, EngineState
from sm86.cli import engines
from sm86.cli import verify as command
from sm86.errors import CouldNotRun
from sm86.record import load
from sm86.record.schema import from_json
from sm86.verify.record import report_to_record
from sm86.verify.verify import verify_log
from tests.verify.verify_logs import GOOD, good, load_envelope, read, replaced


@pytest.fixture
def log(tmp_path) -> Path:
    path = tmp_path / "server.log"
    path.write_text(good(), newline="")
    return path


def test_a_good_log_gives_0_and_a_record(log, tmp_path, capsys):
    assert command.verify(GOOD, str(log), results=tmp_path / "results") == 0
    out = capsys.readouterr().out
    assert f"{GOOD}: verified (20 pass, 1 not applicable)" in out
    assert "\x1b" not in out and "\r" not in out
    (path,) = (tmp_path / "results" / GOOD).glob("*-verify.json")
    record = load(path)
    assert (record.kind, record.envelope, record.conditions.mark) == ("verify", GOOD, "")
    assert record.conditions.git_rev and record.conditions.vllm_version == "0.26.0"
    assert len(record.conditions.gpus) == 8
    assert record.conditions.overrides == {"FUSE_ALLREDUCE_RMS": "1"}
    assert {verdict.state for verdict in record.verdicts} == {"pass", "not applicable"}


def test_a_finding_gives_1_and_says_what_to_do(log, capsys):
    log.write_text(replaced(good(), "kv_cache_dtype=fp8_ds_mla, device", "kv_cache_dtype=fp8, device"), newline="")
    assert command.verify("sm86-262k", str(log), results=None) == 1
    out = capsys.readouterr().out
    assert "NOT verified" in out and "mend: " in out


def test_json_is_one_document_with_schema_and_lines(log, capsys):
    assert command.verify(GOOD, str(log), json=True, results=None) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["schema"], values["version"], values["passed"]) == ("sm86.verify", 1, True)
    ready = next(one for one in values["findings"] if one["rule"] == "ready")
    assert ready["state"] == "pass" and ready["evidence"][0]["line"] > 100
    assert values["counts"] == {"pass": 20, "fail": 0, "not seen": 0, "not applicable": 1}


def test_a_terminal_gets_a_table(log, capsys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    assert command.verify(GOOD, str(log), results=None) == 0
    assert "\x1b[" in screen.getvalue() and "graphs-captured" in screen.getvalue()


def test_standard_input_is_read(monkeypatch, capsys):
    class Pipe:
        buffer = io.BytesIO(good().encode())

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stdin", Pipe())
    assert command.verify(GOOD, "-", results=None) == 0


def test_a_terminal_as_standard_input_is_refused(monkeypatch):
    class Keyboard:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Keyboard())
    with pytest.raises(CouldNotRun, match="terminal"):
        command.verify(GOOD, "-", results=None)


def test_a_log_may_be_handed_over_in_chunks():
    data = good().encode()
    assert command.verify(GOOD, None, chunks=[data[:5000], data[5000:]], results=None) == 0


class Server:
    """An engine of the command line, as far as verifying needs it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def state(self) -> EngineState:
        return EngineState(self.kind)

    def log_chunks(self, follow: bool) -> list[bytes]:
        assert not follow
        return [good().encode()]


def test_without_a_log_the_servers_own_is_judged(monkeypatch):
    monkeypatch.setattr(engines, "open_engine", lambda envelope, engine: Server(RUNNING))
    assert command.verify(GOOD, None, results=None) == 0
    monkeypatch.setattr(engines, "open_engine", lambda envelope, engine: Server(MISSING))
    with pytest.raises(CouldNotRun, match="no server"):
        command.verify(GOOD, None, results=None)


NO_LOGS = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\n\t\r\n", "is empty"),
    "nul bytes": (b"\x7fELF\x00\x01" * 50, "binary"),
    "noise": (bytes(range(128, 256)) * 40, "binary"),
    "gzip": (gzip.compress(good().encode()), "gzip"),
    "utf-16": (good().encode("utf-16"), "UTF-16"),
    "another file": (b"[tool.poetry]\nname = 'x'\n" * 50, "no line of vLLM"),
    "an access log of something else": (b'10.0.0.1 - - [1/Jan] "GET / HTTP/1.1" 200\n' * 50, "no line of vLLM"),
}


@pytest.mark.parametrize("name", NO_LOGS)
def test_what_is_no_log_is_refused_with_a_mend(name, tmp_path):
    data, word = NO_LOGS[name]
    path = tmp_path / "x.log"
    path.write_bytes(data)
    with pytest.raises(CouldNotRun, match=word) as raised:
        command.verify(GOOD, str(path), results=tmp_path / "results")
    assert raised.value.exit_code == 2 and raised.value.mend
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("name", NO_LOGS)
def test_what_is_no_log_is_refused_in_chunks_of_any_size(name, size):
    data, word = NO_LOGS[name]
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    with pytest.raises(CouldNotRun, match=word):
        verify_log(load_envelope(GOOD), chunks)


def test_missing_folder_and_unreadable_logs_are_refused(tmp_path, monkeypatch):
    with pytest.raises(CouldNotRun, match="No such file"):
        command.verify(GOOD, str(tmp_path / "none.log"), results=None)
    with pytest.raises(CouldNotRun, match="folder"):
        command.verify(GOOD, str(tmp_path), results=None)
    secret = tmp_path / "secret.log"
    secret.write_text(good())

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(command, "open_regular", refuse)
    with pytest.raises(CouldNotRun, match="Permission denied"):
        command.verify(GOOD, str(secret), results=None)


def test_unknown_envelope_and_engine_are_refused():
    with pytest.raises(CouldNotRun, match="there is no envelope"):
        command.verify("sm86-26k", "-", results=None)
    with pytest.raises(CouldNotRun, match="there is no engine"):
        command.verify(GOOD, None, engine="podman", results=None)


def test_a_few_stray_bytes_do_not_make_a_log_binary():
    data = good().encode().replace(b"startup complete.", b"startup complete.\xff\xfe", 1)
    assert verify_log(load_envelope(GOOD), [data], None).passed


def test_a_traffic_only_log_of_vllm_is_a_log_of_which_nothing_was_seen():
    line = b'(APIServer pid=1) INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK\n'
    report = verify_log(load_envelope(GOOD), [line * 100])
    assert report.exit_code == 1
    assert report.counts()["pass"] == 0


def test_a_report_becomes_a_record_that_can_be_read_again():
    envelope = load_envelope("cpu-smoke")
    report = verify_log(envelope, [read("recorded_cpu-smoke")])
    record = report_to_record(report, envelope, datetime(2026, 1, 2, tzinfo=UTC), 0.25)
    assert record.conditions.mark == "CPU"
    assert record.conditions.vllm_version == "0.28.0"
    assert record.conditions.image_id is None and record.conditions.gpus == ()
    again = from_json(json.loads(json.dumps(record.to_json())), "x")
    assert json.dumps(again.to_json()) == json.dumps(record.to_json())
    assert again.conditions == record.conditions and again.verdicts == record.verdicts


def test_a_plugin_that_was_forced_onto_other_gpus_marks_the_record():
    envelope = load_envelope(GOOD)
    log = good() + "(Worker_TP0 pid=4301) [sm86] backend forced=true\n"
    record = report_to_record(verify_log(envelope, [log.encode()]), envelope, datetime(2026, 1, 2, tzinfo=UTC), 0.25)
    assert record.conditions.mark == "other GPU"


def test_importing_the_command_is_cheap():
    code = "import sys, sm86.cli.verify; print([m for m in ('rich', 'torch', 'docker', 'jinja2') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
