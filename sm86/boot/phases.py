"""The phases of a boot, from the events of the server's log and the moments they came in. Pure.

image, start, load, profile, capture, ready: each begins with the first event that can only belong to it. A log
may leave a phase out (a version that words it otherwise); such a phase is "not seen", never "passed".
"""

from __future__ import annotations

from dataclasses import dataclass

from sm86.spec import Envelope
from sm86.verify import events as e

IMAGE = "image"
START = "start"
LOAD = "load"
PROFILE = "profile"
CAPTURE = "capture"
READY = "ready"

ALL = (IMAGE, START, LOAD, PROFILE, CAPTURE, READY)

MEANING = {
    IMAGE: "image and folders checked, container made",
    START: "interpreter, launcher, workers",
    LOAD: "weights",
    PROFILE: "memory, KV cache, kernels",
    CAPTURE: "CUDA graphs",
    READY: "API answers",
}

PASSED = "passed"
FAILED = "failed"
RUNNING = "running"
WAITING = "waiting"
NOT_SEEN = "not seen"
NOT_APPLICABLE = "not applicable"

_BEGINS: tuple[tuple[type[e.Event], str], ...] = (
    (e.LoadStarted, LOAD),
    (e.WeightsProgress, LOAD),
    (e.WeightsLoaded, LOAD),
    (e.GraphProfile, PROFILE),
    (e.GraphEstimate, PROFILE),
    (e.AvailableKv, PROFILE),
    (e.KvOverride, PROFILE),
    (e.KvCacheSize, PROFILE),
    (e.GraphProgress, CAPTURE),
    (e.EngineInitTook, READY),
    (e.ServerStarting, READY),
    (e.StartupComplete, READY),
)
"""The phase that an event shows to have begun. The end of loading and of capturing are handled apart."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a phase is: done of total, and of what."""

    done: int
    total: int
    what: str


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase as it stands. began: seconds from the start of the boot; seconds: how long it took, None unless it
    passed or failed before our eyes."""

    name: str
    state: str
    began: float | None = None
    seconds: float | None = None
    progress: Progress | None = None


def applicable(envelope: Envelope, in_container: bool) -> tuple[str, ...]:
    """The phases that a boot of this envelope goes through: no image without a container, no capture without graphs."""
    left_out = set()
    if not in_container:
        left_out.add(IMAGE)
    if not envelope.uses_gpu or envelope.graphs.mode == "NONE":
        left_out.add(CAPTURE)
    return tuple(name for name in ALL if name not in left_out)


class BootPhases:
    """Follows one boot. Times are seconds on the caller's clock; they only ever grow."""

    def __init__(self, applies: tuple[str, ...], at: float = 0.0) -> None:
        self._applies = applies
        self._zero = at
        self._began: dict[str, float] = {applies[0]: at}
        self._current = applies[0]
        self._ended: tuple[str, float] | None = None
        self._progress: dict[str, Progress] = {}
        self._turns: list[tuple[int, str]] = []
        self._profile_seen = False

    @property
    def current(self) -> str:
        """The phase that runs, or ran when the boot ended."""
        return self._current

    @property
    def ended(self) -> bool:
        return self._ended is not None

    def enter(self, name: str, at: float, line: int = 0) -> bool:
        """The phase begins now, unless it or a later one already has, or it does not apply. True when it did."""
        if self._ended or name not in self._applies or ALL.index(name) <= ALL.index(self._current):
            return False
        self._began[name] = at
        self._current = name
        self._turns.append((line, name))
        return True

    def observe(self, event: e.Event, at: float) -> bool:
        """Take one event of the log in; True when a phase began with it."""
        if self._ended:
            return False
        self._note_progress(event)
        if isinstance(event, e.ModelLoaded):
            self.enter(LOAD, at, event.line)
            if self._current == PROFILE and not self._profile_seen:
                # another rank has loaded as well: profiling begins with the last of them
                self._began[PROFILE] = at
            return self.enter(PROFILE, at, event.line)
        if isinstance(event, e.GraphCaptureFinished):
            entered = self.enter(CAPTURE, at, event.line)
            return self.enter(READY, at, event.line) or entered
        for kind, name in _BEGINS:
            if isinstance(event, kind):
                self._profile_seen = self._profile_seen or name == PROFILE
                return self.enter(name, at, event.line)
        return False

    def passed(self, at: float) -> None:
        """The boot is over and the server answers."""
        self.enter(READY, at)
        self._ended = (PASSED, at)

    def failed(self, at: float) -> None:
        """The boot is over and the running phase is the one that failed."""
        self._ended = (FAILED, at)

    def at_line(self, line: int) -> str:
        """The phase that ran when that line of the log was written."""
        name = START if START in self._applies else self._applies[0]
        for begins, phase in self._turns:
            if begins and begins <= line:
                name = phase
        return name

    def seconds(self, now: float) -> float:
        """The whole boot up to its end, or up to now."""
        return (self._ended[1] if self._ended else now) - self._zero

    def list(self) -> tuple[Phase, ...]:
        """Every phase, in order, as it stands."""
        return tuple(self._phase(name) for name in ALL)

    def _phase(self, name: str) -> Phase:
        if name not in self._applies:
            return Phase(name, NOT_APPLICABLE)
        if name not in self._began:
            before = ALL.index(name) < ALL.index(self._current)
            over = self._ended is not None and self._ended[0] == PASSED
            return Phase(name, NOT_SEEN if before or over else WAITING)
        began = self._began[name]
        progress = self._progress.get(name)
        if name != self._current:
            following = min(
                (time for other, time in self._began.items() if ALL.index(other) > ALL.index(name)), default=began
            )
            return Phase(name, PASSED, began - self._zero, following - began, progress)
        if self._ended is None:
            return Phase(name, RUNNING, began - self._zero, None, progress)
        state, at = self._ended
        return Phase(name, state, began - self._zero, at - began, progress)

    def _note_progress(self, event: e.Event) -> None:
        if isinstance(event, e.WeightsProgress):
            self._progress[LOAD] = Progress(event.done, event.total, "shards")
        elif isinstance(event, e.GraphProgress):
            what = f"graphs ({event.family})" if event.family else "graphs"
            self._progress[CAPTURE] = Progress(event.done, event.total, what)
