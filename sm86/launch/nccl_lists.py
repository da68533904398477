"""The lists that NCCL_ALGO and NCCL_PROTO hold, in NCCL's own grammar. Pure.

    ring,tree                    these, for every collective
    ^ll128                       all but these
    allreduce:tree;allgather:ring    a list for each collective (only the first list may name none)

Names do not mind upper or lower case. Source: NCCL 2.28.9, its tuning code and the words inside libnccl.so.2;
it ends the communicator with "invalid usage" for a name that it does not know, after minutes of loading.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
COLLECTIVES = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")

USABLE_WITHOUT_SWITCH = ("Tree", "Ring")
"""All-reduce algorithms that exist on one host without NVSwitch and without a switch that reduces in the network."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One list: the collective it is for ("" for all), whether it excludes, and the names as NCCL spells them."""

    collective: str
    excludes: bool
    names: tuple[str, ...]

    def allowed(self, known: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in known if (name in self.names) != self.excludes)

    def text(self) -> str:
        return (f"{self.collective}:" if self.collective else "") + "^" * self.excludes + ",".join(self.names)


def parse(text: str, known: tuple[str, ...]) -> tuple[Choice, ...]:
    """The lists in `text`. Raises ValueError with the sentence that says what is wrong."""
    choices = []
    for index, part in enumerate(text.split(";")):
        prefix, colon, names = part.rpartition(":")
        if not colon and index:
            raise ValueError(f"{part!r} names no collective; only the first list may leave it out")
        excludes = names.startswith("^")
        words = names[1:].split(",") if excludes else names.split(",")
        collective = _spelled(prefix, COLLECTIVES, "collective") if colon else ""
        choices.append(Choice(collective, excludes, tuple(_spelled(word, known, "name") for word in words)))
    return tuple(choices)


def text_of(choices: tuple[Choice, ...]) -> str:
    return ";".join(choice.text() for choice in choices)


def allowed_for(collective: str, choices: tuple[Choice, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    """What NCCL may use for a collective; a later list replaces an earlier one."""
    names = known
    for choice in choices:
        if choice.collective in ("", collective):
            names = choice.allowed(known)
    return names


def _spelled(word: str, known: tuple[str, ...], kind: str) -> str:
    for name in known:
        if word.lower() == name.lower():
            return name
    near = difflib.get_close_matches(word.lower(), [name.lower() for name in known], 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(f"{word!r} is no {kind} that NCCL 2.28 knows ({', '.join(known)}){hint}")
