"""Two runs beside each other: what moved beyond noise, what differs, and what is never compared."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sm86.cli import compare as command
from sm86.cli.guard import guard
from sm86.cli.report import report
from sm86.compare import numbers as n
from sm86.compare.conditions import differences
from sm86.compare.numbers import changes
from sm86.compare.pairs import Source, compare, compare_all
from sm86.errors import CouldNotRun
from sm86.record import Conditions, Number, Record, Verdict, save

GOOD = tuple(
    Verdict(name, "pass", "so")
    for name in ("window", "coherence: text", "coherence: log probabilities", "coherence: known answers")
)
RIG = Conditions(
    engine="cuda",
    mark="",
    image_id="sha256:1",
    git_rev="a" * 40,
    vllm_version="0.26.0",
    driver="580.126.09",
    gpus=tuple({"uuid": f"GPU-{i}", "name": "NVIDIA GeForce RTX 3090", "power_limit_w": 350.0} for i in range(8)),
)
START = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)


def bench(values=(59.0, 59.6, 60.0), **more: Any) -> Record:
    middle = sorted(values)[len(values) // 2]
    plain = {
        "kind": "bench",
        "envelope": "sm86-262k",
        "envelope_digest": "d" * 16,
        "started": START,
        "seconds": 60.0,
        "conditions": RIG,
        "numbers": (Number("decode aggregate", middle, "tok/s", tuple(values)),),
        "verdicts": GOOD,
        "details": {"sequences": 1, "context": 262144, "decode_tokens": 512},
    }
    return Record(**{**plain, **more})


def pair(one: Record, two: Record):
    return compare(Source("one.json", one), Source("two.json", two))


def state(one: Record, two: Record) -> str:
    return pair(one, two).changes[0].state


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ((59.0, 59.6, 60.0), n.WITHIN),
        ((60.1, 60.6, 60.9), n.WITHIN),  # 1.7 %: below the floor
        ((61.0, 61.2, 61.4), n.MOVED),  # 2.7 %
        ((57.0, 57.2, 57.4), n.MOVED),
        ((55.0, 61.2, 61.4), n.WITHIN),  # its own repeats differ by more than the two runs do
    ],
)
def test_noise_is_the_larger_spread_and_at_least_two_percent(after, expected) -> None:
    assert state(bench(), bench(after)) == expected
    assert state(bench(), bench(after)) == expected == state(bench(), bench(tuple(reversed(after))))


def test_a_single_value_on_one_side_is_judged_by_the_other_and_said() -> None:
    found = pair(bench(), bench((64.0,))).changes[0]
    assert found.state == n.MOVED and "only one of the two has repeats" in found.why


def test_single_values_on_both_sides_are_shown_and_not_judged() -> None:
    found = pair(bench((59.0,)), bench((70.0,)))
    assert found.changes[0].state == n.NOT_JUDGED and not found.moved
    assert found.changes[0].share == pytest.approx(11 / 59)


def test_numbers_of_one_side_and_of_other_units() -> None:
    one = (Number("a", 1.0, "s", (1.0, 1.1)), Number("b", 2.0, "s", (2.0, 2.1)))
    two = (Number("b", 2.0, "ms", (2.0, 2.1)), Number("c", 0.0, "s", (0.0, 0.0)))
    found = {change.name: change for change in changes(one, two)}
    assert [found[name].state for name in "abc"] == [n.ONE_SIDED, n.NOT_JUDGED, n.ONE_SIDED]
    assert "one is in s, the other in ms" in found["b"].why and found["c"].before is None


def test_zero_has_no_share_and_no_noise_of_its_own() -> None:
    zero = (Number("a", 0.0, "s", (0.0, 0.0)),)
    assert changes(zero, zero)[0].state == n.WITHIN
    found = changes(zero, (Number("a", 1.0, "s", (1.0, 1.0)),))[0]
    assert (found.state, found.share) == (n.MOVED, None)


def test_an_incoherent_run_is_no_gain() -> None:
    bad = (replace(GOOD[1], state="fail"), *GOOD[:1], *GOOD[2:])
    found = pair(bench(), bench((90.0, 90.1, 90.2), verdicts=bad))
    assert found.changes[0].state == n.NOT_JUDGED
    assert any("two.json is no measurement: coherence: text (fail)" in note for note in found.notes)
    assert [(t.name, t.before, t.after) for t in found.turned] == [("coherence: text", "pass", "fail")] and found.moved


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (bench(kind="boot"), "of kind bench, two.json one of kind boot"),
        (bench(envelope="sm86-64k"), "numbers of two things"),
        (bench(conditions=replace(RIG, mark="emulated")), "cuda numbers marked emulated"),
        (bench(conditions=replace(RIG, engine="cpu", mark="CPU")), "never compared"),
    ],
)
def test_unlike_things_are_refused_with_the_reason(other: Record, says: str) -> None:
    for one, two in ((bench(), other), (other, bench())):
        with pytest.raises(CouldNotRun) as fault:
            pair(one, two)
        assert fault.value.mend
    with pytest.raises(CouldNotRun) as fault:
        pair(bench(), other)
    assert says in fault.value.what


def named(one: Record, two: Record) -> dict[str, tuple[str, str]]:
    return {found.name: (found.before, found.after) for found in differences(one, two)}


def test_alike_conditions_have_no_difference() -> None:
    assert differences(bench(), bench()) == ()


def test_every_condition_is_compared() -> None:
    capped = tuple({**gpu, "power_limit_w": 200.0} for gpu in RIG.gpus)
    other = replace(
        RIG,
        image_id="sha256:2",
        lock_hash="l",
        model_hash="m",
        git_rev="b" * 40,
        vllm_version="0.28.0",
        driver="590",
        gpus=capped,
        overrides={"NCCL_ALGO": "Tree"},
        host={"cores": 16},
    )
    found = named(bench(), bench(conditions=other, envelope_digest="e" * 16, details={"decode_tokens": 256}))
    assert found["image"] == ("sha256:1", "sha256:2") and found["lock"] == ("", "l")
    assert found["GPUs' power_limit_w"] == ("350.0", "200.0") and "GPUs" not in found
    assert found["override NCCL_ALGO"] == ("not set", "Tree") and found["host's cores"] == ("", "16")
    assert found["envelope's spec"] == ("d" * 16, "e" * 16)
    assert found["decode tokens"] == ("512", "256") and found["sequences"] == ("1", "")
    assert {"revision", "vLLM", "driver", "model's hash"} <= set(found)


def test_another_rig_is_named() -> None:
    fewer = replace(RIG, gpus=RIG.gpus[:4])
    assert named(bench(), bench(conditions=fewer))["GPUs"] == (
        "8 x NVIDIA GeForce RTX 3090",
        "4 x NVIDIA GeForce RTX 3090",
    )
    assert named(bench(), bench(conditions=replace(RIG, gpus=())))["GPUs"][1] == ""


def telemetry(clock: float, *limits: str) -> dict[str, Any]:
    gpus = [{"statistics": {"sm_clock_mhz": [clock - 50, clock, clock + 50]}} for _ in range(8)]
    return {"telemetry": {"state": "seen", "gpus": gpus, "limits": [{"text": text} for text in limits]}}


def test_what_the_gpus_did_differs() -> None:
    found = named(bench(details=telemetry(1800)), bench(details=telemetry(1100, "thermal: GPU 3")))
    assert found["SM clock while measured"] == ("1800 MHz", "1100 MHz")
    assert found["what held GPUs back"] == ("nothing", "thermal: GPU 3")
    assert named(bench(details=telemetry(1800)), bench(details=telemetry(1790))) == {}
    assert named(bench(details={"telemetry": None}), bench(details={"telemetry": {"gpus": []}})) == {}


def test_the_newest_of_each_kind_and_envelope_are_paired() -> None:
    later = START + timedelta(hours=1)
    first = [Source("a", bench()), Source("b", bench((61.0, 61.1, 61.2), started=later))]
    second = [
        Source("c", bench()),
        Source("d", bench(kind="boot", verdicts=())),
        Source("e", bench(envelope="sm86-64k")),
    ]
    found = compare_all(first, second)
    assert [(p.before.path, p.after.path) for p in found.pairs] == [("b", "c")]
    assert found.only_after == ("boot of sm86-262k", "bench of sm86-64k") and found.only_before == ()
    assert any("the first record is the newer one" in note for note in found.pairs[0].notes)


def test_nothing_in_common_is_told() -> None:
    two = [Source("a", bench()), Source("b", bench(kind="boot"))]
    with pytest.raises(CouldNotRun, match="no kind and envelope in common"):
        compare_all(two, [Source("c", bench(envelope="sm86-64k"))])


# the command


@pytest.fixture
def run(capsys):
    def call(one: Path, two: Path, json: bool = False):
        code = guard(lambda: command.compare(str(one), str(two), json))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err and "\x1b" not in captured.out
        return code, captured.out, captured.err

    return call


def test_two_files_in_words(run, tmp_path: Path) -> None:
    one, two = save(bench(), tmp_path / "1"), save(bench((66.0, 66.2, 66.4)), tmp_path / "2")
    code, out, _ = run(one, two)
    assert code == 1 and "+11.1 %  MOVED, noise 1.19" in out and "59.60 ->      66.20 tok/s" in out
    code, out, _ = run(one, one)
    assert code == 0 and "no number moved beyond noise" in out and "both are the same file" in out


def test_every_line_with_a_speed_carries_its_mark(run, tmp_path: Path) -> None:
    cpu = replace(RIG, engine="cpu", mark="CPU", gpus=())
    one, two = save(bench(conditions=cpu), tmp_path / "1"), save(bench((80.0, 80.1), conditions=cpu), tmp_path / "2")
    _, out, _ = run(one, two)
    speeds = [line for line in out.splitlines() if "tok/s" in line]
    assert speeds and all(line.endswith("[CPU]") for line in speeds)


AGAIN = [{"window": {"refused": "sequence 2 got its first token after the others were done"}}]


@pytest.mark.parametrize("of", ["first", "second", "both"])
def test_rounds_that_were_measured_again_are_told(run, tmp_path: Path, of: str) -> None:
    """A disturbed machine is a condition of the number, on whichever side, also where both had as many."""
    plain = dict(bench().details)
    sides = []
    for which in ("first", "second"):
        details = {**plain, "left_out": AGAIN if of in (which, "both") else []}
        sides.append(save(bench(details=details), tmp_path / which))
    code, out, _ = run(*sides)
    told = [which for which in ("first", "second") if of in (which, "both")]
    for which in ("first", "second"):
        line = f"note: of the {which}, 1 round was left out and measured again: sequence 2 got its first"
        assert (line in out) is (which in told)
    counts = {"first": "1 -> 0", "second": "0 -> 1"}
    assert ("rounds measured again" in out) is (of != "both")
    assert code == 0 and counts.get(of, "note:") in out
    notes = json.loads(run(*sides, json=True)[1])["pairs"][0]["notes"]
    assert len(notes) == len(told)


def test_a_run_without_such_rounds_says_nothing_of_them(run, tmp_path: Path) -> None:
    """Neither does an older record, which knows nothing of them."""
    one = save(bench(details={**bench().details, "left_out": []}), tmp_path / "1")
    _, out, _ = run(one, save(bench(), tmp_path / "2"))
    assert "measured again" not in out


def test_json(run, tmp_path: Path) -> None:
    one, two = save(bench(), tmp_path / "1"), save(bench((66.0, 66.2, 66.4)), tmp_path / "2")
    code, out, _ = run(one, two, json=True)
    values = json.loads(out)
    assert code == 1 and (values["schema"], values["version"], values["moved"]) == ("sm86.compare", 1, True)
    number = values["pairs"][0]["numbers"][0]
    assert number["state"] == "moved" and number["share"] == pytest.approx(6.6 / 59.6)


def test_folders_pass_over_what_is_no_record_and_say_what_they_cannot_read(run, tmp_path: Path) -> None:
    for name in ("1", "2"):
        save(bench(), tmp_path / name)
        folder = tmp_path / name / "sm86-262k"
        (folder / "trace.json").write_text('{"traceEvents": []}')
        (folder / "list.json").write_text("[]")
        (folder / "ladder.state").write_text("not looked at")
    newer = json.loads(next((tmp_path / "2" / "sm86-262k").glob("*-bench.json")).read_text())
    (tmp_path / "2" / "newer.json").write_text(json.dumps({**newer, "version": 9}))
    (tmp_path / "2" / "cut.json").write_text(json.dumps(newer)[:100])
    code, out, _ = run(tmp_path / "1", tmp_path / "2")
    assert code == 0
    assert "newer.json is a record of version 9; this program reads version 1" in out and "cut.json is not JSON" in out
    assert "trace.json" not in out and "list.json" not in out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot read"),
        ("", "is not JSON"),
        ("[[[[" * 10_000, "is not JSON"),
        ("{}", "is not an sm86 record"),
        ('{"schema": "sm86.record", "version": 2}', "version 2; this program reads version 1"),
        ('{"schema": "sm86.record", "version": 1}', "is damaged"),
        (json.dumps(bench().to_json()).replace("59.6", '"fast"'), "is damaged"),
        (json.dumps(bench().to_json()).replace("59.6", "NaN"), "is damaged"),
        (json.dumps(bench().to_json()).replace('"so"', "null"), "is damaged"),
        (json.dumps({**bench().to_json(), "details": None}), "is damaged"),
        (json.dumps({**bench().to_json(), "kind": ["bench"]}), "is damaged"),
        (json.dumps({**bench().to_json(), "started": "2026-05-01"}), "is damaged"),
        (json.dumps({**bench().to_json(), "seconds": 10**400}), "is damaged"),
        (json.dumps({**bench().to_json(), "details": {"\ud800": 1}}), "is damaged"),
    ],
)
def test_a_bad_file_is_exit_2(run, tmp_path: Path, text: str | None, says: str) -> None:
    good = save(bench(), tmp_path / "1")
    bad = tmp_path / "bad.json"
    if text is not None:
        bad.write_text(text)
    for one, two in ((good, bad), (bad, good)):
        code, out, err = run(one, two)
        assert (code, out) == (2, "") and says in err and "mend: " in err


@pytest.mark.parametrize("whole", [True, False], ids=["folders", "files"])
def test_what_report_reads_compare_reads(run, tmp_path: Path, whole: bool) -> None:
    """One encoding for all readers of records: a byte order mark is no fault."""
    found = []
    for name in ("1", "2"):
        path = save(bench(), tmp_path / name)
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        found.append(tmp_path / name if whole else path)
    code, out, err = run(*found)
    assert (code, err) == (0, "") and "no number moved beyond noise" in out and "left out" not in out
    assert report([str(path) for path in found], tmp_path / "out", png=False) == 0


@pytest.mark.parametrize("text", [None, "{}", "{", '{"schema": "sm86.record", "version": 2}'])
def test_a_folder_without_a_record_is_exit_2(run, tmp_path: Path, text: str | None) -> None:
    good = save(bench(), tmp_path / "1")
    folder = tmp_path / "empty"
    folder.mkdir()
    if text is not None:
        (folder / "x.json").write_text(text)
    code, out, err = run(good, folder)
    assert (code, out) == (2, "") and "no record that can be read" in err and "mend: " in err


def test_names_send_nothing_to_the_terminal(run, tmp_path: Path) -> None:
    path = save(bench(), tmp_path / "1")
    path.write_text(json.dumps({**json.loads(path.read_text()), "envelope": "odd\x1b[2J"}))
    _, out, _ = run(path, path)
    assert "odd\\x1b[2J" in out and "\x1b" not in out


def test_a_file_against_a_folder_finds_its_like(run, tmp_path: Path) -> None:
    good = save(bench(), tmp_path / "1")
    save(bench(kind="boot", verdicts=()), tmp_path / "1")
    assert run(good, tmp_path / "1")[0] == 0
