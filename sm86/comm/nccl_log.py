"""What NCCL's debug output says about what really ran. Pure.

    host:71:71 [0] NCCL INFO AllReduce: 8192 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
    host:71:90 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
    host:71:71 [0] NCCL WARN Error : no algorithm/protocol available for function AllReduce ...

Wording: format strings of libnccl.so.2 2.28.9 (NCCL_DEBUG=INFO with subsystems INIT, ENV, TUNING, P2P, SHM, NET). Only
rank 0 prints the first kind, once for each call that is enqueued or captured.

A kernel's name does not tell: of NCCL's all-reduce kernels only the LL ones exist under their own name, and
`ncclDevKernel_AllReduce_Sum_bf16_RING_LL` runs LL128 and Simple as well (the library has no other symbol).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DEBUG_ENVIRONMENT: Mapping[str, str] = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING,P2P,SHM,NET"}

_LINE = re.compile(r"NCCL (?P<level>INFO|WARN) (?P<text>.*)")
_RAN = re.compile(
    r"(?P<collective>\w+): (?P<bytes>\d+) Bytes -> Algo (?P<algo>\w+) proto (?P<proto>\w+) "
    r"channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\}"
)
_VIA = re.compile(r"Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\](?: \[\w+\])? via (?P<transport>[A-Z0-9]+/[^\s]+)")
_ENVIRONMENT = re.compile(r"(?P<name>NCCL_\w+) set by environment to (?P<value>.*?)\.?$")
_VERSION = re.compile(r"NCCL version (?P<version>\d+\.\d+\.\d+)")
_CHANNELS = re.compile(r"(?P<count>\d+) coll channels,")

NAMES = {
    "RING": "Ring",
    "TREE": "Tree",
    "SIMPLE": "Simple",
    "NVLS": "NVLS",
    "NVLS_TREE": "NVLSTree",
    "COLLNET_DIRECT": "CollNetDirect",
    "COLLNET_CHAIN": "CollNetChain",
    "PAT": "PAT",
}
"""NCCL prints names in capitals and takes them in mixed case."""


@dataclass(frozen=True, slots=True, order=True)
class Ran:
    """One all-reduce as NCCL enqueued it; `channels` is how many it used."""

    algo: str
    proto: str
    channels: int

    def words(self) -> str:
        return f"{self.algo} {self.proto}, {self.channels} channel{'s' * (self.channels != 1)}"


@dataclass(frozen=True, slots=True)
class NcclSaid:
    """All that one process's debug output says.

    ran: bytes -> every way in which an all-reduce of that size was enqueued; transports: kind -> connections;
    environment: settings that NCCL read; channels: of the communicator; warnings: NCCL's own, once each.
    """

    version: str | None
    ran: Mapping[int, tuple[Ran, ...]]
    transports: Mapping[str, int]
    environment: Mapping[str, str]
    channels: int | None
    warnings: tuple[str, ...]

    @property
    def refusal(self) -> str | None:
        """Why NCCL has no way to do what it was asked, in its own words; None where it did not say so."""
        found = (text for text in self.warnings if "no algorithm/protocol available" in text or "nvalid" in text)
        return next(found, None)


def parse(lines: Iterable[str]) -> NcclSaid:
    """What the lines say; lines of others are passed over, and nothing is wrong with an empty text."""
    version = channels = None
    ran: dict[int, set[Ran]] = {}
    transports: Counter[str] = Counter()
    environment: dict[str, str] = {}
    warnings: dict[str, None] = {}
    for line in lines:
        found = _VERSION.search(line)
        if found:
            version = found["version"]
        spoken = _LINE.search(line.rstrip())
        if spoken is None:
            continue
        text = spoken["text"]
        if spoken["level"] == "WARN":
            warnings.setdefault(" ".join(text.split()))
        elif found := _RAN.match(text):
            if found["collective"] == "AllReduce":
                count = int(found["high"]) - int(found["low"]) + 1
                one = Ran(_name(found["algo"]), _name(found["proto"]), count)
                ran.setdefault(int(found["bytes"]), set()).add(one)
        elif found := _VIA.match(text):
            transports[found["transport"]] += 1
        elif found := _ENVIRONMENT.match(text):
            environment[found["name"]] = found["value"]
        elif found := _CHANNELS.search(text):
            channels = int(found["count"])
    by_size = {size: tuple(sorted(ways)) for size, ways in sorted(ran.items())}
    return NcclSaid(version, by_size, dict(transports), environment, channels, tuple(warnings))


def _name(text: str) -> str:
    return NAMES.get(text.upper(), text)
