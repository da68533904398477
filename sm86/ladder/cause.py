"""The next root cause: what kept a rung from passing, in the roadmap's words. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

GRAPH = "graph skip or miss"
CAPTURE = "graphs not captured as wanted"
MEMORY = "out of memory"
CONTEXT = "context not served"
SLOW = "slow beyond noise"
INCOHERENT = "incoherent"
WINDOW = "no steady window"
UNLIKE = "not the envelope"
BOOT = "boot failed"
SERVER = "the server failed under load"


@dataclass(frozen=True, slots=True)
class Cause:
    """kind: one of the constants above; text: one sentence; mend: what to do next; evidence: lines that show it."""

    kind: str
    text: str
    mend: str
    evidence: tuple[str, ...] = ()

    def words(self) -> str:
        return f"{self.kind}: {self.text}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "evidence": list(self.evidence)}


def from_json(values: Any) -> Cause | None:
    """The cause of such JSON, None stays None. Raises KeyError, TypeError or ValueError for anything else."""
    if values is None:
        return None
    found = Cause(values["kind"], values["text"], values["mend"], tuple(values["evidence"]))
    if not all(isinstance(text, str) for text in (found.kind, found.text, found.mend, *found.evidence)):
        raise ValueError("a cause that is not of texts")
    return found
