"""A log that is cut somewhere is never verified where it should not be, and a cut is never called a failure."""

import pytest

from sm86.errors import CouldNotRun
from sm86.verify.verify import verify_log
from tests.verify.verify_logs import REVISION, finding, good, load_envelope, states, verified

LOG = good().encode()
READY = LOG.index(b"Application startup complete.") + len(b"Application startup complete.")


def report_of(data: bytes):
    return verify_log(load_envelope("sm86-80k-4seq"), [data], REVISION)


@pytest.mark.parametrize("share", range(0, 100, 2))
def test_a_log_that_ends_early_is_not_verified_and_nothing_in_it_failed(share):
    cut = LOG[: READY * share // 100]
    if not cut.strip():
        with pytest.raises(CouldNotRun):
            report_of(cut)
        return
    report = report_of(cut)
    assert not report.passed
    assert report.exit_code == 1
    assert "fail" not in states(report).values(), states(report)


@pytest.mark.parametrize("before", [1, 2, 3, 10, 40])
def test_the_last_bytes_before_ready_decide(before):
    assert finding(report_of(LOG[: READY - before]), "ready").state == "not seen"
    assert report_of(LOG[:READY]).passed


@pytest.mark.parametrize("share", range(1, 100, 2))
def test_a_log_that_starts_late_is_not_verified(share):
    assert not report_of(LOG[READY * share // 100 :]).passed


@pytest.mark.parametrize("rule", [rule for rule, state in states(verified(LOG)).items() if state == "pass"])
def test_a_rule_does_not_pass_without_the_lines_it_shows(rule):
    lines = LOG.split(b"\n")
    for _ in range(len(lines)):
        found = finding(report_of(b"\n".join(lines)), rule)
        if found.state != "pass":
            return
        assert found.evidence
        for shown in found.evidence:
            lines[shown.line - 1] = b""
    raise AssertionError("it passes whatever is taken away")


def test_nothing_after_ready_is_needed():
    assert report_of(LOG[: READY + 1]).passed


def test_a_log_that_ends_within_a_value_is_not_called_a_failure():
    at = LOG.index(b"num_gpu_blocks_override=1632", LOG.index(b"Overriding")) + len("num_gpu_blocks_override=16")
    assert finding(report_of(LOG[:at]), "block-override").state == "not seen"


def test_a_capture_that_was_cut_by_the_end_of_the_log_is_not_seen():
    at = LOG.index(b"| 1/2 [") + len(b"| 1/2 [00:01<00:01,  1.52s/it]")
    assert finding(report_of(LOG[:at]), "graphs-captured").state == "not seen"
