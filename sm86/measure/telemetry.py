"""What the GPUs did while a run was measured, and whether something held them back. Pure.

A slow result has reasons that no number of tokens shows: a power cap, heat, a PCIe link that runs narrower than it
could, one GPU that is slower than the others and makes all wait. They are told beside the number and never hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from sm86.record import Verdict

NAME = "telemetry"
SEEN, NOT_SEEN, NOT_APPLICABLE = "seen", "not seen", "not applicable"

MOST_POINTS = 48
"""Points of a series in a record. Least, median and greatest are over all samples, so nothing is lost by thinning."""

SHARE = 0.2
"""A reason for low clocks counts from this share of the samples on: shorter ones do not move a median."""

AT_LIMIT = 0.95
SLOWER = 0.9
"""Of the GPUs' median clock: below it one GPU is the slow one that the others wait for."""

FEW_LANES = 4
BUSY_PERCENT, IDLE_POWER = 90, 0.5
SILENCE_S = 5.0

POWER, THERMAL, LINK, CLOCKS, LOST = "power cap", "thermal", "narrow link", "clocks", "GPU lost"

REASONS: tuple[tuple[int, str, str], ...] = (
    (0x4, POWER, "the power cap"),
    (0x80, POWER, "the power brake (hardware)"),
    (0x200, POWER, "the board's power limit"),
    (0x20, THERMAL, "heat (driver)"),
    (0x40, THERMAL, "heat (hardware)"),
    (0x8, CLOCKS, "a hardware slowdown"),
    (0x2, CLOCKS, "clocks that someone set"),
    (0x10, CLOCKS, "sync boost with a slower GPU"),
    (0x400, CLOCKS, "the reliability limit"),
)
"""NVML's bits of what keeps clocks down, the kind of limit and its words. Idle (0x1) and display (0x100) are none."""

STATISTICS = (
    "sm_clock_mhz",
    "mem_clock_mhz",
    "power_w",
    "temperature_c",
    "memory_mib",
    "busy_percent",
    "tx_mb_s",
    "rx_mb_s",
    "link_gen",
    "link_width",
)
SERIES = ("sm_clock_mhz", "power_w", "temperature_c", "memory_mib", "tx_mb_s", "rx_mb_s")


class Source(Protocol):
    """Who watches the GPUs (`sm86.host.telemetry.Watcher`); the three are complete once it has stopped."""

    gpus: list[Mapping[str, Any]]
    taken: list[dict[str, Any]]
    problem: str

    def start(self) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Limit:
    """What held GPUs back: POWER, THERMAL, LINK, CLOCKS or LOST; their indices; one sentence."""

    kind: str
    gpus: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Telemetry:
    """state: SEEN, NOT_SEEN or NOT_APPLICABLE; text: one sentence; in_window: samples while all sequences decoded.

    gpus: per GPU what does not change, `statistics` (least, median, greatest) and `reasons` (share of samples);
    series: `at_s` (seconds since the run began) and per GPU the values then, None where one is missing.
    """

    state: str
    text: str
    limits: tuple[Limit, ...] = ()
    notes: tuple[str, ...] = ()
    samples: int = 0
    in_window: int = 0
    gpus: tuple[Mapping[str, Any], ...] = ()
    series: Mapping[str, Any] = field(default_factory=dict)

    def verdict(self) -> Verdict:
        """A limit is a fail of this verdict; it warns, the number stays measured."""
        if self.state != SEEN:
            return Verdict(NAME, self.state, self.text)
        return Verdict(NAME, "fail" if self.limits else "pass", self.text)

    def to_json(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "text": self.text,
            "limits": [{"kind": one.kind, "gpus": list(one.gpus), "text": one.text} for one in self.limits],
            "notes": list(self.notes),
            "samples": self.samples,
            "in_window": self.in_window,
            "gpus": [dict(gpu) for gpu in self.gpus],
            "series": dict(self.series),
        }


NO_GPU = Telemetry(NOT_APPLICABLE, "no GPU: the CPU engine has no telemetry")
NOT_TAKEN = Telemetry(NOT_SEEN, "not watched: the server may run on another machine")


