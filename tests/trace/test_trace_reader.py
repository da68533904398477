"""The reader: every layout and every kind of broken file; counts against a full parse."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm86.errors import CouldNotRun, Sm86Error
from sm86.trace import reader, source
from sm86.trace.analysis import analyse
from sm86.trace.events import BlockDecoder, Event, repair
from sm86.trace.reader import Trace, read
from sm86.trace.testing.generator import Recipe, write


def all_events(path: Path, standard: bool = False) -> tuple[list[Event], Trace]:
    trace = Trace(path, BlockDecoder(standard=standard))
    return [event for events in read(trace) for event in events], trace


def kernel(number: int, **more: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": f"kernel_{number}",
        "pid": 0,
        "tid": 7,
        "ts": 100.5 + number,
        "dur": 0.25,
        "args": {"stream": 7, "correlation": number, "grid": [1, 1, 1]},
        **more,
    }


EVENTS = [kernel(n) for n in range(40)] + [
    {"ph": "f", "id": 3, "pid": 0, "tid": 7, "ts": 1, "cat": "ac2g", "name": "ac2g"}
]
DEVICES = [{"id": 0, "name": "NVIDIA GeForce RTX 3090"}, {"id": 1, "name": "other"}]


def document(**more: Any) -> dict[str, Any]:
    return {"schemaVersion": 1, "deviceProperties": DEVICES, "traceEvents": EVENTS, **more}


LAYOUTS: dict[str, str] = {
    "compact": json.dumps(document(), separators=(",", ":")),
    "one line": json.dumps(document()),
    "indent 2": json.dumps(document(), indent=2),
    "indent 4": json.dumps(document(), indent=4),
    "sorted keys": json.dumps(document(), sort_keys=True, indent=1),
    "bare list": json.dumps(EVENTS),
    "bare list, indented": json.dumps(EVENTS, indent=2),
    "with a byte order mark": "\ufeff" + json.dumps(document()),
    "metadata behind the events": json.dumps(
        {"traceEvents": EVENTS, "deviceProperties": DEVICES, "distributedInfo": {"rank": 3, "world_size": 8}}
    ),
    "metadata that looks like events": json.dumps(
        {"traceEvents": EVENTS, "extra": [{"name": "a", "ph": 1}, {"name": "b"}], "deviceProperties": DEVICES}
    ),
    "events in metadata before": json.dumps({"note": [{"ph": "X"}, {"ph": "X"}], "traceEvents": EVENTS}),
}


@pytest.mark.parametrize("standard", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("piece", [1 << 21, 97])
def test_every_layout_gives_the_same_events(
    tmp_path: Path, layout: str, standard: bool, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "PIECE", piece)
    monkeypatch.setattr(source, "COMPRESSED_PIECE", piece)
    path = tmp_path / "trace.json"
    path.write_text(LAYOUTS[layout], encoding="utf-8")
    events, trace = all_events(path, standard)
    assert [(e.name, e.cat, e.ts, e.dur, e.args.correlation) for e in events] == [
        (e["name"], e["cat"], e["ts"], e.get("dur", -1.0), e.get("args", {}).get("correlation", -1)) for e in EVENTS
    ]
    assert (trace.decoder.dropped, trace.decoder.repaired, trace.truncated) == (0, 0, "")
    if "deviceProperties" in LAYOUTS[layout]:
        assert trace.device(0) == "NVIDIA GeForce RTX 3090"
    if "distributedInfo" in LAYOUTS[layout]:
        assert (trace.rank, trace.world_size) == (3, 8)


def test_a_name_that_looks_like_a_boundary_is_no_boundary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "PIECE", 64)
    monkeypatch.setattr(source, "COMPRESSED_PIECE", 64)
    nasty = [kernel(n, name='x},{"ph": "X"},{"name": y') for n in range(9)]
    nested = [kernel(n, args={"correlation": n, "list": [{"name": 1}, {"name": 2}]}) for n in range(9)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": nasty + nested}))
    events, trace = all_events(path)
    assert len(events) == 18 and trace.decoder.dropped == 0
    assert [e.args.correlation for e in events] == [*range(9), *range(9)]


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_cut_anywhere_gives_every_whole_event_before(tmp_path: Path, compressed: bool) -> None:
    text = LAYOUTS["indent 2"].encode()
    whole = gzip.compress(text, 6) if compressed else text
    previous = 0
    for size in range(len(whole) // 3, len(whole), 101 if not compressed else 3):
        path = tmp_path / "trace.json"
        path.write_bytes(whole[:size])
        trace = Trace(path, BlockDecoder())
        try:
            count = sum(len(events) for events in read(trace))
        except Sm86Error:
            assert compressed  # not even the head came out
            continue
        assert count >= previous and trace.decoder.events == count
        if count < len(EVENTS):
            assert trace.truncated
        if not compressed:
            whole_before = text[:size].count(b'"correlation"')
            assert count >= whole_before - 1
        previous = count


def test_damaged_gzip_is_said(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    write(path, Recipe(steps=3, layers=("SWA", "CSA")))
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 60] = b"\0" * 60
    path.write_bytes(data)
    events, trace = all_events(path)
    assert events and "damaged" in trace.truncated


@pytest.mark.parametrize("isal", [True, False])
@pytest.mark.parametrize("piece", [40, 1000, 1 << 21])
def test_gzip_of_any_ratio_is_read_to_the_end(
    tmp_path: Path, piece: int, isal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "PIECE", piece)
    if not isal:
        monkeypatch.setitem(sys.modules, "isal", None)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(LAYOUTS["indent 4"].encode() + b" " * 100_000))
    events, trace = all_events(path)
    assert len(events) == len(EVENTS) and not trace.truncated


def test_gzip_of_several_members_is_read_to_the_end(tmp_path: Path) -> None:
    text = LAYOUTS["one line"].encode()
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text[:3000]) + gzip.compress(text[3000:]) + b"\0" * 70_000)
    events, trace = all_events(path)
    assert len(events) == len(EVENTS) and not trace.truncated


def test_broken_events_all_over_a_large_block_cost_only_themselves(tmp_path: Path) -> None:
    events = [json.dumps(kernel(n, pad="x" * (n % 90))) for n in range(6000)]
    for n in range(0, 6000, 251):
        events[n] = events[n].replace(f'"kernel_{n}"', f'"f<"{n}">"')
    events[777] = events[777].replace('"ph": "X"', '"ph" "X"')
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [' + ",\n  ".join(events) + '], "distributedInfo": {"rank": 1}}')
    found, trace = all_events(path)
    assert [e.args.correlation for e in found] == [n for n in range(6000) if n != 777]
    assert (trace.decoder.repaired, trace.decoder.dropped, trace.rank, trace.truncated) == (24, 1, 1, "")


BROKEN = {
    "quotes in a name": ('"name": "kernel_7"', '"name": "void f<"a", "b">(int)"', 'void f<"a", "b">(int)', 1, 0),
    "a quote at the end of a name": ('"name": "kernel_7"', '"name": "say "hi""', 'say "hi"', 1, 0),
    "not a number": ('"grid": [1, 1, 1]', '"occupancy": -nan(ind)', "kernel_7", 1, 0),
    "infinity": ('"grid": [1, 1, 1]', '"occupancy": inf', "kernel_7", 1, 0),
    "a line break in a name": ('"name": "kernel_7"', '"name": "two\nlines"', "two\nlines", 0, 0),
    "a wrong escape": ('"name": "kernel_7"', '"name": "C:\\users\\x"', "C:\\users\\x", 1, 0),
    "garbage for an event": ('"ph": "X", "cat": "kernel", "name": "kernel_7"', '"ph" "X" !!', None, 0, 1),
}


@pytest.mark.parametrize("standard", [False, True])
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_event_costs_at_most_itself(tmp_path: Path, fault: str, standard: bool) -> None:
    old, new, name, repaired, dropped = BROKEN[fault]
    seventh = json.dumps(EVENTS[7])
    assert old in seventh
    path = tmp_path / "trace.json"
    path.write_text(LAYOUTS["one line"].replace(seventh, seventh.replace(old, new)))
    events, trace = all_events(path, standard)
    assert (trace.decoder.repaired, trace.decoder.dropped) == (repaired, dropped)
    assert len(events) == len(EVENTS) - dropped
    if name is not None:
        assert events[7].name == name
        assert events[7].args.correlation == 7
    assert [e.args.correlation for e in events if e.name != name][:7] == list(range(7))


@pytest.mark.parametrize("standard", [False, True])
@pytest.mark.parametrize("field", [{"tid": [7]}, {"tid": {"a": 1}}, {"ts": 10**400}, {"dur": 10**400}])
def test_values_of_odd_types_are_no_fault_of_the_program(tmp_path: Path, field: dict, standard: bool) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [EVENTS[0], kernel(777, **field), *EVENTS[1:]]}))
    events, _ = all_events(path, standard)
    assert [event.name for event in events[:3]] == ["kernel_0", "kernel_777", "kernel_1"]
    assert analyse(path, standard_json=standard).counts.gpu_events == 41


def test_bytes_that_are_no_utf_8_are_kept_readable(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(LAYOUTS["one line"].encode().replace(b"kernel_7", b"kernel_\xff7"))
    events, _ = all_events(path)
    assert len(events) == len(EVENTS) and events[7].args.correlation == 7


def test_log_lines_in_the_metadata_do_not_hide_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    head, tail = LAYOUTS["one line"].split('"traceEvents"')
    lines = '"INFO": ["INFO:2026-01-01 x.cpp:1] say "hello"", "b"], '
    path.write_text(
        head + lines + '"traceEvents"' + tail[:-1] + ', INFO:2026 raw line\n"distributedInfo": {"rank": 5}}'
    )
    events, trace = all_events(path)
    assert len(events) == len(EVENTS)
    assert trace.device(0) == "NVIDIA GeForce RTX 3090" and trace.rank == 5


def test_an_event_larger_than_the_limit_is_dropped_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "PIECE", 4096)
    monkeypatch.setattr(source, "COMPRESSED_PIECE", 4096)
    monkeypatch.setattr(reader, "EVENT_LIMIT", 20_000)
    path = tmp_path / "trace.json"
    events = [*EVENTS, kernel(1000, name="x" * 100_000), *EVENTS]
    path.write_text(json.dumps({"traceEvents": events}))
    found, trace = all_events(path)
    assert len(found) >= 2 * len(EVENTS) - 2 and trace.decoder.dropped >= 1


def test_a_repair_never_invents_a_correlation() -> None:
    assert repair('{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "args": {"correlation": }') is None


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.text(max_size=30), min_size=1, max_size=30),
    indent=st.sampled_from([None, 0, 1, 4]),
    piece=st.integers(40, 2000),
    ascii_only=st.booleans(),
)
def test_whatever_the_names_the_counts_are_those_of_a_full_parse(
    tmp_path: Path, names: list[str], indent: int | None, piece: int, ascii_only: bool
) -> None:
    path = tmp_path / "trace.json"
    text = json.dumps(
        {"traceEvents": [kernel(i, name=name) for i, name in enumerate(names)]}, indent=indent, ensure_ascii=ascii_only
    )
    path.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "PIECE", piece)
        patch.setattr(source, "COMPRESSED_PIECE", piece)
        events, trace = all_events(path)
    assert [e.args.correlation for e in events] == list(range(len(names)))
    assert trace.decoder.dropped == 0


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_anywhere_never_ends_in_a_traceback(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(LAYOUTS[data.draw(st.sampled_from(sorted(LAYOUTS)))].encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at : at + data.draw(st.integers(1, 30))] = data.draw(st.binary(max_size=12))
        if not whole:
            break
    path = tmp_path / "trace.json"
    path.write_bytes(bytes(whole))
    try:
        result = analyse(path)
    except CouldNotRun as error:
        assert "\n" not in error.what and error.mend
        return
    assert result.counts.gpu_events <= len(EVENTS) + 4
