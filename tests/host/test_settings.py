"""`.env` for what runs without Compose: the values that Compose would read."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sm86.errors import CouldNotRun
from sm86.host.settings import effective, read_dotenv

TEXT = """# a comment
SM86_PORT=8123
export SM86_BIND = 127.0.0.1
SM86_MODELS_DIR="/data/my models" # where they lie
SM86_MODEL='a$b#c'
NCCL_ALGO=Ring # quiet
SPECULATIVE_CONFIG="{\\"method\\": \\"mtp\\"}"
not a line

SM86_PORT=8124
"""
VALUES = {
    "SM86_PORT": "8124",
    "SM86_BIND": "127.0.0.1",
    "SM86_MODELS_DIR": "/data/my models",
    "SM86_MODEL": "a$b#c",
    "NCCL_ALGO": "Ring",
    "SPECULATIVE_CONFIG": '{"method": "mtp"}',
}


MARK = b"\xef\xbb\xbf"
"""What some editors put before UTF-8; Compose passes over it."""


@pytest.mark.parametrize("mark", [b"", MARK])
def test_values_quotes_and_comments(tmp_path, mark):
    (tmp_path / ".env").write_bytes(mark + TEXT.encode())
    assert read_dotenv(tmp_path / ".env") == VALUES


@pytest.mark.parametrize("mark", [b"", MARK])
def test_the_first_line_is_a_value_too(tmp_path, mark):
    (tmp_path / ".env").write_bytes(mark + b"SM86_PORT=1\n")
    assert read_dotenv(tmp_path / ".env") == {"SM86_PORT": "1"}


real = shutil.which("docker-compose", path=str(Path(sys.executable).parent))


@pytest.mark.skipif(real is None, reason="no Compose beside this Python")
@pytest.mark.parametrize("mark", [b"", MARK])
def test_the_real_compose_reads_the_same(tmp_path, mark):
    # the comment gone, the mark stands before a name
    text = TEXT.replace("not a line\n", "").replace("# a comment\n", "")
    (tmp_path / ".env").write_bytes(mark + text.encode())
    names = "".join(f"      {name}: ${{{name}}}\n" for name in VALUES)
    (tmp_path / "compose.yaml").write_text(f"services:\n  ee:\n    image: x\n    environment:\n{names}")
    import json

    argv = [real, "--project-directory", str(tmp_path), "config", "--format", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}, cwd=tmp_path)
    read = json.loads(done.stdout)["services"]["ee"]["environment"]
    # config doubles the dollar signs of its output
    assert {name: value.replace("$$", "$") for name, value in read.items()} == VALUES


def test_no_file_is_no_settings(tmp_path):
    assert read_dotenv(tmp_path / ".env") == {}


def test_what_only_compose_can_replace_is_refused(tmp_path):
    (tmp_path / ".env").write_text("A=1\nSM86_MODELS_DIR=$HOME/models\n")
    with pytest.raises(CouldNotRun, match="line 2"):
        read_dotenv(tmp_path / ".env")


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / ".env").write_bytes(b"\xff\xfe")
    with pytest.raises(CouldNotRun, match="cannot read"):
        read_dotenv(tmp_path / ".env")


def test_the_shell_wins_over_the_file_and_an_empty_value_is_unset():
    assert effective("A", {"A": "1"}, {"A": "2"}, "3") == "1"
    assert effective("A", {"A": ""}, {"A": "2"}, "3") == "2"
    assert effective("A", {}, {}, "3") == "3"
