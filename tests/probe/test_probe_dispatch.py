"""Dispatch lines -> the readout; on the log of a real boot on a GPU, and on honest changes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm86.backend.diagnostics import graphs
from sm86.probe.dispatch import REASONS, Expected, read_out
from sm86.probe.lines import read

LOG = Path(__file__).resolve().parents[1] / "backend" / "data" / "sm86-proof.log"
PROOF = Expected("FULL_DECODE_ONLY", (1, 2, 4), 4)
ONE = Expected("FULL_DECODE_ONLY", (1,), 1)


def real() -> list[str]:
    return LOG.read_text(encoding="utf-8", errors="replace").splitlines()


def batch(**changes) -> graphs.Batch:
    base = {
        "tokens": 1,
        "requests": 1,
        "padded_tokens": 1,
        "query_len": 1,
        "uniform_query_len": 1,
        "num_spec_tokens": 0,
        "mode": "FULL",
        "graphs_mode": "FULL_DECODE_ONLY",
        "graphs_ready": True,
        "capture_sizes": (1,),
    }
    return graphs.Batch(**{**base, **changes})


def lines_of(*batches: graphs.Batch) -> list[str]:
    return [f"(EngineCore pid=1) {graphs.dispatch_line(one)}" for one in batches]


def test_a_real_boot_is_read_to_the_last_line() -> None:
    found = read(real())
    assert len(found.dispatches) == sum("SM86 cudagraph " in line for line in real())
    assert found.unread == ()
    readout = read_out(found, PROOF)
    assert readout.state == "pass", readout.text
    assert readout.decode == readout.counts["hit"]
    for words in ("cg_mode=FULL", "num_spec_tokens=0", "uniform_decode_query_len=1", "no skip, no miss"):
        assert words in readout.text


def test_one_missed_batch_of_a_real_boot_is_the_next_root_cause() -> None:
    log = real()
    at = next(i for i, line in enumerate(log) if "cudagraph hit cg_mode=FULL num_tokens=4" in line)
    log[at] = log[at].replace("hit cg_mode=FULL", "miss cg_mode=NONE").replace("=captured", "=no_graph_for_descriptor")
    readout = read_out(read(log), PROOF)
    assert readout.state == "fail"
    assert f"the next root cause, at line {at + 1}: miss no_graph_for_descriptor" in readout.text
    assert readout.mend == REASONS["no_graph_for_descriptor"][1]
    assert readout.kinds[0].outcome == "miss", "what is lost comes first"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mode": "NONE", "graphs_ready": False}, "skip not_captured_yet"),
        ({"mode": "NONE", "graphs_mode": "NONE"}, "skip graphs_off"),
        ({"mode": "NONE", "forced_eager": True}, "skip eager_forced"),
        ({"mode": "NONE", "cascade": True}, "skip cascade_attention"),
        ({"mode": "NONE", "tokens": 8, "requests": 8}, "skip beyond_largest_capture"),
        ({"mode": "NONE"}, "miss no_graph_for_descriptor"),
    ],
)
def test_every_reason_of_the_backend_is_told_in_words_with_its_mend(changes, words: str) -> None:
    readout = read_out(read(lines_of(batch(), batch(**changes))), ONE)
    assert readout.state == "fail" and words in readout.text
    reason = words.split()[1]
    assert REASONS[reason][0] in readout.text and readout.mend == REASONS[reason][1] != ""


def test_the_commonest_reason_is_told_and_others_are_counted() -> None:
    lost = [batch(mode="NONE")] * 3 + [batch(mode="NONE", cascade=True)]
    text = read_out(read(lines_of(batch(), *lost)), ONE).text
    assert text.startswith("4 of 5 decode batches ran without a graph") and "1 more for other reasons" in text


def test_prefill_runs_eager_and_is_no_fault() -> None:
    prefill = batch(mode="NONE", tokens=37, query_len=37, padded_tokens=37)
    readout = read_out(read(lines_of(prefill, batch())), ONE)
    assert readout.state == "pass" and readout.counts == {"eager": 1, "hit": 1}


def test_nothing_dispatched_and_nothing_decoded_are_not_seen() -> None:
    assert read_out(read([]), ONE).state == "not seen"
    prefill = batch(mode="NONE", tokens=37, query_len=37, padded_tokens=37)
    assert read_out(read(lines_of(prefill)), ONE).state == "not seen"


def test_a_piecewise_hit_is_not_the_full_graph_that_is_expected() -> None:
    readout = read_out(read(lines_of(batch(), batch(mode="PIECEWISE"))), ONE)
    assert readout.state == "fail" and "1 with cg_mode=PIECEWISE, where cg_mode=FULL is expected" in readout.text
    whole = Expected("PIECEWISE", (1,), 1)
    assert read_out(read(lines_of(batch(mode="PIECEWISE"))), whole).state == "pass"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"capture_sizes": (1, 2)}, "capture_sizes=[1, 2], not [1]"),
        (
            {"num_spec_tokens": 1, "uniform_query_len": 2, "query_len": 2, "tokens": 2},
            "num_spec_tokens=1, not 0",
        ),
    ],
)
def test_another_capture_shape_is_a_finding(changes, words: str) -> None:
    readout = read_out(read(lines_of(batch(**changes))), ONE)
    assert readout.state == "fail" and words in readout.text


def test_sequences_that_never_decoded_together_are_told() -> None:
    four = Expected("FULL_DECODE_ONLY", (1,), 4)
    assert "at most 1 of 4 sequences together" in read_out(read(lines_of(batch())), four).text


def test_lines_that_are_cut_are_counted_and_never_taken_for_a_hit() -> None:
    line = lines_of(batch())[0]
    found = read([line[:60], "SM86 cudagraph hit", "SM86 cudagraphs are fine"])
    assert found.dispatches == () and len(found.unread) == 1
    assert "1 lines begin like one" in read_out(found, ONE).text
