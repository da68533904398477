"""`invoke compare A B`: which numbers moved beyond noise between two records or two folders, and what differs."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sm86.compare import numbers
from sm86.compare.numbers import Change
from sm86.compare.pairs import Pair, Result, Source, compare_all, to_json
from sm86.errors import EXIT_FINDING, EXIT_OK, CouldNotRun, printable
from sm86.files import read_regular
from sm86.json_text import parse as parse_json
from sm86.record import Record, load
from sm86.record.schema import SCHEMA, from_json
from sm86.report.marks import mark_of
from sm86.report.sound import fault

MOST_FILES = 20_000
GIVE = "give records, or folders of records such as results/sm86-262k"


def compare(before: str, after: str, json: bool = False) -> int:
    """Print what moved and what differs. Exit code 0: nothing moved beyond noise; 1: a number did, or a verdict turned.

    Raises CouldNotRun: no record there, records of other versions alone, two that are no pair.
    """
    ours, passed = _sources(Path(before))
    theirs, more = _sources(Path(after))
    result = compare_all(ours, theirs, (*passed, *more))
    if json:
        print(json_module.dumps(to_json(result), indent=2, ensure_ascii=False))
    else:
        print("\n".join(printable(line) for line in words(result)))
    return EXIT_FINDING if result.moved else EXIT_OK


def words(result: Result) -> tuple[str, ...]:
    """The result, one line for each thing; every line with a speed carries its mark."""
    said: list[str] = []
    for pair in result.pairs:
        said += [*_pair(pair), ""]
    for where, names in (("first", result.only_before), ("second", result.only_after)):
        if names:
            said.append(f"only in the {where}: {', '.join(names)}")
    said += result.notes
    moved = sum(pair.moved for pair in result.pairs)
    count = len(result.pairs)
    what = f"in {moved} of {count} pair(s) a number moved beyond noise or a verdict turned"
    said.append(what if moved else f"no number moved beyond noise and no verdict turned, in {count} pair(s)")
    return tuple(said)


def _pair(pair: Pair) -> list[str]:
    one, two = pair.before.record, pair.after.record
    mark = f"  [{one.conditions.mark}]" if one.conditions.mark else ""
    said = [
        f"{one.kind} of {one.envelope}{mark}",
        f"  first   {one.started:%Y-%m-%d %H:%M:%S} UTC  {pair.before.path}",
        f"  second  {two.started:%Y-%m-%d %H:%M:%S} UTC  {pair.after.path}",
    ]
    width = max((len(change.name) for change in pair.changes), default=0)
    said += [f"  {_line(change, width)}{mark}" for change in pair.changes]
    for turned in pair.turned:
        why = f": {turned.text}" if turned.text else ""
        said.append(f"  verdict {turned.name}: {turned.before} -> {turned.after}{why}")
    if pair.differences:
        said.append("  what differs:")
        for one_ in pair.differences:
            said.append(f"    {one_.name}: {one_.before or 'unknown'} -> {one_.after or 'unknown'}")
    else:
        said.append("  no difference in conditions is on record")
    said += [f"  note: {note}" for note in pair.notes]
    return said


def _line(change: Change, width: int) -> str:
    before, after = (("-" if v is None else f"{v:.2f}") for v in (change.before, change.after))
    share = "" if change.share is None else f"{100 * change.share:+.1f} %"
    noise = "" if change.noise is None else f", noise {change.noise:.2f}"
    word = change.state.upper() if change.state == numbers.MOVED else change.state
    why = f" ({change.why})" if change.why else ""
    return f"{change.name:<{width}}  {before:>10} -> {after:>10} {change.unit:<6} {share:>8}  {word}{noise}{why}"


def _sources(path: Path) -> tuple[list[Source], list[str]]:
    """The records at a path, and what was passed over."""
    if not path.is_dir():
        return [Source(str(path), _sound(load(path), path))], []
    files: list[Path] = []
    for file in sorted(path.rglob("*.json")):
        if len(files) >= MOST_FILES:
            raise CouldNotRun(f"{path} holds more than {MOST_FILES} JSON files", GIVE)
        files.append(file)
    found: list[Source] = []
    others: list[str] = []
    for file in files:
        try:
            record = _record(file)
        except CouldNotRun as reason:
            others.append(f"left out: {reason.what}")
            continue
        if record is not None:
            found.append(record)
    if not found:
        reasons = f" ({others[0].removeprefix('left out: ')})" if others else ""
        raise CouldNotRun(f"there is no record that can be read in {path}{reasons}", GIVE)
    return found, _few(others)


def _record(file: Path) -> Source | None:
    """The record in a file of a folder; None for JSON that is none. CouldNotRun: damaged, or of another version."""
    try:
        values = parse_json(read_regular(file))
    except OSError as error:
        raise CouldNotRun(f"cannot read {file}: {error.strerror}", GIVE) from None
    except ValueError:
        raise CouldNotRun(f"{file} is not JSON", GIVE) from None
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        return None
    return Source(str(file), _sound(from_json(values, str(file)), file))


def _sound(record: Record, file: Path) -> Record:
    """The record, if its parts are of the types that a comparison counts on; marked by its GPUs where they tell."""
    wrong = fault(record)
    if wrong:
        raise CouldNotRun(f"{file} is damaged: {wrong}", "run the measurement again")
    conditions = record.conditions
    return replace(record, conditions=replace(conditions, mark=mark_of(conditions)))


def _few(texts: Sequence[str]) -> list[str]:
    return [*texts[:5], *([f"and {len(texts) - 5} more left out"] if len(texts) > 5 else [])]
