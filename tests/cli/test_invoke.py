"""The commands as a person types them: exit codes and words of wrong arguments, and the list of tasks."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def invoke(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "invoke", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("nosuch",),
        ("verify",),
        ("verify", "--nosuch"),
        ("up", "--envelope"),
        ("envelopes", "--json=7"),
        ("bench", "sm86-262"),
        ("verify", "--envelope", "sm86-262"),
    ],
)
def test_wrong_arguments_end_with_2_in_two_lines(arguments):
    done = invoke(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 2 and lines[0].startswith("sm86: ") and lines[1].startswith("mend: ")


@pytest.mark.parametrize(
    ("arguments", "what", "mend"),
    [
        (("up", "--envelop", "sm86-262k"), "up has no option --envelop", "did you mean --envelope? `invoke --help up`"),
        (("up", "--envelop=sm86-262k"), "up has no option --envelop", "did you mean --envelope?"),
        (("report", "--redacted", "--out", "x"), "report has no option --redacted", "did you mean --redact?"),
        (("up", "--port", "8001", "--nosuch"), "up has no option --nosuch", "`invoke --help up`"),
        (("plan", "--zzzz"), "plan has no option --zzzz", "`invoke --help plan` lists"),
        (("up", "--override", "--zzzz=1", "--dryrun"), "up has no option --dryrun", "did you mean --dry-run?"),
        (("plan", "--envelope"), "--envelope needs a value", "`invoke --help plan`"),
        (("ladder.sequenc",), "there is no task 'ladder.sequenc'", "did you mean ladder.sequence? `invoke --list`"),
        (("qqqq",), "there is no task 'qqqq'", "`invoke --list` shows"),
        (("plan", "-z"), "No idea what '-z' is!", "`invoke --list` shows the tasks, `invoke --help plan`"),
    ],
)
def test_a_mistyped_word_is_named_with_the_nearest_that_there_is(arguments, what, mend):
    done = invoke(*arguments)
    first, second = done.stderr.splitlines()
    assert (done.returncode, first) == (2, f"sm86: {what}")
    assert second.startswith(f"mend: {mend}")


def test_the_list_and_every_tasks_help():
    listed = invoke("--list")
    assert listed.returncode == 0
    names = [line.split()[0] for line in listed.stdout.splitlines() if line.startswith("  ") and line[2] != " "]
    assert {"build", "up", "verify", "bench", "demo", "render", "test"} <= set(names)
    for name in names:
        shown = invoke("--help", name)
        assert shown.returncode == 0, name
        assert "Docstring" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "task"),
    [
        (("trace", "--help"), "trace"),
        (("compare", "a.json", "--help"), "compare"),
        (("probe.spec", "--help"), "probe.spec"),
        (("ladder.comm", "--envelopes", "--help"), "ladder.comm"),
        (("report", "--help", "--json"), "report"),
    ],
)
def test_help_behind_a_task_is_help_also_where_it_needs_arguments(arguments, task):
    done = invoke(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"[--core-opts] {task} [" in done.stdout and "Docstring" in done.stdout


def test_help_of_no_task_is_an_error():
    done = invoke("nosuch", "--help")
    assert (done.returncode, done.stdout) == (2, "") and "nosuch" in done.stderr


@pytest.mark.parametrize("arguments", [("--list",), ("--help", "report")])
def test_help_that_nobody_reads_ends_without_a_traceback(arguments):
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "wb") as gone, open("/dev/full", "wb") as full:
        for out, words in ((gone, 0), (full, 2)):
            done = subprocess.run(
                [sys.executable, "-m", "invoke", *arguments], cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True
            )
            assert done.returncode == 2
            assert len(done.stderr.splitlines()) == words, done.stderr


def test_a_table_that_nobody_reads_is_no_finding():
    """rich ends a program whose reader has gone with 1."""
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "wb") as gone:
        for arguments in (("envelopes",), ("trace", "tests/trace/data/t01_hta_a100_cudagraph70.json.gz")):
            done = subprocess.run(
                [sys.executable, "-m", "invoke", *arguments], cwd=ROOT, stdout=gone, stderr=subprocess.PIPE, text=True
            )
            assert (done.returncode, done.stderr) == (2, "")


def test_a_stdout_that_was_closed_before_the_start_ends_in_words():
    command = 'exec "$0" -m invoke envelopes >&-'
    done = subprocess.run(["/bin/sh", "-c", command, sys.executable], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2 and "output is closed" in done.stderr


@pytest.mark.parametrize("command", ["report --records {}", "trace {}", "trace.diff {} x", "compare {} x"])
def test_a_path_that_cannot_be_looked_at_ends_in_words(command):
    done = invoke(*command.format("x" * 300).split())
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 2 and lines[1].startswith("mend: ") and "fault of the program" not in done.stderr


def test_envelopes_as_json():
    done = invoke("envelopes", "--json")
    values = json.loads(done.stdout)
    assert values["schema"] == "sm86.envelopes" and values["version"] == 1
    assert {e["name"] for e in values["envelopes"]} >= {"sm86-262k", "cpu-smoke"}


def test_heavy_imports_stay_out_of_the_list():
    code = (
        "import sys, tasks\n"
        "heavy = {'rich', 'jinja2', 'docker', 'torch', 'vllm', 'pynvml', 'requests', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "--envelope", "cpu-smoke", "--repeats", "0"),
        ("bench", "--envelope", "cpu-smoke", "--decode-tokens", "x"),
        ("image.check", "--target", "rocm"),
    ],
)
def test_wrong_values_are_told_before_a_server_is_asked(arguments):
    done = invoke(*arguments, DOCKER_HOST="unix:///nowhere.sock")
    assert done.returncode == 2 and arguments[-1] in done.stderr and "Docker" not in done.stderr


def test_options_that_a_message_names_exist():
    """A mend that names an option nobody has is none."""
    known = set(re.findall(r"--[a-z][a-z-]+", "".join(invoke("--help", name).stdout for name in ("bench", "verify"))))
    said = "".join(path.read_text() for path in (ROOT / "sm86/measure").glob("*.py"))
    assert set(re.findall(r"--[a-z][a-z-]+", said)) <= known | {"--enable-prompt-tokens-details"}  # vLLM's own


@pytest.mark.parametrize(
    "arguments",
    [
        ("up", "cpu-smoke", "--engine", "local"),
        ("doctor", "--probe"),
        ("ladder.sequence",),
        ("comm",),
        ("bench", "cpu-smoke", "--engine", "local"),
        ("demo", "--engine", "local"),
    ],
)
def test_a_dry_run_speaks_json_where_the_task_does(arguments, tmp_path):
    done = invoke(*arguments, "--dry-run", "--json", SM86_RESULTS=str(tmp_path))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["schema"].startswith("sm86.") and told["version"] == 1
    assert list(tmp_path.iterdir()) == []
    if told["schema"] == "sm86.dry-run":
        # the same lines as the words have
        words = invoke(*arguments, "--dry-run", SM86_RESULTS=str(tmp_path)).stdout.splitlines()
        assert told["task"] == arguments[0] and told["lines"] == [line.strip() for line in words] != []
