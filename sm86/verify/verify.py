"""A log against an envelope: chunks of bytes in, a report out. Pure over the chunks."""

from __future__ import annotations

from collections.abc import Iterable

from sm86.spec import Envelope, load_pins
from sm86.verify import sniff
from sm86.verify.boots import Boots
from sm86.verify.case import Case
from sm86.verify.events import ManifestEntry
from sm86.verify.findings import Report
from sm86.verify.reader import LogReader
from sm86.verify.rules import judge


def verify_log(
    envelope: Envelope,
    chunks: Iterable[bytes],
    expected_git_rev: str | None = None,
    where: str = "the log",
) -> Report:
    """Judge the last boot in the log by the envelope's rules.

    chunks: the log's bytes in order, in pieces of any size; expected_git_rev: the commit that must run, in full or
    its first 7 digits or more; where: how messages name the log.
    Raises CouldNotRun when there is nothing to judge: an empty, binary or compressed file, or one in which neither
    vLLM nor the launcher speaks. Memory does not grow with the log.
    """
    reader, boots = LogReader(), Boots()
    head, sniffed, spoken, blank = b"", False, False, True
    for chunk in chunks:
        if not sniffed:
            head += chunk
            if len(head) >= sniff.SNIFF_BYTES:
                sniff.refuse_if_binary(head[: sniff.SNIFF_BYTES], where)
                sniffed, head = True, b""
        spoken = spoken or sniff.speaks_vllm(chunk)
        blank = blank and not chunk.strip()
        boots.add_all(reader.feed(chunk))
    boots.add_all(reader.close())
    if blank:
        raise sniff.empty(where)
    if not sniffed:
        sniff.refuse_if_binary(head, where)
    if not spoken and boots.count == 0 and not sniff.speaks_vllm(head):
        raise sniff.foreign(where)
    pins = load_pins()
    case = Case(
        envelope=envelope,
        boot=boots.boot,
        boots=boots.count,
        starts=tuple(boots.starts()),
        expected_vllm=pins.version("vllm" if envelope.uses_gpu else "cpu-vllm"),
        expected_git_rev=expected_git_rev,
    )
    engine = case.engine
    return Report(
        envelope=envelope.name,
        envelope_digest=envelope.digest(),
        findings=judge(case),
        boots=boots.count,
        lines=reader.lines,
        manifest={key: entry.value for key, entry in boots.boot.manifest.items()},
        plugin={entry.key: entry.value for entry in boots.boot.all(ManifestEntry) if entry.section == "backend"},
        engine_version=engine.version if engine else None,
    )
