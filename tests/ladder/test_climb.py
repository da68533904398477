"""Climbing, and being ended at every point: the server is down, and the next run goes on at the right rung."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm86.errors import CheckFailed, CouldNotRun
from sm86.ladder import cause as c
from sm86.ladder import state as s
from sm86.ladder.climb import BENCH, BOOT, DOWN, PROVE, VERIFY, climb
from sm86.ladder.rungs import COMM, SEQUENCE, Rung, rungs
from sm86.ladder.state import State
from sm86.record import Verdict
from tests.ladder.hands import CONDITIONS, GOOD, FakeHands, failure, measured, record, verified

RUNGS = rungs(SEQUENCE)
KEYS = [rung.key for rung in RUNGS]


def fresh(found: tuple[Rung, ...] = RUNGS) -> State:
    return State(s.identity_of(SEQUENCE, "docker", found, None, None, "a" * 40, ("sha256:1",)), "2026-05-01T12:00:00Z")


class Kept:
    """What was kept, as a file would have it."""

    def __init__(self, state: State) -> None:
        self.text = state.to_text()
        self.told: list[str] = []

    def keep(self, state: State) -> None:
        self.text = state.to_text()

    def tell(self, rung: Rung, what: str) -> None:
        self.told.append(f"{rung.key} {what}")

    @property
    def state(self) -> State:
        return s.from_text(self.text, "here")


def run(state: State, hands: FakeHands, found: tuple[Rung, ...] = RUNGS) -> Kept:
    kept = Kept(state)
    climb(state, found, hands, kept.keep, kept.tell)
    return kept


def test_every_rung_in_order_each_brought_down_before_the_next(tmp_path: Path) -> None:
    hands = FakeHands(tmp_path)
    kept = run(fresh(), hands)
    assert hands.calls == [f"{step} {key}" for key in KEYS for step in ("boot", "verify", "bench", "verify", "down")]
    assert [kept.state.outcomes[key].state for key in KEYS] == [s.PASSED] * 4
    assert kept.state.next_key is None and kept.state.unfinished is None
    assert kept.told[:6] == [f"{KEYS[0]} {what}" for what in (BOOT, VERIFY, BENCH, PROVE, DOWN, s.PASSED)]
    first = kept.state.outcomes[KEYS[0]]
    assert first.tok_s == (50.0, 51.0, 50.5) and first.each_tok_s == (50.5,)
    assert [Path(path).name.rsplit("-", 1)[1] for path in first.records] == ["boot.json", "bench.json", "verify.json"]
    assert all(Path(path).is_file() for outcome in kept.state.outcomes.values() for path in outcome.records)


@pytest.mark.parametrize("stop_with", [KeyboardInterrupt, SystemExit, MemoryError])
@pytest.mark.parametrize("call", range(1, 21))
def test_ended_at_every_point_it_goes_on_at_the_right_rung(tmp_path: Path, call: int, stop_with) -> None:
    hands = FakeHands(tmp_path, stop_at=call, stop_with=stop_with)
    kept = Kept(fresh())
    with pytest.raises(stop_with):
        climb(fresh(), RUNGS, hands, kept.keep, kept.tell)
    ended_in, number = hands.calls[call - 1].split()
    assert number == KEYS[(call - 1) // 5]
    # only an end in the middle of stopping leaves a server, and the state says of which rung
    assert hands.up == ({number} if ended_in == "down" else set())
    left = kept.state.unfinished
    assert (left and left.key) == (number if ended_in == "down" else None)
    assert kept.state.outcomes[number].state == (s.PASSED if ended_in == "down" else s.RUNNING)
    passed = [key for key, outcome in kept.state.outcomes.items() if outcome.state == s.PASSED]
    assert passed == KEYS[: KEYS.index(number) + (1 if ended_in == "down" else 0)]

    again = FakeHands(tmp_path)
    later = run(kept.state, again)
    expected = KEYS[len(passed) :]
    assert [call.split()[1] for call in again.calls if call.startswith("boot")] == expected
    assert [later.state.outcomes[key].state for key in KEYS] == [s.PASSED] * 4
    assert later.state.next_key is None


def test_the_state_on_disk_is_that_of_the_step_that_has_begun(tmp_path: Path) -> None:
    """Killed without a chance to say anything: what the file had at each call names the rung and the step."""
    seen: list[tuple[str, str]] = []
    kept = Kept(fresh())

    class Watching(FakeHands):
        def _call(self, step: str, rung: Rung):
            left = kept.state.unfinished
            assert left is not None
            seen.append((left.key, left.step))
            return super()._call(step, rung)

    climb(fresh(), RUNGS[:1], Watching(tmp_path), kept.keep, kept.tell)
    assert seen == [(KEYS[0], step) for step in (BOOT, VERIFY, BENCH, PROVE, DOWN)]


@pytest.mark.parametrize(
    ("answers", "expected", "calls"),
    [
        ({"boot": lambda r: record(r, "boot", details=failure("capture OOM"))}, c.MEMORY, ["boot", "down"]),
        (
            {"verify": lambda r: verified(r, {"context-served": ("fail", "3912")})},
            c.CONTEXT,
            ["boot", "verify", "down"],
        ),
        (
            {"verify": lambda r: [verified(r), verified(r, {"dispatch": ("fail", "miss")})]},
            c.GRAPH,
            ["boot", "verify", "bench", "verify", "down"],
        ),
        (
            {"bench": lambda r: measured(r, verdicts=(*GOOD, Verdict("comparison", "fail", "worse: 40 against 81")))},
            c.SLOW,
            ["boot", "verify", "bench", "verify", "down"],
        ),
        (
            {"bench": lambda r: CheckFailed("the server failed in the middle", "see its log")},
            c.SERVER,
            ["boot", "verify", "bench", "verify", "down"],
        ),
    ],
)
def test_the_first_rung_that_fails_ends_it_with_the_cause(tmp_path: Path, answers, expected, calls) -> None:
    second = RUNGS[1]
    hands = FakeHands(tmp_path, {(step, second.key): make(second) for step, make in answers.items()})
    kept = run(fresh(), hands)
    assert [call.split()[0] for call in hands.calls if call.endswith(second.key)] == calls
    assert not any(call.endswith((KEYS[2], KEYS[3])) for call in hands.calls) and not hands.up
    outcome = kept.state.outcomes[second.key]
    assert outcome.state == s.FAILED and outcome.cause is not None and outcome.cause.kind == expected
    assert outcome.records, "what shows it is on record"
    assert kept.state.next_key == second.key and kept.state.unfinished is None
    # the rung is tried again next time
    again = FakeHands(tmp_path)
    assert run(kept.state, again).state.next_key is None
    assert again.calls[0] == f"boot {second.key}"


def test_a_server_whose_log_cannot_be_judged_after_its_fall(tmp_path: Path) -> None:
    first = RUNGS[0]
    answers = {
        ("bench", first.key): CheckFailed("the server failed", "see its log", ("telemetry: GPU lost: GPU 3",)),
        ("verify", first.key): [verified(first), CouldNotRun("the log is empty", "look")],
    }
    outcome = run(fresh(), FakeHands(tmp_path, answers)).state.outcomes[first.key]
    assert outcome.cause is not None and outcome.cause.kind == c.SERVER
    assert outcome.cause.evidence == ("telemetry: GPU lost: GPU 3",)


def test_what_could_not_run_passes_through_and_the_server_is_down(tmp_path: Path) -> None:
    hands = FakeHands(tmp_path, {("boot", KEYS[0]): CouldNotRun("the port is taken", "free it")})
    kept = Kept(fresh())
    with pytest.raises(CouldNotRun):
        climb(fresh(), RUNGS, hands, kept.keep, kept.tell)
    assert hands.calls == [f"boot {KEYS[0]}", f"down {KEYS[0]}"] and kept.state.next_key == KEYS[0]


def test_a_server_of_another_image_is_not_mixed_in(tmp_path: Path) -> None:
    from dataclasses import replace

    other = replace(CONDITIONS, image_id="sha256:2")
    answers = {("boot", KEYS[1]): record(RUNGS[1], "boot", conditions=other, details={"failure": None})}
    outcome = run(fresh(), FakeHands(tmp_path, answers)).state.outcomes[KEYS[1]]
    assert outcome.cause is not None and outcome.cause.kind == c.UNLIKE
    assert "image_id was sha256:1, now it is sha256:2" in outcome.text


def test_uncommitted_changes_stand_beside_the_number_and_end_nothing(tmp_path: Path) -> None:
    dirty = {("verify", KEYS[0]): [verified(RUNGS[0], {"git-revision": ("fail", "dirty")}) for _ in range(2)]}
    kept = run(fresh(), FakeHands(tmp_path, dirty))
    assert kept.state.next_key is None
    assert kept.state.outcomes[KEYS[0]].findings == ("git-revision: dirty",)


def test_a_setting_that_the_launcher_finds_without_effect_is_told(tmp_path: Path) -> None:
    found = rungs(COMM, gate=False)[:2]
    tree = found[1]
    state = State(s.identity_of(COMM, "docker", found, None, None, "", ()), "2026-05-01T12:00:00Z")
    kept = run(state, FakeHands(tmp_path), found)
    assert kept.state.outcomes[tree.key].findings == ()
    silent = {("boot", tree.key): record(tree, "boot", details={"failure": None})}
    kept = run(state, FakeHands(tmp_path, silent), found)
    told = kept.state.outcomes[tree.key].findings
    assert len(told) == 2 and "override NCCL_ALGO=Tree: said to be effective" in told[0]


def test_inert_rows_are_never_started(tmp_path: Path) -> None:
    found = rungs(COMM, gate=False)
    state = State(s.identity_of(COMM, "docker", found, None, None, "", ()), "2026-05-01T12:00:00Z")
    hands = FakeHands(tmp_path)
    kept = run(state, hands, found)
    started = {call.split()[1] for call in hands.calls}
    assert started == {"as-it-is", "tree-simple", "ring-simple", "tree-ll128"}
    inert = kept.state.outcomes["flashinfer-all-reduce"]
    assert inert.state == s.INERT and "no size table" in inert.text
    assert kept.state.next_key is None


def test_with_dispatch_lines_on_a_rung_is_measured_before_the_log_must_show_them(tmp_path: Path) -> None:
    first = RUNGS[0]
    silent = verified(first, {"dispatch": ("not seen", "no decode batch was reported")})
    hands = FakeHands(tmp_path, {("verify", first.key): [silent, verified(first)]})
    assert run(fresh(), hands).state.outcomes[first.key].state == s.PASSED
    mute = FakeHands(tmp_path, {("verify", first.key): [silent, silent]})
    outcome = run(fresh(), mute).state.outcomes[first.key]
    assert outcome.state == s.FAILED and outcome.cause is not None and "dispatch" in outcome.cause.text
