"""The questions of our own tools stay out of the server's log, unless the arguments decide about it."""

from __future__ import annotations

import pytest

from sm86.launch import arguments, quiet
from sm86.spec import envelope_names, load_envelope
from sm86.spec.argv import QUIET, QUIET_PATHS, serve_argv
from tests.conftest import ROOT


@pytest.mark.parametrize("name", envelope_names())
def test_every_envelope_serves_without_the_lines_of_its_health_check(name: str) -> None:
    argv = serve_argv(load_envelope(name))
    assert quiet.added(argv) == (QUIET, QUIET_PATHS)
    longer = (*argv, *quiet.added(argv))
    assert quiet.added(longer) == () and arguments.facts_of(longer) == arguments.facts_of(argv)
    arguments.require_allowed(longer)


@pytest.mark.parametrize(
    "own",
    [
        (QUIET, "/ping"),
        (f"{QUIET}=/ping",),
        ("--disable_access_log_for_endpoints", "/ping"),
        ("--log-config-file", "log.json"),
        ("--disable-uvicorn-access-log",),
        ("--no-disable-uvicorn-access-log",),
    ],
)
def test_who_decides_about_the_access_log_has_decided(own: tuple[str, ...]) -> None:
    assert quiet.added(("serve", "/models/m", *own, "--port", "1")) == ()


def test_what_is_left_out_is_what_our_tools_ask_again_and_again() -> None:
    asked = "".join((ROOT / "sm86" / name).read_text() for name in ("launch/health.py", "measure/sampler.py"))
    assert all(f'{path}"' in asked for path in QUIET_PATHS.split(","))
