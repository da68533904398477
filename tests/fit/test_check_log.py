"""Predictions against every real boot there is, and against those logs with one number changed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sm86.errors import CouldNotRun
from sm86.fit import log_facts
from sm86.fit.check_log import FAIL, NOT_APPLICABLE, NOT_SEEN, PASS, LogCheck, check
from sm86.plan.shape import FLASH, Shape
from sm86.spec import load_envelope
from tests.plan.plan_shapes import DEEP, GRAPH, PIECEWISE

TESTS = Path(__file__).resolve().parents[1]
LOGS = TESTS / "verify" / "logs"
PROOF = TESTS / "backend" / "data" / "sm86-proof.log"
H200 = 132
BOOTS = {
    "graph": (LOGS / "recorded_graph.log", GRAPH),
    "deep": (LOGS / "recorded_deep.log", DEEP),
    "piecewise": (LOGS / "recorded_piecewise.log", PIECEWISE),
    "kv1790": (LOGS / "recorded_kv1790.log", DEEP),
    "kv1791": (LOGS / "recorded_kv1791.log", DEEP),
}
KV_LINES = ("engine minimum", "GPU KV cache size", "maximum concurrency")


def judged(data: bytes, shape: Shape = FLASH, envelope=None, pieces: int = 1 << 20) -> LogCheck:
    chunks = [data[at : at + pieces] for at in range(0, len(data), pieces)]
    return check(log_facts.read(chunks), shape, envelope, H200)


def states(answer: LogCheck) -> dict[str, str]:
    return {one.name: one.state for one in answer.checks}


@pytest.mark.parametrize("name", BOOTS)
def test_every_real_boot_is_as_predicted(name: str):
    path, shape = BOOTS[name]
    answer = judged(path.read_bytes(), shape)
    assert answer.exit_code == 0, [one for one in answer.checks if one.state == FAIL]
    found = states(answer)
    assert found["checkpoint size"] == found["model loading"] == found["engine minimum"] == PASS
    refused = name == "kv1790"
    assert found["GPU KV cache size"] == found["maximum concurrency"] == (NOT_APPLICABLE if refused else PASS)


@pytest.mark.parametrize("name", BOOTS)
def test_every_line_number_leads_to_the_line(name: str):
    path, shape = BOOTS[name]
    lines = path.read_bytes().split(b"\n")
    words = {
        "checkpoint size": b"Checkpoint size",
        "model loading": b"Model loading took",
        "override": b"Overriding num_gpu_blocks",
        "GPU KV cache size": b"GPU KV cache size",
        "maximum concurrency": b"Maximum concurrency",
    }
    for one in judged(path.read_bytes(), shape).checks:
        if one.line and one.name in words:
            assert words[one.name] in lines[one.line - 1], one


def test_the_proof_boot_and_the_other_process_on_its_gpu():
    answer = judged(PROOF.read_bytes(), GRAPH)
    found = states(answer)
    off = {name for name, state in found.items() if state == FAIL}
    # 8.4 GiB were in use before it started: somebody else's, and growing
    assert off == {"CUDA context, NCCL", "non-torch memory"}
    assert all(found[name] == PASS for name in (*KV_LINES, "override", "model loading", "RoPE table rows"))
    assert found["peak activations"] == found["CUDA graphs"] == PASS
    assert answer.exit_code == 1


def test_the_proof_boot_is_its_envelopes():
    envelope = load_envelope("sm86-proof")
    found = states(judged(PROOF.read_bytes(), GRAPH, envelope))
    settings = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "async_scheduling")
    assert all(found[name] == PASS for name in (*settings, "num_gpu_blocks_override", "tensor_parallel_size"))


def test_another_envelopes_boot_is_told_setting_by_setting():
    found = states(judged(PROOF.read_bytes(), GRAPH, load_envelope("sm86-262k")))
    assert found["max_model_len"] == found["num_gpu_blocks_override"] == found["tensor_parallel_size"] == FAIL
    assert found["max_num_batched_tokens"] == PASS


@pytest.mark.parametrize(
    ("name", "old", "new", "off"),
    [
        ("deep", rb"404,734", b"404,735", "GPU KV cache size"),
        ("graph", rb"17,359,567", b"17,359,568", "GPU KV cache size"),
        ("graph", rb"1059\.54x", b"1059.64x", "maximum concurrency"),
        ("deep", rb"for 393,216 tokens", b"for 393,217 tokens", "maximum concurrency"),
        ("kv1791", rb"num_gpu_blocks=6908", b"num_gpu_blocks=6999", "override"),
        ("kv1791", rb"override=1791", b"override=1792", "override"),
        ("kv1790", rb"length is 392960", b"length is 392961", "engine minimum"),
        ("kv1790", rb"\(1\.73 GiB KV cache is needed", b"(1.74 GiB KV cache is needed", "engine minimum"),
        ("deep", rb"Model loading took 10\.04", b"Model loading took 10.54", "model loading"),
        ("deep", rb"Checkpoint size: 9\.85", b"Checkpoint size: 9.64", "checkpoint size"),
        ("graph", rb"'max_num_batched_tokens': 512", b"'max_num_batched_tokens': 500", "GPU KV cache size"),
        ("graph", rb"scheduling is enabled", b"scheduling is disabled", "GPU KV cache size"),
    ],
)
def test_one_changed_number_is_found(name: str, old: bytes, new: bytes, off: str):
    path, shape = BOOTS[name]
    data, count = re.subn(old, new, path.read_bytes())
    assert count, "the log has no such number"
    answer = judged(data, shape)
    assert states(answer)[off] == FAIL and answer.exit_code == 1
    bad = next(one for one in answer.checks if one.name == off)
    assert bad.mend and bad.line


def test_another_model_than_predicted_is_told_first():
    answer = judged(BOOTS["graph"][0].read_bytes(), FLASH)
    assert answer.checks[0].name == "checkpoint size" and answer.checks[0].state == FAIL
    assert "--model" in answer.checks[0].mend


def test_a_start_that_should_have_been_refused():
    data = BOOTS["kv1791"][0].read_bytes().replace(b"override': 1791", b"override': 1700")
    data = data.replace(b"override=1791", b"override=1700")
    assert states(judged(data, DEEP))["engine minimum"] == FAIL


def test_a_refusal_that_should_have_started():
    data = BOOTS["kv1790"][0].read_bytes().replace(b"1790", b"1795")
    assert states(judged(data, DEEP))["engine minimum"] == FAIL


@pytest.mark.parametrize("name", ["deep", "kv1790", "graph"])
def test_a_log_cut_anywhere_never_fails_and_never_passes_whole(name: str):
    path, shape = BOOTS[name]
    data = path.read_bytes()
    end = data.index(b"GPU KV cache size") if b"GPU KV cache size" in data else data.index(b"ValueError: To serve")
    for cut in range(2000, end, 1511):
        answer = judged(data[:cut], shape)
        assert FAIL not in states(answer).values(), cut
        assert NOT_SEEN in states(answer).values() and answer.exit_code == 1


@pytest.mark.parametrize("pieces", [1, 7, 4096])
def test_chunks_do_not_matter(pieces: int):
    path, shape = BOOTS["kv1791"]
    data = path.read_bytes()
    assert judged(data, shape, pieces=pieces) == judged(data, shape)


def test_the_last_boot_is_judged():
    data = BOOTS["kv1790"][0].read_bytes() + BOOTS["kv1791"][0].read_bytes()
    answer = judged(data, DEEP)
    assert answer.boots == 2 and answer.exit_code == 0 and states(answer)["GPU KV cache size"] == PASS
    other = judged(BOOTS["kv1791"][0].read_bytes() + BOOTS["kv1790"][0].read_bytes(), DEEP)
    assert states(other)["GPU KV cache size"] == NOT_APPLICABLE


def test_foreign_logs_are_off_and_do_not_crash():
    for path in sorted(LOGS.glob("*.log")):
        if not path.name.startswith("recorded"):
            assert judged(path.read_bytes()).exit_code == 1, path.name


@pytest.mark.parametrize("data", [b"", b"  \n\n", b"\0\1\2" * 100, b"dear diary\nnothing\n", b"\x1f\x8b" + b"x" * 50])
def test_what_is_no_log_is_refused(data: bytes):
    with pytest.raises(CouldNotRun):
        judged(data)


ODD_NUMBERS = (b"0", b"-1", b"1.2.3", b".", b",", b"", b"9" * 400, b"9" * 5000, b"nan", "٣".encode())


@pytest.mark.parametrize("odd", ODD_NUMBERS, ids=lambda odd: odd.decode()[:6] or "none")
def test_a_number_that_is_none_is_never_a_fault_of_the_program(odd: bytes):
    """Every number of every line that the planner reads, one after the other."""
    needles = (
        b"non-default args",
        b"Initializing a V1 LLM engine",
        b"Checkpoint size",
        b"Model loading took",
        b"Available KV",
        b"Overriding",
        b"KV cache size",
        b"Maximum concurrency",
        b"Graph capturing finished",
        b"Free memory on",
        b"rope_table_rows",
        b"sm86 backend",
    )
    lines = [line for line in PROOF.read_bytes().split(b"\n") if any(needle in line for needle in needles)]
    log = b"\n".join(lines) + b"\n"
    assert len(lines) >= 10
    whole = states(judged(log, GRAPH))
    differ = 0
    for number in re.finditer(rb"\d+(?:[.,]\d+)*", log):
        try:
            found = states(judged(log[: number.start()] + odd + log[number.end() :], GRAPH))
        except CouldNotRun:
            differ += 1
        else:
            differ += found != whole
    assert differ >= 8


def test_a_refusal_whose_numbers_are_none_is_a_refusal_still():
    log = BOOTS["kv1790"][0].read_bytes()
    for old, new, state in ((b"(1.73 GiB KV", b"(1.7.3 GiB KV", FAIL), (b"392960", b"9" * 5000, NOT_SEEN)):
        assert old in log
        found = states(judged(log.replace(old, new), DEEP))
        assert found["GPU KV cache size"] == NOT_APPLICABLE and found["engine minimum"] == state, new


def test_lines_of_an_earlier_boot_are_not_the_last_ones():
    """One boot was asynchronous and the other is not; each has its own checkpoint and memory, too."""
    deep, proof = BOOTS["deep"][0].read_bytes(), PROOF.read_bytes()
    for log, own in ((deep + proof, proof), (proof + deep, deep)):
        last, alone = log_facts.read([log]), log_facts.read([own])
        assert last.boots == 2
        assert last.async_scheduling.value == alone.async_scheduling.value
        assert last.checkpoint and alone.checkpoint and last.checkpoint.value == alone.checkpoint.value
        assert last.usage is not None and alone.usage is not None and last.usage.free == alone.usage.free
