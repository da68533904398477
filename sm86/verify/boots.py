"""Events -> boots: a log may hold several starts of the server, and each has its own facts. Pure, bounded memory.

A boot begins with the launcher's manifest, else with the server's logo, its arguments or the engine's config line,
whichever comes first; the same kind of line again, or an earlier kind after a later one, begins the next boot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

from sm86 import manifest as manifest_format
from sm86.manifest import MANIFEST_SECTION
from sm86.verify import events as ev
from sm86.verify.phases import PHASES, later

KEPT = 16
"""Events kept of one kind and value from the front, and as many from the back; all are counted."""

_KINDS = 2048
_STARTS = 32

E = TypeVar("E", bound=ev.Event)


@dataclass(slots=True)
class _Kept:
    count: int = 0
    first: list[ev.Event] = field(default_factory=list)
    last: deque[ev.Event] = field(default_factory=lambda: deque(maxlen=KEPT))

    def add(self, event: ev.Event) -> None:
        self.count += 1
        if len(self.first) < KEPT:
            self.first.append(event)
        else:
            self.last.append(event)


@dataclass(frozen=True, slots=True)
class Trouble:
    """An event that tells of memory running out or of a death, and the phase the boot was in."""

    event: ev.OutOfMemory | ev.EngineDead
    phase: str


class Boot:
    """What one start of the server said. Filled by `Boots`; the rules only read it."""

    def __init__(self) -> None:
        self.phase = PHASES[0]
        self.stage = -1
        """How far its beginning was seen, in the order of `_STAGES`; -1 where the log starts in the middle of it."""
        self.start: ev.Event | None = None
        self.latest: ev.Event | None = None
        """The last event of any kind."""
        self.manifest: dict[str, ev.ManifestEntry] = {}
        """The complete manifest's own entries by key; empty where there is none, or none that is complete."""
        self.manifest_begin: ev.ManifestMark | None = None
        self.manifest_end: ev.ManifestMark | None = None
        self.troubles: list[Trouble] = []
        """In order, up to 64; none from after an end that was asked for."""
        self._open: dict[str, ev.ManifestEntry] | None = None
        self._kept: dict[tuple[type[ev.Event], object], _Kept] = {}
        self._ending = False

    def all(self, kind: type[E]) -> tuple[E, ...]:
        """The events of a kind in the log's order; at most 2 x KEPT of each value."""
        kept = [record for (known, _), record in self._kept.items() if known is kind]
        found = chain.from_iterable(chain(record.first, record.last) for record in kept)
        return tuple(sorted(found, key=lambda event: event.line))  # type: ignore[arg-type]

    def last(self, kind: type[E]) -> E | None:
        """The last event of a kind, or None."""
        return (self.all(kind) or (None,))[-1]

    def first(self, kind: type[E]) -> E | None:
        """The first event of a kind, or None."""
        return (self.all(kind) or (None,))[0]

    def count(self, kind: type[ev.Event]) -> int:
        """How many events of a kind there were, kept or not."""
        return sum(record.count for (known, _), record in self._kept.items() if known is kind)

    def reported(self, section: str, key: str) -> tuple[ev.ManifestEntry, ...]:
        """What `[sm86] <section> <key>=` lines said, such as the plugin's."""
        return tuple(entry for entry in self.all(ev.ManifestEntry) if entry.section == section and entry.key == key)

    def add(self, event: ev.Event) -> None:
        self.start, self.latest = self.start or event, event
        self.phase = later(self.phase, event)
        match event:
            case ev.ManifestMark(begin=True):
                self._open, self.manifest_begin = {}, event
            case ev.ManifestMark():
                if self._open is not None and self.manifest_begin is not None:
                    self.manifest, self.manifest_end, self._open = self._open, event, None
            case ev.ManifestEntry(section=section) if section == MANIFEST_SECTION:
                if self._open is not None and len(self._open) < _KINDS:
                    self._open.setdefault(event.key, event)
                    return
            case ev.ShutdownStarted(by_signal=True):
                self._ending = True
            case ev.OutOfMemory() | ev.EngineDead():
                if not self._ending and len(self.troubles) < 64:
                    self.troubles.append(Trouble(event, self.phase))
        self._keep(event)

    def _keep(self, event: ev.Event) -> None:
        key = (type(event), _value(event))
        record = self._kept.get(key)
        if record is None:
            if len(self._kept) >= _KINDS:
                key = (type(event), None)
            record = self._kept.setdefault(key, _Kept())
        record.add(event)


