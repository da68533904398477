"""Records -> what a report is about: numbered entries, grouped by the machine they are of. Pure.

Nothing is dropped: what cannot be shown in a section of its own is listed, and what could not be read is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sm86.record import Conditions, Record
from sm86.report.marks import CPU, UNKNOWN, host_of, identity, machine_name, mark_of, uuids_of
from sm86.spec import Envelope


@dataclass(frozen=True, slots=True)
class Source:
    """A record and where it was read, as a person may find it again."""

    record: Record
    place: str


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that is not in the report. fault: it should have been a record and could not be read."""

    place: str
    why: str
    fault: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """A record in the report, R`number`. `conditions`: number of its conditions, C1 and so on."""

    number: int
    record: Record
    place: str
    conditions: int

    @property
    def kind(self) -> str:
        return self.record.kind

    @property
    def envelope(self) -> str:
        return self.record.envelope


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything of one machine, oldest first. `joined`: entries that name no machine and were put here."""

    key: str
    name: str
    mark: str
    entries: tuple[Entry, ...]
    joined: tuple[Entry, ...]

    def of(self, kind: str, envelope: str | None = None) -> tuple[Entry, ...]:
        """Entries of a kind, oldest first."""
        return tuple(e for e in self.entries if e.kind == kind and envelope in (None, e.envelope))

    def latest(self, kind: str, envelope: str) -> Entry | None:
        """The newest: a report shows what was measured last, not what came out best."""
        found = self.of(kind, envelope)
        return found[-1] if found else None

    def envelopes(self) -> tuple[str, ...]:
        """Names of envelopes that have an entry."""
        return tuple(dict.fromkeys(entry.envelope for entry in self.entries))


@dataclass(frozen=True, slots=True)
class Gathered:
    """All of a report's matter. `shipped`: the product's envelopes by name."""

    machines: tuple[Machine, ...]
    conditions: tuple[Conditions, ...]
    unread: tuple[Unread, ...]
    shipped: Mapping[str, Envelope]

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(sorted((e for m in self.machines for e in m.entries), key=lambda entry: entry.number))


def gather(sources: Sequence[Source], unread: Sequence[Unread], shipped: Sequence[Envelope]) -> Gathered:
    """Number the records by time, the conditions by first use, and group by machine: rigs first, CPUs last."""
    ordered = sorted(sources, key=lambda s: (s.record.started, s.record.kind, s.place))
    conditions: list[Conditions] = []
    entries = []
    for number, source in enumerate(ordered, 1):
        # the state of the moment, such as a temperature, does not make conditions of its own
        same = _lasting(source.record.conditions)
        if same not in conditions:
            conditions.append(same)
        entries.append(Entry(number, source.record, source.place, conditions.index(same) + 1))
    names = {envelope.name: envelope for envelope in shipped}
    return Gathered(tuple(_machines(entries)), tuple(conditions), tuple(unread), names)


MOMENTARY = ("temperature_c", "sm_clock_mhz", "mem_clock_mhz")


def _lasting(conditions: Conditions) -> Conditions:
    gpus = tuple({key: value for key, value in gpu.items() if key not in MOMENTARY} for gpu in conditions.gpus)
    return replace(conditions, gpus=gpus)


@dataclass(slots=True)
class _Group:
    """Entries of one machine, and what names it."""

    engine: str
    uuids: set[str]
    names: set[tuple[str, ...]]
    entries: list[Entry]

    def same(self, other: _Group) -> bool:
        """UUIDs decide where both have them; names where one of them has none."""
        if self.engine != other.engine:
            return False
        if self.uuids and other.uuids:
            return bool(self.uuids & other.uuids)
        return bool(self.names & other.names)

    def may_have(self, nameless: Entry) -> bool:
        """Whether a record without GPUs can be of this machine: of its engine, and not of another host."""
        conditions = nameless.record.conditions
        hosts = {host_of(entry.record) for entry in self.entries} - {None}
        own = host_of(nameless.record)
        return self.engine == conditions.engine and (own is None or not hosts or own in hosts)


def _machines(entries: Sequence[Entry]) -> list[Machine]:
    groups: list[_Group] = []
    nameless: list[Entry] = []
    for entry in entries:
        conditions = entry.record.conditions
        name = identity(entry.record)
        one = _Group(conditions.engine, set(uuids_of(entry.record)), {name} if name else set(), [entry])
        if (not one.uuids and not one.names) or (conditions.engine != "cpu" and conditions.mark == UNKNOWN):
            nameless.append(entry)
            continue
        matching = [group for group in groups if group.same(one)]
        for group in matching:
            one.uuids |= group.uuids
            one.names |= group.names
            one.entries += group.entries
        groups = [group for group in groups if not any(group is found for found in matching)] + [one]
    joined_to: dict[int, list[Entry]] = {}
    alone: dict[tuple[str, str], list[Entry]] = {}
    for entry in nameless:
        conditions = entry.record.conditions
        fitting = [index for index, group in enumerate(groups) if group.may_have(entry)]
        if len(fitting) == 1 and conditions.mark != UNKNOWN:
            joined_to.setdefault(fitting[0], []).append(entry)
        else:
            alone.setdefault((conditions.engine, mark_of(conditions)), []).append(entry)
    made = [(group.entries, joined_to.get(index, [])) for index, group in enumerate(groups)]
    made += [(group, []) for group in alone.values()]
    machines = [_machine(group, joined) for group, joined in made]
    machines.sort(key=lambda m: (CPU in m.mark, bool(m.mark), m.entries[0].number))
    return [replace(machine, key=f"m{number}") for number, machine in enumerate(machines, 1)]


def _machine(group: Sequence[Entry], joined: Sequence[Entry]) -> Machine:
    entries = tuple(sorted((*group, *joined), key=lambda entry: entry.number))
    # one forced run marks the machine: its other records do not become a rig's by saying less
    marks = dict.fromkeys(mark for entry in entries if (mark := mark_of(entry.record.conditions)))
    if all(entry.record.conditions.engine == "cpu" for entry in entries):
        marks = dict.fromkeys((CPU,))
    name = machine_name([entry.record for entry in group])
    return Machine("", name, ", ".join(marks), entries, tuple(joined))
