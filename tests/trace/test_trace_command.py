"""The commands: words, JSON, codes, pictures, and every kind of bad input."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sm86.cli.guard import guard
from sm86.cli.trace import diff, trace
from sm86.trace.testing.generator import Recipe, write, write_ranks

LAYERS = ("SWA", "CSA", "HCA")
DATA = Path(__file__).parent / "data"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "rank0.json"
    write(path, Recipe(steps=5, layers=LAYERS))
    return path


def test_the_table_says_what_was_found_and_left_out(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trace(str(made), tpot=0.5) == 0
    out = capsys.readouterr().out
    assert "5 steps averaged (decode 1); left out: 1 partial" in out
    assert "1 orphan graph" in out and "1 launch without GPU events" in out
    assert "layers found: 3 (1 CSA, 1 HCA, 1 SWA)" in out
    assert "TP all-reduce per layer: median" in out and "other, by time:" in out
    assert "times the unprofiled 0.5 ms" in out
    assert "\x1b" not in out and "\r" not in out
    row = next(line for line in out.splitlines() if line.strip().startswith("TP all-reduce "))
    assert row.split()[2:] and row.split()[2] == "35" and row.split()[4] == "7"


def test_json_has_schema_version_and_the_key_s_names(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trace([str(made)], json=True) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["schema"], value["version"]) == ("sm86.trace", 1)
    file = value["files"][0]
    key = json.loads((DATA / "expected.json").read_text())
    assert set(file["counts"]) == set(next(iter(key.values())))
    view = file["steps"]
    assert view["layers"] == {"CSA": 1, "HCA": 1, "SWA": 1}
    assert sum(bucket["share"] for bucket in view["buckets"].values()) == pytest.approx(1, abs=1e-4)
    assert sum(bucket["total_us"] for bucket in view["buckets"].values()) == pytest.approx(view["total_us"])
    assert [row["layer"] for row in view["tp_all_reduce_per_layer_us"]] == [-1, 0, 1, 2]


def test_ranks_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    write_ranks(paths, Recipe(steps=4, layers=LAYERS, world=2))
    assert trace([str(tmp_path)]) == 0
    assert "2 ranks over 4 common steps" in capsys.readouterr().out
    assert trace([str(tmp_path)], json=True) == 0
    assert json.loads(capsys.readouterr().out)["ranks"]["units"] == 4
    assert trace([str(tmp_path)], rank="1") == 0
    assert "common" not in capsys.readouterr().out
    assert trace([str(paths[0])]) == 0
    out = capsys.readouterr().out
    assert "1 other ranks lie beside it" in out and "waiting for the slowest rank is part of it" in out


def test_a_picture_of_one_step(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "deep" / "step.png"
    assert trace(str(made), png=str(picture)) == 0
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) > 20_000
    assert "drawn" in capsys.readouterr().out


def test_no_matplotlib_is_said(made: Path, tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from sm86.cli.guard import guard; from sm86.cli.trace import trace\n"
        "sys.exit(guard(lambda: trace(sys.argv[1], png=sys.argv[2])))"
    )
    picture = tmp_path / "x.png"
    done = subprocess.run([sys.executable, "-c", script, str(made), str(picture)], capture_output=True, text=True)
    assert done.returncode == 2 and "plot extra" in done.stderr and "fault of the program" not in done.stderr
    assert not picture.exists()


def test_a_trace_without_graphs_is_a_finding_with_its_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(DATA / "t05_tl_h100_qwen_eager.json.gz")
    assert trace(path) == 1
    out = capsys.readouterr().out
    assert "no CUDA graph launch" in out and "FULL_DECODE_ONLY" in out and "flash_fwd_kernel" in out
    assert trace(path, json=True) == 1
    assert json.loads(capsys.readouterr().out)["files"][0]["counts"]["gpu_events"] == 1707


def test_two_traces_and_a_saved_answer(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trace(str(made), json=True) == 0
    saved = tmp_path / "saved.json"
    saved.write_text(capsys.readouterr().out)
    assert diff(str(saved), str(made)) == 0
    assert "within the spread" in capsys.readouterr().out
    other = tmp_path / "rank1.json"
    write(other, Recipe(steps=5, layers=(*LAYERS, "CSA"), annotations=False))
    assert diff(str(made), str(other), json=True) == 1
    value = json.loads(capsys.readouterr().out)
    assert value["moved"] and value["unit"] == "graph" and value["schema"] == "sm86.trace_diff"


CPU_ONLY = json.dumps(
    {"deviceProperties": [], "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}]}
)
CHROME = json.dumps(
    {"traceEvents": [{"ph": "B", "cat": "toplevel", "name": "Thread::Run", "ts": 1, "pid": 1, "tid": 2}]}
)
TENSORFLOW = json.dumps(
    {
        "traceEvents": [
            {"ph": "X", "pid": 3, "tid": 1, "ts": 1.5, "dur": 1, "name": "MatMul", "args": {"correlation_id": "1"}}
        ]
    }
)
BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\n", "is empty"),
    "text": (b"INFO 11-30 vllm started\n", "not a JSON trace"),
    "a page": (b"<!DOCTYPE html><html></html>", "HTML"),
    "sqlite": (b"SQLite format 3\0" + b"\0" * 100, "Nsight"),
    "zip": (b"PK\x03\x04" + b"\0" * 100, "zip"),
    "zstd": (b"\x28\xb5\x2f\xfd" + b"\0" * 100, "zstd"),
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "LFS"),
    "binary": (bytes(range(1, 200)), "not a JSON trace"),
    "another json": (b'{"a": [1, 2, 3]}', "no list of traceEvents"),
    "a number": (b"17", "not a JSON trace"),
    "an empty list": (b"[]", "no whole event"),
    "no events": (b'{"traceEvents": []}', "no whole event"),
    "only a head": (b'{"schemaVersion": 1, "deviceProperties": [', "no list of traceEvents"),
    "cut in the first event": (b'{"traceEvents": [{"ph": "X", "cat": "ker', "no whole event"),
    "cpu only": (CPU_ONLY.encode(), "CPU alone"),
    "chrome": (CHROME.encode(), "another tool"),
    "tensorflow": (TENSORFLOW.encode(), "another tool"),
    "a list of numbers": (b'{"traceEvents": [1, 2, 3]}', "no whole event"),
    "gzip of nothing": (gzip.compress(b""), "is empty"),
    "gzip of text": (gzip.compress(b"hello"), "not a JSON trace"),
    "half a gzip header": (b"\x1f\x8b\x08", "is empty"),
    "deep nesting": (b'{"traceEvents": [' + b"[" * 100_000, "no whole event"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_line_and_a_mend(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    content, words = BAD[kind]
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    assert guard(lambda: trace(str(path))) == 2
    out, err = capsys.readouterr()
    what, mend = err.strip().splitlines()
    assert words in what and mend.startswith("mend: ") and "Traceback" not in err and not out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"paths": "nowhere.json"}, "there is no nowhere.json"),
        ({"paths": []}, "no trace was named"),
        ({"paths": "{made}", "rank": "x"}, "--rank"),
        ({"paths": "{made}", "rank": -1}, "--rank"),
        ({"paths": "{made}", "tpot": "fast"}, "--tpot"),
        ({"paths": "{made}", "tpot": 0}, "--tpot"),
        ({"paths": "{made}", "png": "x.svg"}, ".png"),
        ({"paths": ["{made}", "{made}"]}, "both of rank 0"),
    ],
)
def test_bad_arguments(made: Path, arguments: dict, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    paths = arguments["paths"]
    filled = [p.format(made=made) for p in paths] if isinstance(paths, list) else paths.format(made=made)
    assert guard(lambda: trace(**{**arguments, "paths": filled})) == 2
    err = capsys.readouterr().err
    assert words in err and "a fault of the program" not in err


@pytest.mark.parametrize(
    "times",
    [
        '"ts": 0, "dur": 5',
        '"ts": 5, "dur": 0',
        '"ts": 5, "dur": -3',
        '"ts": 1e300, "dur": 5',
        '"ts": "x", "dur": 5',
        '"dur": 5',
    ],
)
def test_times_that_are_none_are_counted_and_left_out(
    tmp_path: Path, times: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = (
        '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 9, "dur": 2, "args": {"correlation": 5}}'
    )
    bad = good.replace('"ts": 9, "dur": 2', times)
    launch = '{"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 1, "args": {"correlation": 5}}'
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [' + ", ".join([launch, good, bad, good]) + "]}")
    assert trace(str(path), json=True) == 0
    file = json.loads(capsys.readouterr().out)["files"][0]
    assert file["left_out"]["events_without_time"] == 1
    assert file["graphs"]["total_us"] == 4.0 and file["counts"]["graph_gpu_events"] == 3


def test_a_graph_without_any_time_is_no_graph_to_average(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 0, "dur": 0, "args": {"correlation": 5}}
    launch = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaGraphLaunch",
        "ts": 1,
        "dur": 1,
        "args": {"correlation": 5},
    }
    path.write_text(json.dumps({"traceEvents": [launch, event]}))
    assert trace(str(path)) == 1
    assert "1 GPU events without a time" in capsys.readouterr().out


def test_a_pipe_is_read_like_a_file(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(made.read_bytes()), daemon=True)
    writer.start()
    assert trace(str(pipe)) == 0
    writer.join()
    assert "5 steps averaged" in capsys.readouterr().out


def test_a_pipe_cannot_be_compared(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert guard(lambda: diff(str(pipe), str(made))) == 2
    assert "it is a FIFO" in capsys.readouterr().err


def test_names_send_nothing_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.json"
    odd = "odd\x1b[2J"
    times = range(100, 300, 10)
    kernels = [
        {"ph": "X", "cat": "kernel", "name": odd, "ts": ts, "dur": 5, "args": {"correlation": ts}} for ts in times
    ]
    launches = [
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaGraphLaunch",
            "ts": ts - 1,
            "dur": 1,
            "args": {"correlation": ts},
        }
        for ts in times
    ]
    path.write_text(
        json.dumps(
            {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": odd}], "traceEvents": kernels + launches}
        )
    )
    assert trace(str(path)) == 0
    out = capsys.readouterr().out
    assert out.count("odd\\x1b[2J") >= 2 and "\x1b" not in out


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Ten times the steps in a small window may cost what is kept per step, not what the events weigh."""
    script = (
        "import sys, resource; from pathlib import Path; from sm86.trace.analysis import analyse;"
        "analyse(Path(sys.argv[1]), window=4000); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    sizes = []
    for steps in (20, 200):
        path = tmp_path / f"{steps}.json"
        write(path, Recipe(steps=steps, layers=LAYERS, host_events=500))
        done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
        sizes.append((int(done.stdout.split()[0]), path.stat().st_size))
    grown = (sizes[1][0] - sizes[0][0]) * 1024
    assert sizes[1][1] - sizes[0][1] > 30_000_000
    assert grown < 6_000_000


def test_without_msgspec_the_answer_is_the_same(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = (
        "import sys; sys.modules['msgspec'] = sys.modules['isal'] = None\n"
        "from sm86.cli.trace import trace; sys.exit(trace(sys.argv[1], json=True))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(made)], capture_output=True, text=True, check=True)
    assert trace(str(made), json=True) == 0
    assert json.loads(done.stdout) == json.loads(capsys.readouterr().out)


def test_importing_the_command_pulls_in_nothing_heavy() -> None:
    heavy = "('rich', 'msgspec', 'matplotlib', 'numpy')"
    script = f"import sys; import sm86.cli.trace; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_rich_s_table_fits_a_narrow_terminal(made: Path) -> None:
    import io

    from rich.console import Console

    from sm86.trace.analysis import analyse
    from sm86.trace.table import print_result

    out = io.StringIO()
    print_result(Console(file=out, width=80, markup=False, highlight=False), analyse(made))
    table = [line for line in out.getvalue().splitlines() if "%" in line]
    assert len(table) == 14 and all(len(line) <= 80 for line in table)
