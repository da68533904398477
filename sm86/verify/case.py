"""What every rule looks at: what the envelope wants, what the manifest claims, what the engine says. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sm86.manifest import Value, format_value
from sm86.spec import Envelope
from sm86.verify import events as ev
from sm86.verify.boots import Boot, Start
from sm86.verify.config_text import plain
from sm86.verify.findings import FAIL, NOT_APPLICABLE, NOT_SEEN, PASS, Finding, evidence

Events = Iterable[ev.Event | None]


@dataclass(frozen=True, slots=True)
class Override:
    """A per-run override as the manifest names it: value as text, "effective" or "inert", and why."""

    name: str
    value: str
    state: str
    entry: ev.ManifestEntry


@dataclass(frozen=True, slots=True)
class Case:
    """One log against one envelope.

    envelope: as shipped; boot: the last one in the log; starts: of all boots; expected_vllm: the pinned release.
    """

    envelope: Envelope
    boot: Boot
    boots: int
    starts: tuple[Start, ...]
    expected_vllm: str
    expected_git_rev: str | None = None

    # --- what the manifest claims ---

    def entry(self, key: str) -> ev.ManifestEntry | None:
        """The manifest's line for a key; None where there is no complete manifest or no such line."""
        return self.boot.manifest.get(key)

    def claim(self, key: str) -> str | None:
        """The manifest's value for a key as text."""
        entry = self.entry(key)
        return None if entry is None else text_of(entry.value)

    def overrides(self) -> dict[str, Override]:
        """The run's overrides by name."""
        found = {}
        for key, entry in self.boot.manifest.items():
            if key.startswith("override."):
                name = key.removeprefix("override.")
                given = entry.value if isinstance(entry.value, dict) else {"value": entry.value}
                value, state = text_of(given.get("value")), str(given.get("state", "effective"))
                found[name] = Override(name, value, state, entry)
        return found

    def override(self, name: str) -> Override | None:
        """An override that has an effect, or None."""
        found = self.overrides().get(name)
        return found if found is not None and found.state != "inert" else None

    def wanted(self) -> Envelope:
        """The envelope as this run's named overrides changed it; drafting is not among them (see `capture-shape`)."""
        changes: dict[str, object] = {}
        tokens, scheduling = self.override("SM86_MAX_NUM_BATCHED_TOKENS"), self.override("SM86_ASYNC_SCHEDULING")
        blocks = self.override("SM86_NUM_GPU_BLOCKS")
        if tokens is not None and tokens.value.isdecimal():
            changes["max_num_batched_tokens"] = int(tokens.value)
        if scheduling is not None:
            changes["async_scheduling"] = is_on(scheduling.value)
        if blocks is not None and blocks.value.isdecimal():
            changes["num_gpu_blocks_override"] = int(blocks.value)
        return self.envelope.with_serve(**changes) if changes else self.envelope

    # --- what the engine says ---

    @property
    def engine(self) -> ev.EngineInitialised | None:
        """The engine's config line."""
        return self.boot.last(ev.EngineInitialised)

    @property
    def arguments(self) -> ev.NonDefaultArgs | None:
        """The API server's arguments that differ from its defaults."""
        return self.boot.last(ev.NonDefaultArgs)

    def config(self, key: str) -> str | None:
        """A value of the engine's config line, without quotes."""
        return plain(self.engine.config[key]) if self.engine and key in self.engine.config else None

    def compilation(self, key: str) -> str | None:
        """A value of the engine's compilation config, without quotes."""
        return plain(self.engine.compilation[key]) if self.engine and key in self.engine.compilation else None

    def argument(self, key: str) -> str | None:
        """A value of the API server's arguments, without quotes."""
        return plain(self.arguments.args[key]) if self.arguments and key in self.arguments.args else None


# --- the four states -------------------------------------------------------------------------------------------------


def passed(text: str, shown: Events, *focus: str) -> Finding:
    return Finding("", PASS, text, "", evidence(shown, *focus))


def failed(text: str, mend: str, shown: Events, *focus: str) -> Finding:
    return Finding("", FAIL, text, mend, evidence(shown, *focus))


def not_seen(text: str, mend: str, shown: Events = (), *focus: str) -> Finding:
    return Finding("", NOT_SEEN, text, mend, evidence(shown, *focus))


def not_applicable(text: str) -> Finding:
    return Finding("", NOT_APPLICABLE, text)


def named(rule: str, finding: Finding) -> Finding:
    """The finding under its rule's name."""
    return replace(finding, rule=rule)


# --- small helpers that several rules share --------------------------------------------------------------------------

MEND_CUT = "give the whole log, from the launcher's manifest on (`invoke logs --envelope E` prints it)"
MEND_BOOT = "stop the server, start it with `invoke up --envelope E`, and verify the new log"


def text_of(value: Value) -> str:
    """A manifest value as the text that the launcher wrote."""
    return value if isinstance(value, str) else format_value(value)


def is_on(value: str) -> bool:
    """Whether a flag's text means on."""
    return value.lower() not in ("0", "false", "none", "")


def first_lines(events: Iterable[ev.Event], count: int = 2) -> list[ev.Event]:
    """The first few events: enough to show what all of them say."""
    return list(events)[:count]
