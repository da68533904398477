"""The launcher's own command line."""

from __future__ import annotations

import pytest

from sm86.errors import CouldNotRun
from sm86.launch.options import parse


def test_everything() -> None:
    own = ["--envelope", "e", "--set", "A=1", "--set", "B=x=y", "--model-path", "/m", "--host", "h", "--port", "8001"]
    options = parse([*own, "--dry-run", "--envelope-digest", "d"])
    assert options.settings == (("A", "1"), ("B", "x=y"))
    assert (options.model_path, options.host, options.port, options.dry_run) == ("/m", "h", 8001, True)
    assert (options.envelope, options.envelope_digest, options.argv) == ("e", "d", None)


def test_what_follows_the_dashes_is_vllms_to_the_letter() -> None:
    argv = ["serve", "/m", "--set", "x", "--", '{"a":"$b"}', "--envelope", "é"]
    assert parse(["--envelope", "e", "--", *argv]).argv == tuple(argv)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--envelope"),
        (["--envelope"], "expected one argument"),
        (["--envelope", "e", "--port", "x"], "--port"),
        (["--envelope", "e", "--port", "80"], "--port 80"),
        (["--envelope", "e", "--nope"], "--nope"),
        (["--env", "e"], "--envelope"),
        (["--envelope", "e", "--set", "A"], "NAME=VALUE"),
        (["--envelope", "e", "--"], "no arguments after --"),
        (["--envelope", "e", "--", "bench"], "start with 'bench'"),
        (["--envelope", "e", "--host", "h", "--", "serve", "m"], "--host stands beside"),
        (["--envelope", "e", "--model-path", "p", "--", "serve", "m"], "--model-path stands beside"),
        (["--envelope", "e", "serve", "m"], "unrecognized"),
    ],
)
def test_wrong_ones_are_told_in_one_line(arguments: list[str], words: str) -> None:
    with pytest.raises(CouldNotRun) as refusal:
        parse(arguments)
    assert words in refusal.value.what
    assert "\n" not in refusal.value.what
