"""Several starts in one log: the last one is judged alone, and the log is not that of one start."""

from sm86.manifest import format_manifest
from tests.verify.verify_logs import (
    GOOD,
    claims,
    finding,
    good,
    line_of,
    load_envelope,
    not_passed,
    read,
    replaced,
    until,
    verified,
)

OOM = "(Worker_TP2 pid=4303) ERROR 12-01 17:05:55 [a.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried\n"


def test_the_last_start_is_judged_and_the_earlier_one_named():
    first = until(good(), "Capturing CUDA graphs") + OOM
    log = first + good()
    report = verified(log)
    assert not_passed(report) == {"single-boot": "fail"}
    assert report.boots == 2
    told = finding(report, "single-boot")
    second = first.count("\n") + 1
    assert [line.line for line in told.evidence] == [1, line_of(log, "torch.OutOfMemoryError"), second]
    assert f"memory ran out on line {line_of(log, 'torch.OutOfMemoryError')}" in told.text
    assert finding(report, "ready").evidence[-1].line > second


def test_a_good_start_does_not_vouch_for_the_one_after_it():
    log = good() + until(good(), "Starting to load model")
    report = verified(log)
    assert finding(report, "ready").state == "not seen"
    assert finding(report, "graphs-captured").state == "not seen"
    assert finding(report, "block-override").state == "not seen"


def test_the_end_of_an_earlier_start_does_not_vouch_for_the_next_one():
    tail = good()[good().index("Application startup complete.") :]
    report = verified(tail + until(good(), "Starting to load model"))
    assert report.boots == 2
    assert finding(report, "ready").state == "not seen"


def test_starts_without_a_manifest_are_told_apart_by_the_servers_first_lines():
    engine = good().split("[sm86] manifest end\n")[1]
    report = verified(engine + engine)
    assert report.boots == 2
    assert verified(engine).boots == 1


def test_a_restart_loop_is_counted_and_bounded():
    manifest = "\n".join(format_manifest(claims(load_envelope(GOOD)))) + "\n"
    report = verified(manifest * 200)
    assert report.boots == 200
    assert finding(report, "single-boot").text.startswith("the log holds 200 starts")
    assert len(finding(report, "single-boot").evidence) <= 6


def test_memory_that_ran_out_in_an_earlier_start_is_not_the_last_ones():
    log = until(good(), "Starting to load model") + OOM + good()
    assert finding(verified(log), "out-of-memory").state == "pass"


def test_an_end_that_was_asked_for_is_no_death():
    shutdown = read("recorded_graph").decode().split("\n")[134:]
    report = verified(good() + "\n".join(shutdown))
    assert not_passed(report) == {}


def test_a_death_before_the_end_was_asked_for_is_one():
    death = "(EngineCore pid=4150) ERROR 12-01 17:09:00 [core.py:1332] EngineCore encountered a fatal error.\n"
    asked = "(APIServer pid=4001) INFO 12-01 17:09:01 [launcher.py:100] [shutdown] API server: shutdown triggered\n"
    assert finding(verified(good() + death + asked), "ready").state == "fail"
    assert finding(verified(good() + asked + death), "ready").state == "pass"


def test_a_server_that_closes_down_because_it_died_is_dead():
    log = (
        good()
        + "(APIServer pid=4001) INFO:     Shutting down\n"
        + "(APIServer pid=4001) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
    )
    assert finding(verified(log), "ready").state == "fail"


def test_a_refused_request_is_no_death():
    trace = "\n".join(read("l01").decode().split("\n")[139:243])
    report = verified(replaced(good() + trace + "\n", "4096", "81920"))
    assert not_passed(report) == {}


REFUSAL = "sm86: there is no model at /models/x\nmend: put the checkpoint there\n"


def test_a_refusal_of_the_launcher_is_why_the_server_is_not_ready():
    found = finding(verified(REFUSAL), "ready")
    assert (found.state, [line.line for line in found.evidence]) == ("fail", [1])
    assert "there is no model at /models/x" in found.text


def test_a_refusal_after_a_start_is_a_start_of_its_own():
    report = verified(good() + REFUSAL)
    assert report.boots == 2
    assert finding(report, "ready").state == "fail"
    assert verified(REFUSAL + good()).boots == 2
    assert finding(verified(REFUSAL + good()), "ready").state == "pass"
