"""BuildKit's progress and the meaning of its failures, on outputs recorded from real builds (hosts replaced)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm86.errors import EXIT_COULD_NOT_RUN
from sm86.image.failures import KINDS, classify
from sm86.image.progress import Progress

BUILDS = Path(__file__).parent / "builds"


def read(name: str) -> Progress:
    progress = Progress()
    for line in (BUILDS / f"{name}.log").read_text().splitlines(keepends=True):
        progress.feed(line)
    return progress


@pytest.mark.parametrize(
    ("name", "kind", "step"),
    [
        ("base", "base", "[internal] load metadata for docker.io/library/python:3.12.12-slim-bookworm"),
        ("certificate", "certificate", "RUN python3 -m venv /v && /v/bin/pip install --retries 0 idna==3.10"),
        ("client", "client", None),
        ("engine-died", "engine-died", None),
        ("hash", "hash", "RUN PIP_CERT=/etc/ssl/certs/ca-certificates.crt /v/bin/pip install --no-deps ..."),
        ("memory", "memory", "RUN python3 -c 'import os; os.kill(os.getpid(), 9)'"),
        ("network-apt", "network", "RUN apt-get update && apt-get install -y libnuma1"),
        ("network-pip", "network", "RUN python3 -m venv /v && /v/bin/pip install --retries 0 idna==3.10"),
        ("no-buildkit", "no-buildkit", None),
        ("no-daemon", "no-daemon", None),
        ("space", "space", "RUN dd if=/dev/zero of=/dev/full bs=1M count=5"),
        ("step", "step", "RUN echo one && echo two >&2 && false"),
        ("torch", "torch", "RUN /v/bin/pip install --retries 1 --no-deps --require-hashes --index-url htt..."),
    ],
)
def test_a_recorded_failure_is_named_with_its_step(name, kind, step):
    progress = read(name)
    failed = progress.failed()
    assert (failed.title if failed else None) == step
    failure = classify(progress.words(), failed.title if failed else None)
    assert failure.kind == kind and kind in KINDS
    assert failure.exit_code == EXIT_COULD_NOT_RUN
    assert "\n" not in failure.what + failure.mend
    if step:
        assert step in failure.what


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("failed to solve: python:3.12: failed to resolve source metadata for docker.io/library/python: 403", "base"),
        ("pull access denied, repository does not exist or may require authorization: server message", "base"),
        ("ERROR: granting entitlement network.host is not allowed by build daemon", "network-mode"),
        ("permission denied while trying to connect to the Docker daemon socket at unix:///x", "no-rights"),
        ("Could not open requirements file: [Errno 2] No such file or directory: '/locks/cpu-py313.txt'", "python"),
        ("write /var/lib/docker/tmp/x: no space left on device", "space"),
        ("fatal: unable to access: Could not resolve host: example.org", "network"),
        ("the --mount option requires BuildKit. Refer to https://docs.docker.com/go/buildkit/", "no-buildkit"),
        ("process did not complete successfully: exit code: 137", "memory"),
        ("rpc error: code = Unavailable desc = error reading from server: EOF", "engine-died"),
        ("SSLError: [SSL: UNEXPECTED_EOF] unexpected EOF while reading, Max retries exceeded with url", "network"),
        ("segfault in the compiler", "client"),
    ],
)  # fmt: skip
def test_wordings_of_other_versions(words, kind):
    assert classify(words, None).kind == kind


def test_a_hash_that_differs_is_never_mended_by_a_new_lock_first():
    failure = classify((BUILDS / "hash.log").read_text(), None)
    assert failure.mend.startswith("do not use that file")


def test_the_failing_steps_own_last_lines_are_kept():
    step = read("step").failed()
    assert list(step.output)[-3:-1] == ["one", "two"]
    assert step.state == "failed"


def test_steps_are_told_once_when_they_start_and_when_they_took_time():
    progress = Progress()
    told = [
        progress.feed(line)
        for line in (
            "#1 [internal] load build definition from Dockerfile\n",
            "#1 DONE 0.0s\n",
            "#4 [cpu-packages 2/4] RUN --mount=type=cache,id=p,target=/root     pip install     -r /locks/x.txt\n",
            "#4 sha256:f71a6c620acbb25b1bae7f3e41922d656ca087d445e9b31b3d24f533d63c7114\n",
            "#4 1.234 Collecting numpy\r#4 1.3 half a line\n",
            "#4 1.4 more\n",
            "#4 DONE 31.7s\n",
            "#5 [base 1/2] FROM docker.io/library/sm86-base:bookworm\n",
            "#5 CACHED\n",
            "\x1b[33mWARNING\x1b[0m: something\n",
        )
    ]
    assert told == [
        None,
        None,
        None,
        None,
        "cpu-packages 2/4: RUN pip install -r /locks/x.txt ...",
        None,
        "cpu-packages 2/4: RUN pip install -r /locks/x.txt: 32 s",
        None,
        None,
        None,
    ]
    assert progress.steps[5].state == "cached"
    assert list(progress.tail) == ["WARNING: something"]


def test_of_two_failures_the_cause_is_shown_and_not_the_one_that_was_stopped():
    progress = Progress()
    for line in (
        "#4 [a 1/2] RUN sleep 100",
        "#5 [b 1/2] RUN false",
        "#4 ERROR: context canceled",
        "#5 ERROR: executor failed running [false]: exit code: 1",
    ):
        progress.feed(line)
    assert progress.failed().title == "b 1/2: RUN false"
    assert Progress().failed() is None


def test_a_long_step_that_counts_is_told_of_by_tenths():
    progress = Progress()
    lines = ["#20 [native 4/4] RUN --mount=type=cache build it", "#20 0.5 1 compilers at once"]
    lines += [f"#20 {n}.0 [{n}/82] Building CUDA object a.cu.o" for n in range(1, 83)]
    told = [words for line in lines if (words := progress.feed(line))]
    assert told[0] == "native 4/4: RUN build it ..."
    assert told[1:3] == ["native 4/4: 9 of 82", "native 4/4: 17 of 82"] and told[-1] == "native 4/4: 74 of 82"
    assert len(told) == 10
    assert progress.feed("#20 90.0 [0/0] nothing, and no count") is None
