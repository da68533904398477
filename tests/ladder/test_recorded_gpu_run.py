"""A ladder over the records of a real boot, log, benchmark and log again, made on one GPU that was told to be SM86."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sm86.ladder import cause as c
from sm86.ladder import state as s
from sm86.ladder.climb import climb
from sm86.ladder.rungs import SEQUENCE, rungs
from sm86.ladder.state import State
from sm86.record import Number, Record, Verdict, load
from tests.ladder.hands import FakeHands

DATA = Path(__file__).parents[1] / "report/gpu_data/sm86-proof"
RUNGS = rungs(SEQUENCE, "sm86-proof")
KEY = RUNGS[0].key


def recorded(name: str) -> Record:
    (path,) = DATA.glob(f"*{name}.json")
    return load(path)


def climbed(tmp_path: Path, bench: Record) -> tuple[State, FakeHands]:
    answers = {
        ("boot", KEY): recorded("-boot"),
        ("verify", KEY): [recorded("025718Z-verify"), recorded("025741Z-verify")],
        ("bench", KEY): bench,
    }
    hands = FakeHands(tmp_path, answers)
    texts: list[str] = []
    start = State(s.identity_of(SEQUENCE, "local", RUNGS, None, None, "a" * 40, ("sha256:1",)), "2026-12-01T02:53:40Z")
    climb(start, RUNGS, hands, lambda state: texts.append(state.to_text()), lambda rung, what: None)
    return s.from_text(texts[-1], "here"), hands


def test_the_log_before_the_first_request_does_not_stop_it_and_the_missing_window_does(tmp_path: Path) -> None:
    before = {verdict.name: verdict.state for verdict in recorded("025718Z-verify").verdicts}
    assert before["dispatch"] == "not seen", "CUDAGRAPH_DISPATCH_DEBUG was on, and nothing had decoded"
    state, hands = climbed(tmp_path, recorded("-bench"))
    outcome = state.outcomes[KEY]
    assert [call.split()[0] for call in hands.calls] == ["boot", "verify", "bench", "verify", "down"]
    assert outcome.state == s.FAILED and outcome.cause is not None and outcome.cause.kind == c.WINDOW
    assert "the prompts did not come from the prefix cache" in outcome.cause.text


def test_with_a_window_the_rung_passes_and_its_number_is_compared_with_nothing(tmp_path: Path) -> None:
    bench = recorded("-bench")
    window = Verdict("window", "pass", "all sequences decoded together in each of 1 repeats")
    kept = tuple(window if verdict.name == "window" else verdict for verdict in bench.verdicts)
    whole = replace(bench, verdicts=kept, numbers=(Number("decode aggregate", 400.0, "tok/s", (400.0,)),))
    state, _ = climbed(tmp_path, whole)
    outcome = state.outcomes[KEY]
    assert outcome.state == s.PASSED and not outcome.comparison.startswith(("better", "worse", "within"))
