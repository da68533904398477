"""Which phase of a boot an event shows: start, load, profile, capture, serve. Pure."""

from __future__ import annotations

from sm86.verify import events as ev

PHASES = ("start", "load", "profile", "capture", "serve")
"""In the order they pass. "profile" is everything between the loaded model and the first graph: memory, KV cache,
warm-up; "serve" begins with the complete start-up."""

_BEGINS: tuple[tuple[tuple[type[ev.Event], ...], str], ...] = (
    ((ev.ManifestMark, ev.VersionBanner, ev.EngineInitialised), "start"),
    ((ev.LoadStarted, ev.WeightsProgress), "load"),
    ((ev.ModelLoaded, ev.GraphProfile, ev.AvailableKv, ev.KvOverride, ev.KvCacheSize), "profile"),
    ((ev.GraphProgress,), "capture"),
    ((ev.StartupComplete,), "serve"),
)


def phase_of(event: ev.Event) -> str | None:
    """The phase in which the engine is once this event was seen; None where the event says nothing about it."""
    return next((phase for kinds, phase in _BEGINS if isinstance(event, kinds)), None)


def later(phase: str, event: ev.Event) -> str:
    """`phase`, or the later one that `event` shows. Lines of other workers may come late: a boot never goes back."""
    shown = phase_of(event)
    if shown is None or PHASES.index(shown) <= PHASES.index(phase):
        return phase
    return shown