@dataclass(frozen=True, slots=True)
class Start:
    """Where one boot began, and what ended it if that was a trouble."""

    event: ev.Event
    trouble: Trouble | None


class Boots:
    """Fold of all events of a log: the last boot whole, the earlier ones as their starts."""

    def __init__(self) -> None:
        self.boot = Boot()
        self.count = 0
        """Boots of which anything was seen."""
        self.earlier: list[Start] = []
        """Up to 32 boots before the last."""

    def add(self, event: ev.Event) -> None:
        stage = _stage(event)
        begins = stage is not None and self._begins_next(stage)
        if self.count == 0 or begins or (isinstance(event, ev.LauncherRefused) and self._went_on()):
            self._next()
        if stage is not None:
            self.boot.stage = stage
        self.boot.add(event)

    def add_all(self, events: Iterable[ev.Event]) -> None:
        for event in events:
            self.add(event)

    def starts(self) -> Iterator[Start]:
        """Every boot's beginning, the last one's included."""
        yield from self.earlier
        if self.boot.start is not None:
            yield _summary(self.boot, self.boot.start)

    def _begins_next(self, stage: int) -> bool:
        return stage <= self.boot.stage or stage == 0 or self._is_beyond_start()

    def _is_beyond_start(self) -> bool:
        # a log that starts in the middle of a boot: what is left of that boot may not count for the next one
        refused = self.boot.count(ev.LauncherRefused) > 0
        return self.boot.phase != PHASES[0] or bool(self.boot.troubles) or refused

    def _went_on(self) -> bool:
        return self.boot.stage > 0 or self._is_beyond_start()

    def _next(self) -> None:
        if self.boot.start is not None and len(self.earlier) < _STARTS:
            self.earlier.append(_summary(self.boot, self.boot.start))
        self.boot = Boot()
        self.count += 1


def _summary(boot: Boot, start: ev.Event) -> Start:
    # memory that ran out is the cause where a death is only the consequence
    causes = [trouble for trouble in boot.troubles if isinstance(trouble.event, ev.OutOfMemory)] or boot.troubles
    return Start(start, causes[0] if causes else None)


_STAGES: tuple[type[ev.Event], ...] = (ev.ManifestMark, ev.VersionBanner, ev.NonDefaultArgs, ev.EngineInitialised)


def _stage(event: ev.Event) -> int | None:
    if isinstance(event, ev.ManifestMark) and not event.begin:
        return None
    return next((stage for stage, kind in enumerate(_STAGES) if isinstance(event, kind)), None)


def _value(event: ev.Event) -> object:
    """What tells events of one kind apart when only some are kept: a thousand hits must not push out the one miss."""
    match event:
        case ev.ManifestEntry():
            return event.section, event.key, manifest_format.format_value(event.value)[:200]
        case ev.DispatchLine():
            return event.outcome, event.uniform, event.said.get("cg_mode")
        case ev.GraphProgress():
            return event.family
        case ev.UnknownEnvironment() | ev.AttentionBackend() | ev.MoeBackend():
            return event.name
        case ev.KvCacheDtype():
            return event.dtype
        case ev.KvOverride():
            return event.to
        case ev.MemoryProfilerNotice():
            return event.enabled
        case ev.WorkerStarted():
            return event.world_size, event.rank
        case ev.ContextChosen() | ev.MaxConcurrency() | ev.DecodeQueryLength():
            return event.tokens
        case ev.GraphModeChanged():
            return event.mode
        case ev.OutOfMemory():
            return event.kind
        case ev.LauncherRefused():
            return event.what[:200]
        case ev.EngineDead():
            return event.cause
        case _:
            return None
