"""What the model commands show: a checkpoint's findings, a fetch's list, and progress on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sm86.weights.findings import FAIL, NOT_SEEN, exit_code
from sm86.weights.inspection import Inspection

if TYPE_CHECKING:
    from sm86.host.hub import Listing
    from sm86.host.hub_fetch import Todo

LINE_S = 30.0
"""How often a log without a terminal is told how far it is."""

SHOWN_FILES = 80


def _out(text: str) -> None:
    """A line on stdout. Names in it come from files and hubs: control characters are not sent to the terminal."""
    print("".join(sign if sign.isprintable() else "?" for sign in text))


def say(text: str) -> None:
    """A line of news on stderr, at once, also where it is piped."""
    if sys.stderr is not None:
        print("".join(sign if sign.isprintable() else "?" for sign in text), file=sys.stderr, flush=True)


def show(seen: Inspection, repository: str, provenance: str) -> None:
    """The report of one checkpoint."""
    place = seen.place
    _out(f"{place.folder}: {seen.tensors:,} tensors, {seen.weight_bytes / 2**30:,.2f} GiB of weights ({place.layout})")
    _out(f"  provenance  {provenance}")
    _out(f"  repository  {seen.repository or f'not known; the envelopes mean {repository}'}")
    _out(f"  revision    {seen.revision or 'not known'}")
    _out(f"  model hash  {seen.found.sha256 or 'not known: the headers could not all be read'}")
    for finding in seen.findings:
        _out(f"  {finding.state:<14}  {finding.rule}: {finding.text}")
        for line in finding.evidence:
            _out(f"                  | {line}")
        if finding.state in (FAIL, NOT_SEEN) and finding.mend:
            _out(f"                  mend: {finding.mend}")
    _out(
        "every check passes"
        if exit_code(seen.findings) == 0
        else "this is not the checkpoint as it should be: see above"
    )


def show_to_lock(sizes: Mapping[str, int], folder: Path, lock: Path) -> None:
    """What would be locked: each file by name; sizes in bytes."""
    state = "replace" if lock.exists() else "write"
    files = "1 file" if len(sizes) == 1 else f"{len(sizes)} files"
    _out(f"would hash {files}, {sum(sizes.values()) / 2**30:,.2f} GiB, in {folder} and {state} {lock}")
    for name, size in list(sizes.items())[:SHOWN_FILES]:
        _out(f"  {size / 1e9:10.3f} GB  {name}")
    if len(sizes) > SHOWN_FILES:
        _out(f"  ... and {len(sizes) - SHOWN_FILES} more")


def show_todo(listing: Listing, todo: Todo, target: Path) -> None:
    """What a fetch would do."""
    _out(f"{listing.repository} at {listing.commit}, into {target}")
    for file in todo.files[:SHOWN_FILES]:
        _out(f"  {file.size / 1e9:10.3f} GB  {file.name}")
    if len(todo.files) > SHOWN_FILES:
        _out(f"  ... and {len(todo.files) - SHOWN_FILES} more")
    for file in todo.present[:SHOWN_FILES]:
        _out(f"  {'there':>13}  {file.name}")
    held = f", {todo.held / 1e9:.3f} GB of it already begun" if todo.held else ""
    _out(f"  {sum(file.size for file in todo.files) / 1e9:.3f} GB to fetch{held}; {todo.free / 1e9:.1f} GB are free")


class Bar:
    """Progress in bytes on stderr: a bar on a terminal, a line now and then elsewhere. Safe from several threads."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._lock = threading.Lock()
        self._said = time.monotonic()
        self._rich: Any = None
        self._task: Any = None

    def __enter__(self) -> Bar:
        if self._what and sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
            from rich.progress import TransferSpeedColumn as Speed

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), Speed(), TimeRemainingColumn())
            self._rich = Progress(*columns, console=Console(stderr=True), transient=True)
            self._rich.start()
            self._task = self._rich.add_task(self._what, total=self._total or None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rich is not None:
            self._rich.stop()

    def total(self, total: int, done: int) -> None:
        """Set what is to come, and what of it is there."""
        self._total, self._done = total, done
        if self._rich is not None:
            self._rich.update(self._task, total=total, completed=done)

    def advance(self, count: int) -> None:
        """More bytes are done; fewer where some have to come again."""
        with self._lock:
            self._done += count
            if self._rich is not None:
                self._rich.update(self._task, completed=self._done)
            elif self._total and time.monotonic() - self._said > LINE_S:
                self._said = time.monotonic()
                say(f"{self._what}: {self._done / 1e9:.2f} of {self._total / 1e9:.2f} GB")

    def say(self, text: str) -> None:
        """One line of news."""
        with self._lock:
            if self._rich is not None:
                self._rich.console.print(text, markup=False, highlight=False)
            elif self._what:
                say(text)
