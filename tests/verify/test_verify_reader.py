"""The reader: live and whole, the same events whatever the chunks, and no more memory for a longer log."""

import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sm86.verify import events as ev
from sm86.verify.reader import LogReader, read_events
from tests.verify.verify_logs import chunked, good, read


def events_in(chunks) -> list[ev.Event]:
    return list(read_events(chunks))


def test_a_bar_gives_one_event_for_each_step_and_keeps_its_line():
    bar = "".join(
        f"\rCapturing CUDA graphs (decode, FULL): {percent:3}%|##  | {done}/2 [00:00<00:00,  6.7it/s]"
        for done, percent in ((0, 0), (1, 50), (1, 50), (2, 100), (2, 100))
    )
    progress = events_in([f"first\n(Worker_TP0 pid=7) {bar[1:]}\nlast\n".encode()])
    assert [(e.line, e.family, e.done, e.total, e.percent, e.source.name) for e in progress] == [
        (2, "decode, FULL", 0, 2, 0, "Worker_TP0"),
        (2, "decode, FULL", 1, 2, 50, "Worker_TP0"),
        (2, "decode, FULL", 2, 2, 100, "Worker_TP0"),
    ]


def test_events_come_as_soon_as_their_line_ends():
    reader = LogReader()
    assert reader.feed(b"INFO:     Application startup") == []
    assert reader.feed(b" complete.") == []
    assert [type(event) for event in reader.feed(b"\n")] == [ev.StartupComplete]
    assert reader.close() == []


def test_lines_with_carriage_returns_before_their_ends_count_once():
    found = events_in([b"one\r\nUsing max model len 42\r\nthree\r\nINFO:     Application startup complete.\r\n"])
    assert [(event.line, type(event)) for event in found] == [(2, ev.ContextChosen), (4, ev.StartupComplete)]


def test_interleaved_workers_keep_their_lines():
    log = b"(Worker pid=1) (Worker pid=2) vLLM is using nccl==2.28.9\nvLLM is using nccl==2.28.9\n"
    assert [(event.line, event.source and event.source.pid) for event in events_in([log])] == [(1, 2), (2, None)]


def test_a_boring_line_does_not_hide_an_interesting_one_of_the_same_shape():
    # the shape of a line is remembered without its digits: one with a needle must still be read after one without
    log = "world.size=1 rank=0\nworld_size=1 rank=0 local_rank=0\n" * 3
    assert len(events_in([log.encode()])) == 3


SPECIMENS = {
    "composed": good().encode(),
    "l01": read("l01"),
    "l03": read("l03"),
    "l06": read("l06"),
    "graph": read("recorded_graph"),
    "cpu": read("recorded_cpu-smoke"),
}
WHOLE = {name: events_in([data]) for name, data in SPECIMENS.items()}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(SPECIMENS)), st.lists(st.integers(0, 2**31), max_size=12))
def test_chunk_boundaries_never_change_the_events_of_real_logs(name, cuts):
    assert events_in(chunked(SPECIMENS[name], cuts)) == WHOLE[name]


def test_byte_by_byte_gives_the_same_events():
    data = SPECIMENS["graph"][-12_000:]
    assert events_in(data[at : at + 1] for at in range(len(data))) == events_in([data])


PIECES = st.sampled_from(
    [
        b"\n",
        b"\r",
        b"\r\n",
        b"(Worker_TP0 pid=7) ",
        b"\x1b[0;36m(EngineCore pid=8)\x1b[0;0m ",
        b"INFO 11-30 15:50:56 [core.py:116] ",
        b"INFO:     ",
        b"Application startup complete.",
        b"Overriding num_gpu_blocks=5834 with num_gpu_blocks_override=1790",
        b"Capturing CUDA graphs (decode, FULL):  50%|#  | 1/2 [00:00<00:00]",
        b"Capturing CUDA graphs (decode, FULL): 100%|###| 2/2 [00:00<00:00]",
        b"[sm86] manifest begin v1",
        b"[sm86] key=value",
        b"torch.OutOfMemoryError: CUDA out of memory.",
        b"vLLM is using nccl==2.28.9",
        b'127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK',
        b"12.5",
        b"\xff\xfe",
        "█▄".encode(),
        b"words",
        b"Received request 12",
        b"KV cache size: 4 tokens, ",
        b"Capturing CUDA graphs (decode, FULL):  50%|#  | 1/2 [00:01<00:00,  6.78it/s]",
        b"Capturing CUDA graphs (decode, FULL):  50%|#  | 1/2 [00:02<00:00,  7.78it/s]",
        b"EngineDeadError",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=40).map(b"".join), st.lists(st.integers(0, 2**31), max_size=8))
def test_chunk_boundaries_never_change_the_events_of_any_log(data, cuts):
    assert events_in(chunked(data, cuts)) == events_in([data])


class Plain(LogReader):
    """The reader without its short cuts: every line is decoded and read."""

    def _stands_still(self, segment: bytes, shape: bytes) -> bool:
        return False

    def _is_worth_reading(self, segment: bytes, shape: bytes) -> bool:
        return True


def plainly(data: bytes) -> list[ev.Event]:
    reader = Plain()
    return [*reader.feed(data), *reader.close()]


@example(
    b"Capturing CUDA graphs (decode, FULL): 100%|###| 2/2 [00:00<00:00](Worker_TP0 pid=7) "
    b"Capturing CUDA graphs (decode, FULL):  50%|#  | 1/2 [00:01<00:00,  6.78it/s]\n",
    2,
)
@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=40).map(b"".join), st.integers(1, 4))
def test_the_short_cuts_never_change_the_events(data, times):
    assert events_in([data * times]) == plainly(data * times)


@pytest.mark.parametrize("name", SPECIMENS)
def test_the_short_cuts_never_change_the_events_of_real_logs(name):
    assert events_in([SPECIMENS[name] * 3]) == plainly(SPECIMENS[name] * 3)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=6))
def test_any_bytes_are_read_without_a_fault(data, cuts):
    assert events_in(chunked(data, cuts)) == events_in([data])


@pytest.mark.parametrize(
    "piece",
    [
        b"x" * 65536,
        b"Capturing CUDA graphs (decode, FULL):  50%|#####     | 1/2 [00:00<00:00,  6.78it/s]\r" * 700,
        b"Received request cmpl-1: prompt: ' CUDA out of memory ' " * 1200,
        b'(APIServer pid=1) INFO:     127.0.0.1:4785 - "GET /health HTTP/1.1" 200 OK\n' * 800,
    ],
    ids=["one line", "one bar", "one prompt", "traffic"],
)
def test_memory_does_not_grow_with_the_log(piece):
    reader = LogReader()
    for _ in range(10):
        reader.feed(piece)
    tracemalloc.start()
    count = sum(len(reader.feed(piece)) for _ in range(10))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000
    assert count <= 1
    reader.close()


def test_a_message_beyond_the_limit_of_a_line_is_cut_and_not_lost():
    reader = LogReader()
    config = b"Initializing a V1 LLM engine (v0.26.0) with config: model='m', x='" + b"y" * 200_000 + b"', z=1\n"
    (event,) = reader.feed(config)
    assert isinstance(event, ev.EngineInitialised)
    assert event.config == {"model": "'m'"}
    assert reader.lines == 2
