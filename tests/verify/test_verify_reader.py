from sm86.verify import events as ev
from sm86.verify.reader import LogReader, read_events


def test_a_bar_gives_one_event_for_each_step_and_keeps_its_line():
    bar = "".join(
        f"\rCapturing CUDA graphs (decode, FULL): {percent:3}%|##  | {done}/2 [00:00<00:00,  6.7it/s]"
        for done, percent in ((0, 0), (1, 50), (1, 50), (2, 100), (2, 100))
    )
    log = f"first\n(Worker_TP0 pid=7) {bar[1:]}\nlast\n".encode()
    progress = list(read_events([log]))
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
