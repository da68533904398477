"""The code with which a server ends whose engine died."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

START = """
import logging, logging.config, multiprocessing, sys
from sm86.launch.exit_code import watch
watch(); watch()
logging.config.dictConfig({"version": 1, "disable_existing_loggers": False,
    "handlers": {"h": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}},
    "loggers": {"vllm": {"handlers": ["h"], "level": "INFO", "propagate": False}}})
client, front = (logging.getLogger(f"vllm.v1.engine.{name}") for name in ("core_client", "async_llm"))
class EngineDeadError(Exception): pass
"""


def run(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", START + text], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "text",
    [
        'client.warning("[shutdown] MPClient: engine core exited unexpectedly; starting cleanup")',
        'try:\n    raise EngineDeadError("gone")\nexcept Exception:\n    front.exception("output_handler failed.")',
    ],
    ids=["the process is gone", "the engine said so"],
)
def test_a_dead_engine_is_a_failure(text: str) -> None:
    done = run(text + '\nprint("last words", end="")')
    assert done.returncode == 1
    assert done.stdout.endswith("last words"), "what was not yet written must not be lost"


@pytest.mark.parametrize(
    "text",
    [
        'client.info("[shutdown] MPClient: start timeout=5")',
        'client.warning("100%% of %s", "nothing")',
        'try:\n    raise ValueError("a bad request")\nexcept Exception:\n    front.exception("request failed")',
        'logging.getLogger("other").warning("engine core exited unexpectedly")',
    ],
)
def test_an_orderly_end_stays_one(text: str) -> None:
    assert run(text).returncode == 0


def test_another_code_is_kept_where_no_engine_died() -> None:
    assert run("sys.exit(3)").returncode == 3


def test_children_end_with_codes_of_their_own() -> None:
    text = """
def child():
    watch()
    logging.getLogger("vllm.v1.engine.core_client").warning("engine core exited unexpectedly")
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    process = context.Process(target=child); process.start(); process.join()
    sys.exit(process.exitcode)
"""
    assert run(text).returncode == 0


def test_vllm_finds_it() -> None:
    named = {each.name: each.value for each in entry_points(group="vllm.general_plugins")}
    assert named.get("sm86_exit") == "sm86.launch.exit_code:watch"