def summarise(source: Source | None, spans: Sequence[tuple[float, float]], origin: float) -> Telemetry:
    """What a stopped source saw. spans: (begin, end) of what was measured, in its clock's seconds; where no sample fell
    into one, all samples count, which the notes say. origin: when the run began. None: NO_GPU."""
    if source is None:
        return NO_GPU
    if source.problem or not source.gpus:
        return Telemetry(NOT_SEEN, source.problem or "NVML names no GPU")
    taken = [sample for sample in source.taken if isinstance(sample.get("at"), (int, float))]
    inside = [s for s in taken if any(begin <= s["at"] <= end for begin, end in spans)]
    notes = list(_silences(taken, spans, origin))
    if taken and not inside:
        notes.append("no sample fell into what was measured, so the whole run is told")
    counted = inside or taken
    columns = [
        _Gpu(int(still.get("index", place)), still, [_of(s, place) for s in counted])
        for place, still in enumerate(source.gpus)
    ]
    limits = _lost(taken, [gpu.index for gpu in columns], origin)
    if not any(gpu.values for gpu in columns):
        text = "; ".join(
            [*(limit.text for limit in limits), "the driver gives no clocks, power, temperature or traffic"]
        )
        return Telemetry(NOT_SEEN, "; ".join([text, *notes]), limits, tuple(notes), len(taken), len(inside))
    limits += _limits(columns)
    notes += _waiting(columns)
    text = "; ".join([limit.text for limit in limits] or [_usual(columns)])
    return Telemetry(
        SEEN,
        "; ".join([text, *notes]),
        limits,
        tuple(notes),
        len(taken),
        len(inside),
        tuple(gpu.to_json() for gpu in columns),
        _series(taken, len(columns), origin),
    )


