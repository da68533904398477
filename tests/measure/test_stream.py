"""Bytes of a stream -> events, whatever the split."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm86.measure.stream import MAX_EVENT_BYTES, Chunk, Done, Fault, ServerError, StreamParser


def event(values: object) -> bytes:
    return b"data: " + json.dumps(values, ensure_ascii=False).encode() + b"\n\n"


def completion(text: str, made: int, finish: str | None = None) -> dict[str, object]:
    return {
        "id": "cmpl-1",
        "choices": [{"index": 0, "text": text, "finish_reason": finish}],
        "usage": {"prompt_tokens": 7, "total_tokens": 7 + made, "completion_tokens": made},
    }


FINAL = {
    "choices": [],
    "usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
}


def parse(data: bytes, cuts: list[int] | None = None, at: float = 0.0):
    parser = StreamParser()
    events = []
    edges = [0, *sorted(cuts or []), len(data)]
    for start, stop in pairwise(edges):
        events += parser.feed(data[start:stop], at)
    return events + parser.end(at)


def test_a_vllm_stream():
    data = event(completion("Hé", 1)) + event(completion("llo", 3, "length")) + event(FINAL) + b"data: [DONE]\n\n"
    assert parse(data, at=2.0) == [
        Chunk(2.0, "Hé", completion_tokens=1, prompt_tokens=7),
        Chunk(2.0, "llo", completion_tokens=3, prompt_tokens=7, finish_reason="length"),
        Chunk(2.0, completion_tokens=3, prompt_tokens=7, cached_tokens=4, choice=False),
        Done(2.0),
    ]


WHOLE = (
    b"\xef\xbb\xbf: keep-alive\r\n\r\n"
    + event(completion("日本 é 🙂", 1))
    + b"event: message\rdata: "
    + json.dumps(completion("a\nb", 2)).encode()
    + b"\r\r"
    + b'data: {"choices":\r\ndata: [], "usage": null}\r\n\r\n'
    + event({"error": {"message": "dead", "type": "x", "code": 500}})
    + b"data: nonsense\n\n"
    + b"data:[DONE]\n\n"
)


@settings(deadline=None)
@given(st.lists(st.integers(0, len(WHOLE)), max_size=12))
def test_any_split_gives_the_same_events(cuts):
    assert parse(WHOLE, cuts) == parse(WHOLE)


def test_every_single_split_gives_the_same_events():
    expected = parse(WHOLE)
    assert [type(e) for e in expected] == [Chunk, Chunk, Chunk, ServerError, Fault, Done]
    for cut in range(len(WHOLE) + 1):
        assert parse(WHOLE, [cut]) == expected
    assert parse(WHOLE, list(range(len(WHOLE)))) == expected


@settings(deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6))
def test_any_bytes_are_events_or_faults_and_splits_do_not_matter(data, cuts):
    cuts = [min(cut, len(data)) for cut in cuts]
    assert parse(data, cuts) == parse(data)


def test_the_time_is_that_of_the_read_which_completed_the_event():
    parser = StreamParser()
    data = event(completion("a", 1)) + event(completion("b", 2))
    assert parser.feed(data[:10], 1.0) == []
    first = parser.feed(data[10:-1], 2.0)
    second = parser.feed(data[-1:], 3.0)
    assert [chunk.at for chunk in first + second] == [2.0, 3.0]


def test_chat_keeps_reasoning_apart():
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "usage": {"completion_tokens": 0}}
    think = {"choices": [{"delta": {"reasoning": "hm"}}], "usage": {"completion_tokens": 2}}
    older = {"choices": [{"delta": {"reasoning_content": "hm"}}], "usage": {"completion_tokens": 3}}
    say = {"choices": [{"delta": {"content": "yes"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 4}}
    chunks = parse(b"".join(map(event, (role, think, older, say))))
    assert [(c.text, c.reasoning, c.completion_tokens) for c in chunks] == [
        ("", "", 0),
        ("", "hm", 2),
        ("", "hm", 3),
        ("yes", "", 4),
    ]
    assert chunks[-1].finish_reason == "stop"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"data: {\n\n", "not JSON"),
        (b"data: [1]\n\n", "no JSON object"),
        (b"data: 3\n\n", "no JSON object"),
        (b'data: {"a": 1}\n\n', "without choices"),
        (b'data: {"choices": [1]}\n\n', "one choice"),
        (b'data: {"choices": [{"text": 1}]}\n\n', "text is not a text"),
        (b'data: {"choices": [{"delta": 1}]}\n\n', "delta"),
        (b'data: {"choices": [], "usage": 3}\n\n', "usage"),
        (b'data: {"choices": [], "usage": {"completion_tokens": "3"}}\n\n', "not a count"),
        (b'data: {"choices": [], "usage": {"completion_tokens": true}}\n\n', "not a count"),
        (b'data: {"choices": [], "usage": {"completion_tokens": -1}}\n\n', "not a count"),
        (b'data: {"choices": [{"text": "", "token_ids": [1.5]}]}\n\n', "token ids"),
        (b"<html>\n<body>\n", "no server-sent event"),
        (b"\x00\x01\x02\n", "no server-sent event"),
        (b'data: {"choices": []}', "ends inside"),
        (b'data: {"choices": []}\n', "ends inside"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "not JSON"),
    ],
)
def test_nonsense_is_one_typed_fault(data, problem):
    (fault,) = parse(data)
    assert isinstance(fault, Fault)
    assert problem in fault.problem
    assert fault.excerpt.isprintable() and len(fault.excerpt) <= 160


def test_an_endless_line_is_a_fault_and_is_not_kept():
    parser = StreamParser()
    events = []
    for _ in range(MAX_EVENT_BYTES // 65536 + 2):
        events += parser.feed(b"x" * 65536, 0.0)
    assert [type(e) for e in events] == [Fault]
    assert len(parser._line) == 0


def test_errors_of_the_server():
    (error,) = parse(event({"error": {"message": "boom", "type": "InternalServerError", "code": 500}}))
    assert error == ServerError(0.0, "boom", 500)
    assert parse(event({"error": "plain"})) == [ServerError(0.0, "plain", None)]


@pytest.mark.parametrize(
    ("logprobs", "bad", "lowest"),
    [
        (None, None, None),
        ({"token_logprobs": []}, None, None),
        ({"token_logprobs": [-0.1, -2]}, False, -2.0),
        ({"token_logprobs": [-0.1, None]}, True, -0.1),
        ({"token_logprobs": [float("nan")]}, True, None),
        ({"token_logprobs": ["x"]}, True, None),
    ],
)
def test_log_probabilities(logprobs, bad, lowest):
    values = completion("a", 1)
    values["choices"][0]["logprobs"] = logprobs  # type: ignore[index]
    (chunk,) = parse(event(values))
    assert chunk.bad_logprob is bad
    assert chunk.lowest_logprob == lowest
    assert replace(chunk, bad_logprob=None, lowest_logprob=None) == Chunk(
        0.0, "a", completion_tokens=1, prompt_tokens=7
    )
