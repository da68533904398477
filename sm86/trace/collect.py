"""From the stream of events to units: launches, annotations and GPU events joined by correlation id. Pure.

GPU events wait in columns. Kineto writes CUPTI's buffers in the order of their addresses, so a launch
can stand far from its kernels, and one graph's kernels in two places. When WINDOW events wait, units
that look whole (launch known, as many events as others have) and lie far enough back are added up and
forgotten; the rest waits on. Memory is bounded by WINDOW and by what is kept per unit (about 1 KB), not by
the file: when too much waits, the oldest are given up on, and what comes for them later is counted as
late, or asks for a second reading (`late`). GPU events are joined to launches by correlation id,
never by time; a launch belongs to the step whose annotation on its own thread was open when it was made.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from sm86.errors import printable
from sm86.trace.events import Event
from sm86.trace.kernels import Kind, kind_of
from sm86.trace.units import Tally, Unit, unit_of

WINDOW = 1 << 19
LAUNCH_LIMIT = 1 << 19
TIME_LIMIT = 1 << 62
NAME_LIMIT = 1 << 17
# So often must a number of events come up before units of that size count as whole.
USUAL = 3
ANNOTATION_LIMIT = 10_000

GPU_CATEGORIES = frozenset(("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"))
CPU_CATEGORIES = frozenset(("cuda_runtime", "cuda_driver", "Runtime", "user_annotation", "hip_runtime", "runtime"))
PYTORCH_CATEGORIES = GPU_CATEGORIES | CPU_CATEGORIES | {"cpu_op", "python_function", "Operator", "Trace", "ac2g"}

GRAPH_LAUNCHES = frozenset(("cudaGraphLaunch", "cudaGraphLaunch_ptsz", "cuGraphLaunch", "hipGraphLaunch"))
# A driver call that this version of Kineto has no name for; cuGraphLaunch is one of them in torch 2.11.
UNNAMED = frozenset(("unknown", "INVALID"))
_LAUNCHING = re.compile(r"launch|memcpy|memset", re.IGNORECASE)
STEP = re.compile(r"^execute_(?:\d+_)?context_(\d+)\(.*\)_generation_(\d+)\(.*\)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Step:
    """One annotated call of the model: on which thread, from when to when (ns), and its batch."""

    start: int
    end: int
    thread: str
    context: int
    generation: int

    @property
    def label(self) -> str:
        """What units must have in common to be averaged: decode steps of one batch size."""
        if self.context == 0 and self.generation > 0:
            return f"decode {self.generation}"
        return "prefill" if self.generation == 0 else "mixed"


@dataclass(slots=True)
class Counts:
    """Plain counts of a file; the names are those of the answer key of real traces."""

    launches: int = 0
    graphs_with_gpu_events: int = 0
    graph_gpu_events: int = 0
    graph_ns: int = 0
    nodes_min: int = 0
    nodes_max: int = 0
    gpu_events: int = 0
    orphan_groups: list[int] = field(default_factory=list)
    orphan_ns: int = 0
    gpu_before_launch: int = 0
    annotations: dict[str, int] = field(default_factory=dict)
    annotations_not_listed: int = 0
    without_time: int = 0
    cut_launches: int = 0
    late_events: int = 0
    outside_events: int = 0


Launches = dict[int, tuple[int, str]]


@dataclass(slots=True)
class _Late:
    """What came after its kernels had been given up on: only a second reading can join it."""

    graphs: Launches = field(default_factory=dict)
    others: Launches = field(default_factory=dict)
    unnamed: Launches = field(default_factory=dict)
    steps: int = 0

    def count(self) -> int:
        return len(self.graphs) + len(self.others) + len(self.unnamed) + self.steps

    def __bool__(self) -> bool:
        return self.count() > 0


class _Names(dict[str, int]):
    """Kernel name -> number. Beyond NAME_LIMIT all further names share one number."""

    def __init__(self) -> None:
        super().__init__()
        self.list: list[str] = []
        self.kinds: list[Kind] = []

    def __missing__(self, name: str | None) -> int:
        text = printable(name) if name else "(no name)"
        if len(self.list) >= NAME_LIMIT:
            text = "(further names)"
            if text in self:
                return self[text]
        number = len(self.list)
        self.list.append(text)
        self.kinds.append(kind_of(text))
        self[text] = number
        return number


class _Streams(dict[object, int]):
    def __init__(self) -> None:
        super().__init__()
        self.list: list[str] = []

    def __missing__(self, key: object) -> int:
        number = min(len(self.list), 65535)
        if number < 65535:
            self.list.append(str(key))
        self[key] = number
        return number


class Collector:
    """Takes a file's events in any order and hands its units to `graphs` and `steps`."""

    def __init__(self, window: int = WINDOW, before: Collector | None = None) -> None:
        """window: how many GPU events may wait in memory before whole units are added up.

        before: the collector of a first reading of the same file, for the steps and launches that it met.
        """
        self.window = window
        self.counts = Counts()
        self.names = _Names()
        self.streams = _Streams()
        self.graphs = Tally(self.names.kinds)
        self.steps = Tally(self.names.kinds)
        self.outside: dict[int, list[int]] = {}
        self.first_device: object = None
        self.steps_seen = 0
        self._steps: list[Step] = []
        self._sorted_steps = 0
        self._launches: Launches = {}
        self._unnamed: Launches = {}
        self._other_launches: Launches = {}
        self._folded: dict[Hashable, None] = {}
        self._steps_done: dict[Hashable, None] = {}
        self._threads: dict[object, str] = {}
        self._text_ids: dict[str, int] = {}
        self._given_up: dict[Hashable, None] = {}
        self._whole_sizes: Counter[tuple[str, int]] = Counter()
        self._latest_alone = -1
        self.late = _Late()
        self._before = before.late if before else _Late()
        self._first_reading = before is None
        if before is not None:
            self._steps, self._sorted_steps, self.steps_seen = before._steps, -1, before.steps_seen
            self.counts.annotations = before.counts.annotations
            self.counts.annotations_not_listed = before.counts.annotations_not_listed
            self._text_ids = before._text_ids
            self._launches = dict(before.late.graphs)
            self._other_launches = dict(before.late.others)
            self._unnamed = dict(before.late.unnamed)
            self.counts.launches = len(self._launches)
        self._graph_ids: dict[int, int | str] = {}
        self._name = array("i")
        self._stream = array("H")
        self._start = array("q")
        self._duration = array("q")
        self._correlation = array("q")

    def feed(self, events: list[Event]) -> None:
        """Take one block of events, whatever its size."""
        if len(events) <= self.window:
            self._take(events)
            return
        for low in range(0, len(events), self.window):
            self._take(events[low : low + self.window])

    def _take(self, events: list[Event]) -> None:
        for event in [event for event in events if event.cat in CPU_CATEGORIES]:
            self._cpu(event)
        gpu = [event for event in events if event.cat in GPU_CATEGORIES]
        if not gpu:
            return
        if self.first_device is None:
            self.first_device = gpu[0].args.device
        self.counts.gpu_events += len(gpu)
        names, streams = self.names, self.streams
        self._name.extend([names[event.name] for event in gpu])  # type: ignore[index]
        self._stream.extend([streams[event.tid] for event in gpu])
        numbers: array[int]
        try:
            starts = [int(event.ts * 1000 + 0.5) for event in gpu]
            durations = [int(event.dur * 1000 + 0.5) for event in gpu]
            numbers = array("q", [event.args.correlation for event in gpu])  # type: ignore
            if max(starts) > TIME_LIMIT or max(durations) > TIME_LIMIT:
                raise OverflowError
        except (TypeError, OverflowError, ValueError):
            starts = [_ns(event.ts) for event in gpu]
            durations = [_ns(event.dur) for event in gpu]
            numbers = array("q", [self._id(event.args.correlation) for event in gpu])
        self._start.extend(starts)
        self._duration.extend(durations)
        self._correlation.extend(numbers)
        if gpu[0].args.graph_id != -1 or gpu[-1].args.graph_id != -1:
            for event in gpu:
                if event.args.graph_id not in (-1, 0):
                    self._graph_ids[self._id(event.args.correlation)] = event.args.graph_id
        # CUPTI had no time for these; they are left out wherever times are summed, and counted here
        if min(durations) <= 0 or min(starts) <= 0:
            self.counts.without_time += sum(d <= 0 or s <= 0 for d, s in zip(durations, starts, strict=True))
        if len(self._correlation) >= self.window:
            self._fold(self.window // 2)

    def _id(self, correlation: int | str) -> int:
        """A correlation id as a number; texts, and numbers beyond 64 bits, get numbers below -1."""
        if isinstance(correlation, int) and -(1 << 62) < correlation < 1 << 62:
            return correlation
        text = str(correlation)
        if text.isascii() and text.isdigit() and len(text) < 19:
            return int(text)
        return self._text_ids.setdefault(text, -2 - len(self._text_ids))

    def finish(self) -> None:
        """Add up everything that still waits. Call once, after the last event."""
        self._fold(None)
        self.counts.cut_launches += len(self._launches)
        self.counts.orphan_groups.sort()

    def _cpu(self, event: Event) -> None:
        name = event.name or ""
        if event.cat == "user_annotation":
            match = STEP.match(name)
            if match:
                self._annotation(event, name, int(match[1]), int(match[2]))
            return
        if event.args.correlation == -1:
            return
        correlation = self._id(event.args.correlation)
        made = (_ns(event.ts), self._threads.setdefault(event.tid, str(event.tid)))
        if name in GRAPH_LAUNCHES:
            if correlation in self._launches or correlation in self._folded:
                return  # the runtime's and the driver's record of one call
            self.counts.launches += 1
            _put(self.late.graphs if correlation in self._given_up else self._launches, correlation, made)
        elif name in UNNAMED:
            if correlation not in self._before.unnamed:
                _put(self.late.unnamed if correlation in self._given_up else self._unnamed, correlation, made)
        elif _LAUNCHING.search(name) and correlation not in self._before.others:
            _put(self.late.others if correlation in self._given_up else self._other_launches, correlation, made)

    def _annotation(self, event: Event, name: str, context: int, generation: int) -> None:
        if not self._first_reading:
            return  # all of them are known
        listed = self.counts.annotations
        if name in listed or len(listed) < ANNOTATION_LIMIT:
            listed[name] = listed.get(name, 0) + 1
        else:
            self.counts.annotations_not_listed += 1
        start = _ns(event.ts)
        end = start + max(0, _ns(event.dur))
        self.late.steps += start <= self._latest_alone
        self._steps.append(Step(start, end, str(event.tid), context, generation))
        self.steps_seen += 1

    def _step_of(self, launch: tuple[int, str] | None) -> int | None:
        """The number of the step that was open when `launch` was made on the same thread, or None."""
        if launch is None or not self._steps:
            return None
        index = bisect_right(self._steps, launch[0], key=lambda step: step.start) - 1
        while index >= 0:
            step = self._steps[index]
            if step.thread == launch[1]:
                return index if launch[0] <= step.end else None
            index -= 1
        return None

    def _fold(self, keep: int | None) -> None:
        """Hand every unit to its tally whose last event is not among the newest `keep` (None: all)."""
        if self._sorted_steps != len(self._steps):
            self._steps.sort(key=lambda step: step.start)
            self._sorted_steps = len(self._steps)
        groups = _runs(self._correlation)
        steps: dict[int, list[tuple[int, int]]] = {}
        step_of: dict[int, int] = {}
        for correlation, ranges in groups.items():
            step = self._step_of(self._launch_of(correlation))
            if step is not None:
                step_of[correlation] = step
                steps.setdefault(step, []).extend(ranges)
        waiting: set[int] = set()
        waiting_steps: set[int] = set()
        if keep is not None:
            waiting, waiting_steps = self._waiting(groups, steps, step_of, len(self._correlation) - keep)
            waiting |= {correlation for correlation, step in step_of.items() if step in waiting_steps}
        for step, ranges in sorted(steps.items()):
            if step not in waiting_steps:
                self._step(step, sorted(ranges))
        kept: list[tuple[int, int]] = []
        for correlation, ranges in groups.items():
            if correlation in waiting:
                kept.extend(ranges)
            else:
                self._group(correlation, ranges, correlation in step_of)
        self._keep(sorted(kept))

    def _launch_of(self, correlation: int) -> tuple[int, str] | None:
        return (
            self._launches.get(correlation) or self._other_launches.get(correlation) or self._unnamed.get(correlation)
        )

    def _waiting(
        self,
        groups: dict[int, list[tuple[int, int]]],
        steps: dict[int, list[tuple[int, int]]],
        step_of: dict[int, int],
        border: int,
    ) -> tuple[set[int], set[int]]:
        """The lone correlation ids, and the steps, that must wait on: recent, or not seen to be whole yet."""
        sizes = Counter(self._whole_sizes)
        alone = {
            c: _size(ranges) for c, ranges in groups.items() if c not in step_of and len(ranges) + _size(ranges) > 2
        }
        of_step = {step: (self._steps[step].label, _size(ranges)) for step, ranges in steps.items()}
        sizes.update(("", size) for size in alone.values())
        sizes.update(of_step.values())
        held: list[tuple[int, int, bool, int]] = []
        for correlation, ranges in groups.items():
            if correlation in step_of:
                continue
            size = alone.get(correlation, 1)
            whole = self._launch_of(correlation) is not None and (size == 1 or sizes["", size] >= USUAL)
            if ranges[-1][1] > border or not whole:
                held.append((ranges[-1][1], size, False, correlation))
        for step, ranges in steps.items():
            last = max(high for _, high in ranges)
            if last > border or sizes[of_step[step]] < USUAL:
                held.append((last, of_step[step][1], True, step))
        waits = sum(size for _, size, _, _ in held)
        if waits > self.window * 3 // 4:
            held.sort()
            while held and waits > self.window // 2:
                # it waited longest; whatever comes for it later is late
                waits -= held[0][1]
                _, _, is_step, key = held.pop(0)
                if not is_step and self._launch_of(key) is None:
                    _remember(self._given_up, key)
        waiting = {key for _, _, is_step, key in held if not is_step}
        for correlation in groups:
            launch = self._launch_of(correlation)
            if launch and correlation not in waiting and correlation not in step_of:
                self._latest_alone = max(self._latest_alone, launch[0])
        waiting_steps = {key for _, _, is_step, key in held if is_step}
        self._whole_sizes.update(("", size) for c, size in alone.items() if c not in waiting)
        self._whole_sizes.update(label for step, label in of_step.items() if step not in waiting_steps)
        return waiting, waiting_steps

    def _group(self, correlation: int, ranges: list[tuple[int, int]], in_step: bool) -> None:
        """Count one correlation id's GPU events: a graph, an orphan graph, or kernels launched one by one."""
        counts = self.counts
        nodes = sum(high - low for low, high in ranges)
        launch = self._launches.pop(correlation, None)
        if launch is None and nodes > 1 and correlation in self._unnamed:
            launch = self._unnamed.pop(correlation)
            counts.launches += 1
        if launch is None and correlation in self._folded:
            counts.late_events += nodes
            return
        if launch is not None:
            _remember(self._folded, correlation)
            counts.graphs_with_gpu_events += 1
            counts.graph_gpu_events += nodes
            counts.nodes_min = min(counts.nodes_min or nodes, nodes)
            counts.nodes_max = max(counts.nodes_max, nodes)
            for low, high in ranges:
                counts.graph_ns += sum(duration for duration in self._duration[low:high] if duration > 0)
                starts = self._start[low:high]
                if min(starts) < launch[0]:
                    counts.gpu_before_launch += sum(start < launch[0] for start in starts)
            unit = self._unit(ranges, launch[0])
            if unit is not None:
                graph_id = self._graph_ids.pop(correlation, None)
                unit.label = f"graph {graph_id}" if graph_id is not None else ""
                unit.graphs = 1
                self.graphs.add(unit)
            return
        other = self._other_launches.pop(correlation, None)
        if other is None and nodes > 1 and correlation != -1:
            counts.orphan_groups.append(nodes)
            counts.orphan_ns += sum(d for low, high in ranges for d in self._duration[low:high] if d > 0)
            return
        if in_step:
            return
        for low, high in ranges:
            for index in range(low, high):
                if not self._has_time(index):
                    continue
                counts.outside_events += 1
                cell = self.outside.setdefault(self._name[index], [0, 0])
                cell[0] += 1
                cell[1] += self._duration[index]

    def _step(self, number: int, ranges: list[tuple[int, int]]) -> None:
        step = self._steps[number]
        if (step.start, step.thread) in self._steps_done:
            self.counts.late_events += sum(high - low for low, high in ranges)
            return
        _remember(self._steps_done, (step.start, step.thread))
        unit = self._unit(ranges, step.start)
        if unit is not None:
            unit.label = step.label
            unit.graphs = len({self._correlation[low] for low, _ in ranges} & self._launches.keys())
            self.steps.add(unit)

    def _has_time(self, index: int) -> bool:
        return self._start[index] > 0 and self._duration[index] > 0

    def _unit(self, ranges: list[tuple[int, int]], launch: int) -> Unit | None:
        """The unit of these events; those without a time are left out. None when none is left."""
        if len(ranges) == 1:
            low, high = ranges[0]
            names, streams = self._name[low:high], self._stream[low:high]
            starts, durations = self._start[low:high].tolist(), self._duration[low:high].tolist()
        else:
            names, streams = array("i"), array("H")
            starts, durations = [], []
            for low, high in ranges:
                names.extend(self._name[low:high])
                streams.extend(self._stream[low:high])
                starts.extend(self._start[low:high])
                durations.extend(self._duration[low:high])
        if min(durations) <= 0 or min(starts) <= 0:
            timed = [i for i in range(len(starts)) if starts[i] > 0 and durations[i] > 0]
            if not timed:
                return None
            names, streams = array("i", [names[i] for i in timed]), array("H", [streams[i] for i in timed])
            starts, durations = [starts[i] for i in timed], [durations[i] for i in timed]
        return unit_of(names, streams, starts, durations, launch)

    def _keep(self, ranges: list[tuple[int, int]]) -> None:
        name, stream = array("i"), array("H")
        start, duration, correlation = array("q"), array("q"), array("q")
        for low, high in ranges:
            name.extend(self._name[low:high])
            stream.extend(self._stream[low:high])
            start.extend(self._start[low:high])
            duration.extend(self._duration[low:high])
            correlation.extend(self._correlation[low:high])
        self._name, self._stream, self._start, self._duration = name, stream, start, duration
        self._correlation = correlation


def _runs(values: array[int]) -> dict[int, list[tuple[int, int]]]:
    """Each value's runs of equal neighbours as (first, behind last), in the order of the values' first runs."""
    runs: dict[int, list[tuple[int, int]]] = {}
    low, size = 0, len(values)
    while low < size:
        value, high = values[low], low + 1
        while high < size and values[high] == value:
            high += 1
        if value in runs:
            runs[value].append((low, high))
        else:
            runs[value] = [(low, high)]
        low = high
    return runs


def _size(ranges: list[tuple[int, int]]) -> int:
    return sum(high - low for low, high in ranges)


def _put(launches: Launches, correlation: int, made: tuple[int, str]) -> None:
    """Add a launch, and forget the oldest beyond LAUNCH_LIMIT."""
    launches[correlation] = made
    if len(launches) > LAUNCH_LIMIT:
        del launches[next(iter(launches))]


def _remember(seen: dict[Hashable, None], key: Hashable) -> None:
    """Add `key`, and forget the oldest beyond LAUNCH_LIMIT."""
    seen[key] = None
    if len(seen) > LAUNCH_LIMIT:
        del seen[next(iter(seen))]


def _ns(microseconds: float) -> int:
    """Whole nanoseconds; -1 for what is no time (not finite, or beyond 64 bits)."""
    value = microseconds * 1000 + 0.5
    return int(value) if -1e3 < value < TIME_LIMIT else -1
