"""Which trace files a path means: a file, or a folder as vLLM fills it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.trace.source import NEED

SUFFIXES = (".json", ".json.gz")
# The API server's own trace: CPU only, of no use here.
FRONTEND = "async_llm"
_WORKER = re.compile(r"^(?P<who>.*?rank[_-]?(?P<rank>\d+))(?:\.(?P<time>\d+))?\.", re.IGNORECASE)


def choose(paths: Sequence[Path], rank: int | None = None) -> tuple[list[Path], list[str]]:
    """The traces to read, and a line for each choice that a person should know of.

    A folder gives one file per rank, the newest of each; rank: only that one's, told by the file name.
    Raises CouldNotRun for what does not exist and for a folder without a trace.
    """
    chosen: list[Path] = []
    notes: list[str] = []
    for path in paths:
        if path.is_dir():
            found, said = _in_folder(path)
            chosen += found
            notes += said
        elif path.exists():
            chosen.append(path)
        else:
            raise CouldNotRun(f"there is no {path}", NEED)
    if not chosen:
        raise CouldNotRun("no trace was named", NEED)
    if rank is not None and len(chosen) > 1:
        own = [path for path in chosen if (match := _WORKER.match(path.name)) and int(match["rank"]) == rank]
        if not own:
            raise CouldNotRun(f"none of the {len(chosen)} traces is of rank {rank} by its name", "leave --rank out")
        chosen = own
    return chosen, notes


def other_ranks(path: Path) -> list[str]:
    """A line that names the other ranks' traces beside `path`, if there are any."""
    own = _WORKER.match(path.name)
    if own is None:
        return []
    try:
        beside = [_WORKER.match(each.name) for each in path.parent.iterdir() if each.name.endswith(SUFFIXES)]
    except OSError:
        return []
    ranks = sorted({int(match["rank"]) for match in beside if match} - {int(own["rank"])})
    if not ranks:
        return []
    return [f"traces of {len(ranks)} other ranks lie beside it: give {path.parent} to tell waiting from work"]


def _in_folder(folder: Path) -> tuple[list[Path], list[str]]:
    try:
        files = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES) and path.is_file())
    except OSError as error:
        raise CouldNotRun(f"cannot look into {folder}: {error.strerror or error}", "check its permissions") from None
    traces = [path for path in files if FRONTEND not in path.name]
    if not traces:
        skipped = f" (only {FRONTEND} files, which hold no GPU events)" if files else ""
        raise CouldNotRun(f"there is no trace in {folder}{skipped}", NEED)
    workers: dict[str, list[tuple[int, Path]]] = {}
    others: list[Path] = []
    for path in traces:
        match = _WORKER.match(path.name)
        if match:
            workers.setdefault(match["who"], []).append((int(match["time"] or 0), path))
        else:
            others.append(path)
    if workers and others:
        # what vLLM names by rank is the capture; other JSON files beside it are not
        others = []
    named = [path for path in others if ".trace." in path.name]
    others = named or others
    notes = [f"{who}: {len(every)} captures, the newest is read" for who, every in workers.items() if len(every) > 1]
    return [max(every)[1] for every in workers.values()] + others, notes