class _Gpu:
    """One GPU's samples by fact."""

    def __init__(self, index: int, still: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> None:
        self.index = index
        self.still = still
        self.values: dict[str, list[float]] = {}
        for name in STATISTICS:
            found = [s[name] for s in samples if isinstance(s.get(name), (int, float))]
            if found:
                self.values[name] = found
        bits = [int(s["reasons"]) for s in samples if isinstance(s.get("reasons"), int)]
        self.reasons = {words: sum(bool(one & bit) for one in bits) / len(bits) for bit, _, words in REASONS if bits}

    def middle(self, name: str) -> float | None:
        return median(self.values[name]) if name in self.values else None

    def best(self, name: str) -> float | None:
        return max(self.values[name]) if name in self.values else None

    def fixed(self, name: str) -> float | None:
        value = self.still.get(name)
        return value if isinstance(value, (int, float)) else None

    def held_by(self, kind: str) -> list[tuple[str, float]]:
        """Reasons of that kind that count, and their share of the samples."""
        named = {words for _, k, words in REASONS if k == kind}
        return [(words, share) for words, share in self.reasons.items() if words in named and share >= SHARE]

    def to_json(self) -> dict[str, Any]:
        # the conditions name the GPUs; a second place would have to be redacted as well
        still = {name: value for name, value in self.still.items() if name != "uuid"}
        return {
            **still,
            "statistics": {n: [min(v), round(median(v), 1), max(v)] for n, v in self.values.items()},
            "reasons": {words: round(share, 3) for words, share in self.reasons.items() if share},
        }


def _limits(gpus: Sequence[_Gpu]) -> tuple[Limit, ...]:
    found = [*_held(gpus, POWER, _power_words), *_capped(gpus), *_held(gpus, THERMAL, _heat_words)]
    found += _held(gpus, CLOCKS, _clock_words)
    return (*found, *_narrow(gpus), *_uneven(gpus))


def _held(gpus: Sequence[_Gpu], kind: str, words: Callable[[_Gpu], str]) -> list[Limit]:
    held = [(gpu, gpu.held_by(kind)) for gpu in gpus if gpu.held_by(kind)]
    if not held:
        return []
    worst, reasons = max(held, key=lambda one: max(share for _, share in one[1]))
    reason, share = max(reasons, key=lambda one: one[1])
    who = tuple(gpu.index for gpu, _ in held)
    text = f"{kind}: {_who(who, len(gpus))} held back by {reason}, {100 * share:.0f} % of the time on {_name(worst)}"
    return [Limit(kind, who, text + words(worst))]


def _power_words(gpu: _Gpu) -> str:
    limit, usual = gpu.fixed("power_limit_w"), gpu.fixed("default_power_limit_w")
    if limit is None:
        return _clock_words(gpu)
    lowered = f", lowered from {usual:.0f} W" if usual is not None and limit < usual - 1 else ""
    return f" (limit {limit:.0f} W{lowered}){_clock_words(gpu)}"


def _heat_words(gpu: _Gpu) -> str:
    hottest = gpu.best("temperature_c")
    return ("" if hottest is None else f" at {hottest:.0f} °C") + _clock_words(gpu)


def _clock_words(gpu: _Gpu) -> str:
    clock, most = gpu.middle("sm_clock_mhz"), gpu.fixed("max_sm_clock_mhz")
    if clock is None:
        return ""
    return f", SM clock {clock:.0f} MHz" + (f" of {most:.0f}" if most else "")


def _capped(gpus: Sequence[_Gpu]) -> list[Limit]:
    """A lowered limit that the GPU runs at, where the driver does not give the reasons."""
    found = []
    for gpu in gpus:
        limit, usual, power = gpu.fixed("power_limit_w"), gpu.fixed("default_power_limit_w"), gpu.middle("power_w")
        if gpu.reasons or limit is None or usual is None or power is None or limit >= usual - 1:
            continue
        if power >= AT_LIMIT * limit:
            found.append(gpu)
    if not found:
        return []
    who = tuple(gpu.index for gpu in found)
    text = f"{POWER}: {_who(who, len(gpus))} at its power limit{_power_words(found[0])}"
    return [Limit(POWER, who, text)]


def _narrow(gpus: Sequence[_Gpu]) -> list[Limit]:
    """Links that ran below what card and slot have, by the best that was seen: idle links go down by design."""
    found: list[Limit] = []
    widths = {gpu.index: gpu.best("link_width") for gpu in gpus}
    usual = median([w for w in widths.values() if w is not None] or [0])
    for gpu in gpus:
        width, most = widths[gpu.index], gpu.fixed("max_link_width")
        if width is not None and most is not None and width < most:
            found.append(Limit(LINK, (gpu.index,), f"{LINK}: {_name(gpu)} ran x{width:.0f} of x{most:.0f} under load"))
        elif width is not None and (width < usual or width <= FEW_LANES):
            beside = f", the others x{usual:.0f}" if width < usual else ", few for tensor parallel"
            found.append(Limit(LINK, (gpu.index,), f"{LINK}: {_name(gpu)} has x{width:.0f}{beside}"))
        generation, newest = gpu.best("link_gen"), gpu.fixed("max_link_gen")
        if generation is not None and newest is not None and generation < newest:
            text = f"{LINK}: {_name(gpu)} ran PCIe generation {generation:.0f} of {newest:.0f} under load"
            found.append(Limit(LINK, (gpu.index,), text))
    return found


def _uneven(gpus: Sequence[_Gpu]) -> list[Limit]:
    clocks = {gpu.index: clock for gpu in gpus if (clock := gpu.middle("sm_clock_mhz")) is not None}
    if len(clocks) < 2:
        return []
    usual = median(clocks.values())
    slow = {index: clock for index, clock in clocks.items() if clock < SLOWER * usual}
    if not slow:
        return []
    index = min(slow, key=lambda one: slow[one])
    text = (
        f"{CLOCKS}: GPU {index} ran at {slow[index]:.0f} MHz, the median of all is {usual:.0f}: "
        "the others wait for it in every all-reduce"
    )
    return [Limit(CLOCKS, tuple(sorted(slow)), text)]


def _lost(taken: Sequence[Mapping[str, Any]], indices: Sequence[int], origin: float) -> tuple[Limit, ...]:
    found = []
    for place, index in enumerate(indices):
        errors = [(s["at"], str(_of(s, place)["error"])) for s in taken if "error" in _of(s, place)]
        if errors:
            at, why = errors[0]
            back = "" if "error" in _of(taken[-1], place) else ", and came back"
            found.append(Limit(LOST, (index,), f"{LOST}: GPU {index} from {at - origin:.0f} s on ({why}){back}"))
    return tuple(found)


def _silences(taken: Sequence[Mapping[str, Any]], spans: Sequence[tuple[float, float]], origin: float) -> list[str]:
    """Where NVML said nothing for long, up to the end of what was measured."""
    ends = [*(sample["at"] for sample in taken), *([max(end for _, end in spans)] if spans else [])]
    begin, found = origin, []
    for at in ends:
        if at - begin > SILENCE_S:
            found.append(f"NVML said nothing from {begin - origin:.0f} to {at - origin:.0f} s")
        begin = max(at, begin)
    return found[:3] + ([f"and was silent {len(found) - 3} times more"] if len(found) > 3 else [])


def _waiting(gpus: Sequence[_Gpu]) -> list[str]:
    for gpu in gpus:
        busy, power, limit = gpu.middle("busy_percent"), gpu.middle("power_w"), gpu.fixed("power_limit_w")
        if busy is None or power is None or limit is None:
            continue
        if busy >= BUSY_PERCENT and power < IDLE_POWER * limit:
            return [
                f"GPU {gpu.index} was busy {busy:.0f} % of the time at {power:.0f} of {limit:.0f} W: "
                "it waited, as in a collective, more than it computed"
            ]
    return []


def _usual(gpus: Sequence[_Gpu]) -> str:
    def over(name: str, choose: Callable[[Sequence[float]], float]) -> float | None:
        found = [gpu.middle(name) for gpu in gpus]
        known = [value for value in found if value is not None]
        return choose(known) if known else None

    words = []
    clock, power, heat = (
        over("sm_clock_mhz", min),
        over("power_w", max),
        max((value for gpu in gpus if (value := gpu.best("temperature_c")) is not None), default=None),
    )
    most, limit = gpus[0].fixed("max_sm_clock_mhz"), gpus[0].fixed("power_limit_w")
    if clock is not None:
        words.append(f"SM clock at least {clock:.0f} MHz" + (f" of {most:.0f}" if most else ""))
    if power is not None:
        words.append(f"at most {power:.0f} W" + (f" of {limit:.0f}" if limit else ""))
    if heat is not None:
        words.append(f"at most {heat:.0f} °C")
    width, generation = over("link_width", min), over("link_gen", min)
    if width is not None and generation is not None:
        words.append(f"link generation {generation:.0f} x{width:.0f}")
    traffic = over("rx_mb_s", max)
    if traffic is not None:
        words.append(f"{traffic:.0f} MB/s received")
    told = "" if any(gpu.reasons for gpu in gpus) else "; the driver does not say what keeps clocks down"
    all_of_them = "the GPU" if len(gpus) == 1 else f"the {len(gpus)} GPUs"
    return f"nothing held {all_of_them} back: {', '.join(words)}{told}"


def _series(taken: Sequence[Mapping[str, Any]], count: int, origin: float) -> dict[str, Any]:
    if len(taken) <= MOST_POINTS:
        kept = list(taken)
    else:
        kept = [taken[round(i * (len(taken) - 1) / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]
    rows = []
    for index in range(count):
        columns = {name: [_of(sample, index).get(name) for sample in kept] for name in SERIES}
        rows.append({name: values for name, values in columns.items() if any(v is not None for v in values)})
    return {"at_s": [round(sample["at"] - origin, 1) for sample in kept], "gpus": rows}


def _of(sample: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    gpus = sample.get("gpus", ())
    return gpus[index] if index < len(gpus) else {}


def _name(gpu: _Gpu) -> str:
    return f"GPU {gpu.index}"


def _who(indices: Sequence[int], count: int) -> str:
    if len(indices) == count and count > 1:
        return f"all {count} GPUs were"
    listed = ", ".join(map(str, indices))
    return f"GPU {listed} was" if len(indices) == 1 else f"GPUs {listed} were"
