"""From bytes to messages: everything that stands between a log and what it says."""

import pytest

from sm86.verify.lines import SEGMENT_LIMIT, Blocks, Message, Source, decode, messages

W0, W3 = Source("Worker_TP0", 7), Source("Worker_TP3", 9)


def said(text: str, inherited: Source | None = None) -> list[tuple[str, str, str | None]]:
    return [(m.text, m.level, m.source.name if m.source else None) for m in messages(text, inherited)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain words", [("plain words", "", None)]),
        ("INFO 11-30 15:50:56 [core.py:116] ready", [("ready", "INFO", None)]),
        ("(EngineCore pid=12) INFO 11-30 15:50:56 [core.py:116] ready", [("ready", "INFO", "EngineCore")]),
        ("(Worker_TP0_DCP0 pid=12) WARNING 11-30 15:50:56 [a/b.py:1] x", [("x", "WARNING", "Worker_TP0_DCP0")]),
        ("(RayWorker pid=12, ip=10.0.0.2) x", [("x", "", "RayWorker")]),
        (
            "(APIServer pid=1) INFO:     Application startup complete.",
            [("Application startup complete.", "INFO", "APIServer")],
        ),
        ("INFO:     Application startup complete.", [("Application startup complete.", "INFO", None)]),
        # prefixes pile up when workers interleave: only the last one's text is here
        (
            "(Worker pid=1) (Worker pid=6) (Worker pid=4) WARNING 05-15 05:09:04 [s.py:66] no",
            [("no", "WARNING", "Worker")],
        ),
        # a bar does not end its line, so the next worker's message is glued to it
        (
            "Capturing: 80%| 4/5 [00:00, 4.25it/s](Worker_TP3 pid=9) INFO 05-22 20:43:33 [c.py:215] Registering",
            [("Capturing: 80%| 4/5 [00:00, 4.25it/s]", "", None), ("Registering", "INFO", "Worker_TP3")],
        ),
        (
            "a bar 50%INFO 05-22 20:43:33 [c.py:215] oneERROR 05-22 20:43:34 [d.py:1] two",
            [("a bar 50%", "", None), ("one", "INFO", None), ("two", "ERROR", None)],
        ),
        ("sm86-262k-1  | (Worker_TP0 pid=7) INFO 11-30 15:50:56 [c.py:1] x", [("x", "INFO", "Worker_TP0")]),
        ("sm86-262k  | 2026-11-30T15:50:56.123456789Z INFO:     x", [("x", "INFO", None)]),
        ("2026-11-30T15:50:56.123456789Z stdout F (EngineCore pid=3) x", [("x", "", "EngineCore")]),
        ("(Worker_TP0 pid=7) ", []),
        ("", []),
        ("   ", []),
    ],
)
def test_messages_come_out_without_their_wrapping(text, expected):
    assert said(text) == expected


def test_a_segment_without_a_prefix_belongs_to_the_writer_of_its_line():
    assert messages("50%|##", W0) == [Message("50%|##", "", W0)]
    assert [m.source for m in messages("50%|##(Worker_TP3 pid=9) x", W0)] == [W0, W3]


def test_the_rank_is_in_the_workers_name():
    assert Source("Worker_TP3", 1).rank == 3
    assert Source("Worker_PP0_TP11_DCP2", 1).rank == 11
    assert Source("EngineCore", 1).rank is None


def test_escape_codes_byte_order_mark_and_bad_bytes():
    coloured = (
        b"\xef\xbb\xbf\x1b[0;36m(Worker_TP0 pid=7)\x1b[0;0m \x1b]0;title\x07INFO 11-30 15:50:56 [c.py:1] a\xffb\x1b[K"
    )
    assert said(decode(coloured)) == [("a\ufffdb", "INFO", "Worker_TP0")]


def test_a_text_that_was_cut_in_an_escape_code_or_a_character_is_still_text():
    assert decode(b"abc\x1b[3")[:3] == "abc"
    assert decode("█".encode()[:2]) == "\ufffd"


def test_blocks_end_where_a_line_or_a_bar_ends():
    blocks = Blocks()
    assert blocks.feed(b"one\ntw") == b"one\n"
    assert blocks.feed(b"o\rthree") == b"two\r"
    assert blocks.close() == b"three"
    assert blocks.close() == b""


def test_a_line_without_an_end_does_not_pile_up():
    blocks = Blocks()
    for _ in range(64):
        assert blocks.feed(b"x" * 65536) == b""
    assert len(blocks.close()) == SEGMENT_LIMIT
