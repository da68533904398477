"""Every kind of fault a `.env` can have: named with its line before Compose passes over it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm86.errors import CouldNotRun
from sm86.launch.overrides import KNOWN_SM86_NAMES
from sm86.render.dotenv import check_dotenv, problems
from sm86.render.variables import names
from sm86.spec import load_all
from tests.render.conftest import Clone

KNOWN = names(load_all())

GOOD = (
    b"",
    b"\n\n# only a comment\n",
    b"SM86_PORT=9000\n",
    b"SM86_PORT = 9000 # why\n",
    b"export NCCL_ALGO=Tree",
    b'SM86_MODELS_DIR="/data/my models"\n',
    "SM86_MODELS_DIR=/data/größe\n".encode(),
    b'SPECULATIVE_CONFIG=\'{"method":"mtp","num_speculative_tokens":1}\'\n',
    b'SPECULATIVE_CONFIG={"method":"mtp","num_speculative_tokens":1}\n',
    b'SPECULATIVE_CONFIG="{\\"method\\":\\"mtp\\",\\"num_speculative_tokens\\":1}"\n',
    b"SM86_PORT=$PORT\n",
    b"COMPOSE_PROFILES=sm86-262k\nHTTP_PROXY=\nEDITOR=vi\n",
    b"SM86_GPUS=GPU-0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f\n",
    b"SM86_BIND=::1\n",
)

BAD = (
    (b"\xef\xbb\xbfSM86_PORT=9000\n", 1, "byte order mark"),
    (b"\xff\xfeS\0M\0", 1, "UTF-16"),
    (b"SM86_PORT=9000\r\n", 1, "carriage return"),
    (b"# a\nSM86_PORT=9000\rNCCL_ALGO=Ring\r", 2, "carriage return"),
    (b"# ok\nSM86_MODELS_DIR=/gr\xf6\xdfe\n", 2, "not UTF-8"),
    (b"\nNCCL_ALGO=Ri\0ng\n", 2, "NUL"),
    (b"SM86_PORT\n", 1, "no `=`"),
    (b"this is no variable\n", 1, "no `=`"),
    (b"MY PORT=9000\n", 1, "not a variable's name"),
    (b"=9000\n", 1, "not a variable's name"),
    (b"SM86_PROT=9000\n", 1, "nothing reads SM86_PROT"),
    (b"sm86_port=9000\n", 1, "nothing reads sm86_port"),
    (b"NCCL_ALG=Ring\n", 1, "nothing reads NCCL_ALG"),
    (b"SM86_WHATEVER=1\n", 1, "nothing reads SM86_WHATEVER"),
    (b"NCCL_ALGO=\n", 1, "NCCL_ALGO is empty"),
    (b"NCCL_ALGO='' \n", 1, "NCCL_ALGO is empty"),
    (b"NCCL_ALGO=   # none\n", 1, "NCCL_ALGO is empty"),
    (b"NCCL_ALGO=#none\n", 1, "NCCL_ALGO is empty"),
    (b'SM86_MODELS_DIR="/data\n', 1, "not closed"),
    (b"SM86_PORT=9000\n\nSM86_PORT=9001\n", 3, "set again (first in line 1)"),
    (b"SM86_PORT=http\n", 1, "SM86_PORT is 'http'"),
    (b"SM86_PORT=70000\n", 1, "SM86_PORT is '70000'"),
    (b"SM86_PULL=sometimes\n", 1, "SM86_PULL is 'sometimes'"),
    (b"SM86_BIND=localhost\n", 1, "SM86_BIND is 'localhost'"),
    (b"FUSE_ALLREDUCE_RMS=yes\n", 1, "FUSE_ALLREDUCE_RMS is 'yes'"),
    (b"SM86_MAX_NUM_BATCHED_TOKENS=2.0\n", 1, "not a whole number"),
)


@pytest.mark.parametrize("data", GOOD)
def test_good_lines_pass(data: bytes) -> None:
    assert problems(data, KNOWN) == ()


@pytest.mark.parametrize(("data", "line", "words"), BAD)
def test_a_fault_is_named_with_its_line(tmp_path: Path, data: bytes, line: int, words: str) -> None:
    path = tmp_path / ".env"
    path.write_bytes(data)
    with pytest.raises(CouldNotRun) as caught:
        check_dotenv(path, KNOWN)
    assert f"{path}, line {line}: " in caught.value.what
    assert words in caught.value.what
    assert caught.value.mend and "\n" not in caught.value.what + caught.value.mend


def test_a_misspelt_name_gets_the_nearest() -> None:
    assert "did you mean SM86_PORT?" in problems(b"SM86_PROT=9000\n", KNOWN)[0].mend


def test_the_launcher_knows_every_name_too() -> None:
    assert {name for name in KNOWN if name.startswith("SM86_")} <= KNOWN_SM86_NAMES


def test_every_fault_is_told_at_once() -> None:
    assert [problem.line for problem in problems(b"A B=1\nNCCL_ALGO=\nSM86_PORT=1\nSM86_BIND=x\n", KNOWN)] == [1, 2, 4]


def test_no_file_is_right_and_an_unreadable_one_is_not(tmp_path: Path) -> None:
    check_dotenv(tmp_path / ".env", KNOWN)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "large").write_bytes(b"#" * (1 << 21))
    for name in ("folder", "link", "large"):
        with pytest.raises(CouldNotRun, match=name):
            check_dotenv(tmp_path / name, KNOWN)


def test_the_example_uncommented_has_no_fault() -> None:
    from sm86.render import render_all
    from sm86.spec import load_pins

    example = render_all(load_all(), load_pins())[".env.example"]
    lines = [line[1:] for line in example.splitlines() if line[:1] == "#" and line[1:].partition("=")[0] in KNOWN]
    assert len(lines) == len(KNOWN)
    assert problems("\n".join(lines).encode(), KNOWN) == ()


@given(st.binary(max_size=200))
def test_any_bytes_are_judged_without_a_fault_of_our_own(data: bytes) -> None:
    for problem in problems(data, KNOWN):
        assert problem.line >= 1 and problem.what and problem.mend


@pytest.mark.parametrize("data", [data for data in GOOD if b"$PORT" not in data])
def test_compose_takes_what_passes(clone: Clone, data: bytes) -> None:
    dotenv = clone.root / ".env"
    dotenv.write_bytes(data)
    try:
        assert clone.service("sm86-64k")["image"]
    finally:
        dotenv.unlink()
