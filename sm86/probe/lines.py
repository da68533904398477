"""The backend's dispatch lines in a server's log, as they are. Pure.

    SM86 cudagraph hit|miss|skip|eager cg_mode=FULL num_tokens=1 num_reqs=1 ... capture_sizes=[1] reason=captured
    SM86 draft cudagraph prefill|decode cg_mode=NONE num_tokens=5 padded_tokens=5

Written by `sm86.backend.diagnostics.graphs` with CUDAGRAPH_DISPATCH_DEBUG=1 and SPEC_CUDAGRAPH_DEBUG=N.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

HIT, MISS, SKIP, EAGER = "hit", "miss", "skip", "eager"

_DISPATCH = re.compile(r"SM86 cudagraph (?P<outcome>hit|miss|skip|eager) (?P<rest>cg_mode=.*)")
_DRAFT = re.compile(r"SM86 draft cudagraph (?P<kind>prefill|decode) (?P<rest>cg_mode=.*)")
_SAID = re.compile(r"\b([a-z_]+)=(\[[^\]]*\]|\S+)")


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One batch of the model. line: its number in the log, from 1; tokens, requests: before padding."""

    line: int
    text: str
    outcome: str
    mode: str
    tokens: int
    requests: int
    uniform: bool
    spec_tokens: int
    uniform_query_len: int
    capture_sizes: tuple[int, ...]
    reason: str

    @property
    def is_decode(self) -> bool:
        """Every request brings one decode step's tokens: a batch that a graph should serve."""
        return self.uniform


@dataclass(frozen=True, slots=True)
class Draft:
    """One step of the drafter. kind: "prefill" is a proposal's first, "decode" each further one."""

    line: int
    text: str
    kind: str
    mode: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Lines:
    """All that a log says; unread: lines that begin like one and hold less (cut, or of another version)."""

    dispatches: tuple[Dispatch, ...]
    drafts: tuple[Draft, ...]
    unread: tuple[tuple[int, str], ...]


def read(lines: Iterable[str]) -> Lines:
    """The dispatch lines in a log; whatever else it holds is passed over."""
    dispatches: list[Dispatch] = []
    drafts: list[Draft] = []
    unread: list[tuple[int, str]] = []
    for number, line in enumerate(lines, 1):
        if "SM86 " not in line or "cudagraph" not in line:
            continue
        if found := _DISPATCH.search(line):
            one = _dispatch(number, found)
            dispatches.append(one) if one else unread.append((number, line.strip()[:300]))
        elif found := _DRAFT.search(line):
            draft = _draft(number, found)
            drafts.append(draft) if draft else unread.append((number, line.strip()[:300]))
    return Lines(tuple(dispatches), tuple(drafts), tuple(unread))


def _dispatch(number: int, found: re.Match[str]) -> Dispatch | None:
    said = dict(_SAID.findall(found["rest"]))
    try:
        return Dispatch(
            line=number,
            text=found.group().strip(),
            outcome=found["outcome"],
            mode=said["cg_mode"],
            tokens=int(said["num_tokens"]),
            requests=int(said["num_reqs"]),
            uniform={"true": True, "false": False}[said["uniform"]],
            spec_tokens=int(said["num_spec_tokens"]),
            uniform_query_len=int(said["uniform_decode_query_len"]),
            capture_sizes=tuple(int(size) for size in said["capture_sizes"].strip("[]").split(",") if size),
            reason=said["reason"],
        )
    except (KeyError, ValueError):
        return None


def _draft(number: int, found: re.Match[str]) -> Draft | None:
    said = dict(_SAID.findall(found["rest"]))
    try:
        return Draft(number, found.group().strip(), found["kind"], said["cg_mode"], int(said["num_tokens"]))
    except (KeyError, ValueError):
        return None
