"""Every command and option that a message or a page names exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = [ROOT / "README.md", ROOT / "tasks.py"]
PLACES += sorted(path for folder in ("docs", "templates", "models") for path in (ROOT / folder).glob("*.[mjy]*"))
PLACES += sorted((ROOT / "sm86").rglob("*.py"))
NAMED = re.compile(
    r"(?:[`(:]|^)(?:\.venv/bin/)?invoke ([a-z][a-z.]*)((?:[ ]--?[a-z][^ `\n\"#]*|[ ][A-Za-z0-9{=./_-]+)*)", re.M
)


@cache
def options() -> dict[str, set[str]]:
    """Names of the commands, default ones of a collection by its name too, with their long options."""
    from invoke.parser import Context

    import tasks

    found = {}
    for context in tasks.namespace.to_contexts():
        assert isinstance(context, Context)
        known = {flag for flag in context.flags if flag.startswith("--")}
        for name in (context.name, *context.aliases):
            found[name] = known
    return found


def faults(text: str) -> list[str]:
    """What the text tells a person to type and that does not exist."""
    out = []
    for name, rest in NAMED.findall(text):
        if name not in options():
            out.append(f"invoke {name}")
            continue
        out += [f"invoke {name} {flag}" for flag in re.findall(r"--[a-z-]+", rest) if flag not in options()[name]]
    return out


@pytest.mark.parametrize("path", PLACES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_is_named_exists(path: Path) -> None:
    assert faults(path.read_text(encoding="utf-8")) == []


def test_a_fault_is_seen() -> None:
    assert faults("run `invoke plann` or `invoke up --envelope E --nope`") == ["invoke plann", "invoke up --nope"]
    assert faults("`invoke trace.diff A B --json`, `invoke bench --decode-tokens 9`") == []
