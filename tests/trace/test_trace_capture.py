"""Capturing on a running server: what it needs, how it goes, and every way in which it cannot."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sm86.boot.state import MISSING, RUNNING, EngineState
from sm86.cli import trace_capture as cli
from sm86.errors import CheckFailed, CouldNotRun
from sm86.host import trace_files
from sm86.manifest import format_manifest
from sm86.measure import profiled
from sm86.measure.client import Client, Request, parse_address
from sm86.measure.progress import Silent
from sm86.record import load
from sm86.spec import load_envelope
from sm86.trace.capture import Profiler, decode_steps, missing_ranks, profiler_of, shape_of, worker_files
from tests.measure import replay

DATA = Path(__file__).parent / "data"
GPU_TRACE = DATA / "t07_tl_vllm_rocm_full_decode.json.gz"
CONFIG = {"profiler": "torch", "torch_profiler_dir": "/traces", "delay_iterations": 5, "max_iterations": 50}


# --- pure ------------------------------------------------------------------------------------------------------


def test_the_running_servers_profiler_is_read() -> None:
    assert profiler_of(CONFIG, "sm86-64k") == Profiler("/traces", 5, 50)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "started without a profiler"),
        ({"profiler": None}, "started without a profiler"),
        ({**CONFIG, "profiler": "cuda"}, "not torch's"),
        ({**CONFIG, "torch_profiler_dir": "s3://bucket"}, "no folder of that machine"),
        ({**CONFIG, "torch_profiler_dir": ""}, "no folder"),
        ({**CONFIG, "max_iterations": 0}, "no limit of steps"),
        ({**CONFIG, "max_iterations": True}, "no limit of steps"),
    ],
)
def test_a_profiler_that_cannot_be_used_is_refused_with_the_command_that_mends_it(config, words: str) -> None:
    with pytest.raises(CouldNotRun, match=words) as caught:
        profiler_of(config, "sm86-64k", " --engine local")
    assert "invoke up --envelope sm86-64k --engine local --override SM86_PROFILE_STEPS=50" in caught.value.mend


def test_every_recorded_step_finds_tokens_to_decode() -> None:
    shape = shape_of(Profiler("/t", 5, 50), 4, 81920, 1024)
    assert shape.sequences == 4
    assert shape.decode_tokens > 5 + 50 + 1
    with pytest.raises(CouldNotRun, match="exceed the context"):
        shape_of(Profiler("/t", 5, 50), 1, 2048, 2000)
    with pytest.raises(CouldNotRun, match="the context has 2048"):
        shape_of(Profiler("/t", 5, 2000), 1, 2048, 32)


def test_the_newest_file_of_each_rank_is_taken_and_the_frontends_is_not() -> None:
    names = [
        "dp0_pp0_tp0_dcp0_ep0_rank0.100.pt.trace.json.gz",
        "dp0_pp0_tp0_dcp0_ep0_rank0.900.pt.trace.json.gz",
        "dp0_pp0_tp1_dcp0_ep1_rank1.500.pt.trace.json.gz",
        "1796070634776734847-rank-2.1796070674611443311.pt.trace.json.gz",
        "host_12.async_llm.901.pt.trace.json.gz",
        "profiler_out_0.txt",
    ]
    found = worker_files(names)
    assert found == {0: names[1], 1: names[2], 2: names[3]}
    assert missing_ranks(found, 4) == (3,)


@pytest.mark.parametrize("size", [1, 7, 64, 4096])
def test_decode_steps_are_counted_whatever_the_chunks(size: int) -> None:
    names = ["execute_context_0(0)_generation_2(2)"] * 20 + ["execute_context_1(37)_generation_0(0)"] * 3
    names += ["execute_71_context_0(sq0sk0)_generation_4(sq4sk90)", "other"]
    text = json.dumps({"traceEvents": [{"ph": "X", "name": name, "ts": 1.5} for name in names]}).encode()
    assert decode_steps(text[at : at + size] for at in range(0, len(text), size)) == 21


# --- files -----------------------------------------------------------------------------------------------------


def test_only_files_of_this_capture_are_moved(tmp_path: Path) -> None:
    source, target = tmp_path / "from", tmp_path / "to"
    source.mkdir()
    old, new = source / "rank0.1.pt.trace.json.gz", source / "rank0.2.pt.trace.json.gz"
    for path in (old, new):
        path.write_bytes(b"x")
    import os

    os.utime(old, (1000, 1000))
    assert trace_files.from_folder(source, time.time() - 60, target) == (new.name,)
    assert old.exists() and not new.exists() and (target / new.name).exists()
    assert trace_files.from_folder(tmp_path / "nowhere", 0, target) == ()


def test_a_containers_files_are_taken_by_their_last_name_alone(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content, when in (
            ("sm86-traces/rank0.2.pt.trace.json.gz", b"new" * 5000, 2000),
            ("sm86-traces/rank0.1.pt.trace.json.gz", b"old", 1000),
            ("sm86-traces/../../escape.pt.trace.json.gz", b"evil", 2000),
            ("/etc/.hidden", b"evil", 2000),
        ):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), when
            archive.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("sm86-traces/link")
        link.type, link.linkname, link.mtime = tarfile.SYMTYPE, "/etc/passwd", 2000
        archive.addfile(link)
    data = buffer.getvalue()

    ran: list[list[str]] = []

    class Api:
        def get_archive(self, container: str, folder: str):
            return iter([data[at : at + 777] for at in range(0, len(data), 777)]), {}

        def exec_create(self, container: str, argv: list[str]):
            ran.append(argv)
            return {"Id": "1"}

        def exec_start(self, made: str) -> bytes:
            return b""

    class Docker:
        def ask(self, question):
            return question(Api())

    target = tmp_path / "a" / "to"
    names = trace_files.from_container(Docker(), "c", "/cache/traces", 1990.0, target)  # type: ignore[arg-type]
    assert names == ("rank0.2.pt.trace.json.gz", "escape.pt.trace.json.gz")
    assert (target / names[0]).read_bytes() == b"new" * 5000
    assert ran == [["rm", "-f", "--", *(f"/cache/traces/{name}" for name in names)]]
    assert sorted(path.name for path in target.iterdir()) == sorted(names)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != target] == []


def test_a_broken_archive_is_told(tmp_path: Path) -> None:
    class Docker:
        def ask(self, question):
            return iter([b"no tar at all" * 100]), {}

    with pytest.raises(CouldNotRun, match="could not be copied"):
        trace_files.from_container(Docker(), "c", "/t", 0.0, tmp_path)  # type: ignore[arg-type]


# --- the whole command against a server on loopback -------------------------------------------------------------


class Server:
    """A running server as the command sees it."""

    kind = "local"

    def __init__(self, envelope, url: str, log: str, up: bool = True) -> None:
        self.envelope, self.base_url, self._log, self._up = envelope, url, log, up

    def state(self) -> EngineState:
        return EngineState(RUNNING if self._up else MISSING)

    def describe(self) -> str:
        return "process 1"

    def log_chunks(self, follow: bool, tail: int | None = None, this_run: bool = False):
        yield self._log.encode()


@pytest.fixture
def served(monkeypatch, tmp_path):
    """A server that profiles: what it was asked, and what it writes when told to stop."""
    calls: list[tuple[str, int]] = []
    writes: list[Path] = [GPU_TRACE]
    folder = tmp_path / "worker-traces"
    right = replay._Handler.do_POST

    def do_post(self):
        if self.path not in ("/start_profile", "/stop_profile"):
            return right(self)
        self.rfile.read(int(self.headers["Content-Length"]))
        calls.append((self.path, self.replay.running))
        if self.path == "/stop_profile":
            folder.mkdir(exist_ok=True)
            for rank, source in enumerate(writes):
                target = folder / f"dp0_pp0_tp{rank}_dcp0_ep0_rank{rank}.{time.time_ns()}.pt.trace.json.gz"
                shutil.copyfile(source, target)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    monkeypatch.setattr(replay._Handler, "do_POST", do_post)
    base = load_envelope("sm86-80k-4seq")
    envelope = replace(
        base,
        serve=replace(
            base.serve,
            served_model_name=replay.MODEL,
            context=replay.CONTEXT,
            sequences=2,
            tensor_parallel=1,
            block_size=16,
        ),
        bench=replace(base.bench, prompt_tokens=400),
    )
    monkeypatch.setattr(cli, "load_envelope", lambda name: envelope)
    from sm86.host import health

    monkeypatch.setattr(health, "health", lambda url: 200)

    def use(behaviour=None, steps: int = 20, ranks_written: int = 1, config: dict | None = None):
        writes[:] = [GPU_TRACE] * ranks_written
        given = {**CONFIG, "torch_profiler_dir": str(folder), "max_iterations": steps} if config is None else config
        argv = ["serve", "m", "--profiler-config", json.dumps(given)] if given else ["serve", "m"]
        log = "\n".join(format_manifest({"argv": argv}))
        context = replay.serving(behaviour)
        found = context.__enter__()
        monkeypatch.setattr(cli, "open_engine", lambda *_, **__: Server(envelope, found.url, log))
        closers.append(context)
        return found

    closers: list = []
    use.calls, use.folder, use.envelope = calls, folder, envelope  # type: ignore[attr-defined]
    yield use
    for context in closers:
        context.__exit__(None, None, None)


def test_it_records_while_all_sequences_decode_and_analyses_what_comes(served, tmp_path, capsys) -> None:
    served()
    png = tmp_path / "step.png"
    code = cli.capture("e", "local", str(tmp_path / "out"), results_dir=tmp_path, png=str(png))
    said = capsys.readouterr().out
    assert code == 0, said
    assert [path for path, _ in served.calls] == ["/start_profile", "/stop_profile"]
    assert served.calls[0][1] == 2, "both sequences were decoding when it started"
    assert served.calls[1][1] == 0, "and all had ended when it was stopped"
    assert len(list((tmp_path / "out").iterdir())) == 1 and not any(served.folder.iterdir())
    record = load(next((tmp_path / served.envelope.name).glob("*-trace.json")))
    assert {v.name: v.state for v in record.verdicts} == {"captured": "pass", "gpu-kernels": "pass"}
    assert record.details["units"] > 0 and record.details["sent"]["sequences"] == 2
    assert any(number.name == "span" for number in record.numbers)
    assert "1 trace in" in said and png.exists()


def test_a_rank_without_a_file_is_a_finding(served, tmp_path, monkeypatch, capsys) -> None:
    served()
    two = replace(served.envelope, serve=replace(served.envelope.serve, tensor_parallel=2))
    monkeypatch.setattr(cli, "load_envelope", lambda name: two)
    assert cli.capture("e", "local", str(tmp_path / "out"), results_dir=tmp_path) == 1
    assert "no trace of rank 1" in capsys.readouterr().out


def test_a_profiler_that_writes_nothing_is_told(served, tmp_path) -> None:
    served(ranks_written=0)
    with pytest.raises(CheckFailed, match="left no trace in"):
        cli.capture("e", "local", str(tmp_path / "out"), results_dir=tmp_path)


def test_a_server_that_dies_while_it_records_is_told_and_the_profiler_is_stopped(served, tmp_path) -> None:
    served(replay.Behaviour(fault="reset", fault_phase="measured", fault_after=40))
    with pytest.raises(CheckFailed, match="failed while it was profiled"):
        cli.capture("e", "local", str(tmp_path / "out"), results_dir=tmp_path)
    assert served.calls[-1][0] == "/stop_profile"


def test_an_interrupt_stops_the_profiler() -> None:
    """Ctrl-C in the middle: the server must not go on recording."""
    asked: list[str] = []

    class Interrupted(Client):
        def post(self, path: str) -> None:
            asked.append(path)
            if path == "/start_profile":
                raise KeyboardInterrupt

    with replay.serving(replay.Behaviour(rate=100.0)) as server:
        address = parse_address(server.url)
        body = {"model": replay.MODEL, "prompt": "Chronicle x-1, a b c", "max_tokens": 400, "min_tokens": 400}
        request = Request("/v1/completions", {**body, "ignore_eos": True, "temperature": 0.0}, 400, 10)
        with pytest.raises(KeyboardInterrupt):
            profiled.record(Client(address), Interrupted(address), [request], 4, "e", Silent())
    assert asked == ["/start_profile", "/stop_profile"]
    assert threading.active_count() < 50


def test_without_a_profiler_nothing_is_sent(served, tmp_path) -> None:
    found = served(config={})
    with pytest.raises(CouldNotRun, match="started without a profiler"):
        cli.capture("e", "local", results_dir=tmp_path)
    assert served.calls == [] and found.requests == []


def test_a_server_without_the_endpoint_is_told(served, tmp_path, monkeypatch) -> None:
    served()
    right = replay._Handler.do_POST

    def none(self):
        if self.path == "/start_profile":
            self.rfile.read(int(self.headers["Content-Length"]))
            self.plain({"detail": "Not Found"}, 404)
        else:
            right(self)

    monkeypatch.setattr(replay._Handler, "do_POST", none)
    with pytest.raises(CheckFailed, match="has no /start_profile"):
        cli.capture("e", "local", results_dir=tmp_path)


def test_no_server_and_no_manifest_are_told(served, monkeypatch, tmp_path) -> None:
    served()
    monkeypatch.setattr(
        cli, "open_engine", lambda *_, **__: Server(served.envelope, "http://127.0.0.1:1", "", up=False)
    )
    with pytest.raises(CouldNotRun, match="does not serve") as caught:
        cli.capture("e", "local", results_dir=tmp_path)
    assert "SM86_PROFILE_STEPS=50" in caught.value.mend
    monkeypatch.setattr(cli, "open_engine", lambda *_, **__: Server(served.envelope, "http://127.0.0.1:1", "no lines"))
    with pytest.raises(CouldNotRun, match="has no manifest"):
        cli.capture("e", "local", results_dir=tmp_path)


def test_a_dry_run_sends_nothing(served, tmp_path, capsys) -> None:
    found = served()
    assert cli.capture("e", "local", results_dir=tmp_path, dry_run=True) == 0
    assert "record 20 steps after 5 others" in capsys.readouterr().out
    assert served.calls == [] and found.requests == []
    assert cli.capture("e", "local", results_dir=tmp_path, dry_run=True, json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["task"]) == ("sm86.dry-run", "trace.capture") and "nothing was sent" in told["lines"][
        0
    ]


def test_a_trace_of_the_cpu_engine_says_that_it_has_no_gpu_kernels(served, tmp_path, monkeypatch, capsys) -> None:
    served()
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": "execute_context_0(0)_generation_2(2)",
            "ts": t,
            "dur": 5,
            "pid": 1,
        }
        for t in range(20)
    ]
    events += [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": t, "dur": 1, "pid": 1, "tid": 1} for t in range(20)
    ]
    text = json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}).encode()
    made = tmp_path / "cpu.json.gz"
    made.write_bytes(gzip.compress(text))
    monkeypatch.setattr(shutil, "copyfile", lambda _, target: Path(target).write_bytes(made.read_bytes()))
    cpu = replace(served.envelope, engine="cpu")
    monkeypatch.setattr(cli, "load_envelope", lambda name: cpu)
    assert cli.capture("e", "local", str(tmp_path / "out"), results_dir=tmp_path) == 0
    said = capsys.readouterr().out
    assert "there are no GPU kernels in it" in said and "[CPU]" in said
    record = load(next((tmp_path / cpu.name).glob("*-trace.json")))
    assert record.details["decode_steps"] == 20 and record.numbers == ()
