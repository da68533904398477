"""`invoke trace` and `invoke trace.diff`: where the time of a decode step goes, and what changed."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm86.errors import EXIT_FINDING, EXIT_OK, CouldNotRun
from sm86.files import open_regular
from sm86.json_text import parse as parse_json

if TYPE_CHECKING:
    from sm86.spec import Envelope

NO_GRAPHS_WHAT = "no CUDA graph launch and no step of vLLM in it: nothing can be given per graph or per step"
NO_GRAPHS_MEND = (
    "serve with graphs (cudagraph_mode FULL_DECODE_ONLY) and start the profiler on a worker while it is decoding"
)


def trace(
    paths: str | Sequence[str],
    json: bool = False,
    png: str | None = None,
    rank: int | str | None = None,
    tpot: float | str | None = None,
    record: bool = False,
    envelope: str | None = None,
) -> int:
    """Print where the GPU time of each trace goes; several ranks are compared.

    paths: files or folders; json: print JSON instead; png: also draw one step to this file; rank: only
    this rank's file; tpot: milliseconds per token without the profiler, to say how much tracing slows; record: write
    a record of kind "trace" for the envelope that was traced.
    Exit code 0; 1 when a trace has neither graphs nor steps. Raises CouldNotRun for bad input.
    """
    from sm86.trace.as_json import trace_json
    from sm86.trace.files import choose, other_ranks
    from sm86.trace.ranks import compare

    wanted = [Path(path) for path in ([paths] if isinstance(paths, str) else paths)]
    files, notes = choose(wanted, _whole(rank, "rank"))
    milliseconds = _positive(tpot, "tpot")
    spec = _spec(record, envelope)
    if png is not None and Path(png).suffix.lower() != ".png":
        raise CouldNotRun(f"{png} does not end in .png", "give a file name that ends in .png")
    results = [_analysed(path) for path in files]
    comparison = compare(results) if len(results) > 1 else None
    bare = [result for result in results if result.main is None]
    if len(wanted) == len(results) == 1 and rank is None:
        notes += other_ranks(files[0])
    notes += [f"{result.path.name}: {NO_GRAPHS_WHAT}; {NO_GRAPHS_MEND}" for result in bare]
    if json:
        print(json_module.dumps(trace_json(results, comparison, notes), indent=1))
    else:
        from sm86.trace.table import console, print_comparison, print_result

        out = console()
        for result in results if comparison is None else results[:1]:
            print_result(out, result, milliseconds, alone=comparison is None)
        if comparison is not None:
            print_comparison(out, comparison)
        for note in notes:
            out.print(f"  note: {note}", soft_wrap=True)
    if png is not None:
        from sm86.trace.picture import draw

        draw(results[0], Path(png))
        if not json:
            print(f"  drawn: {png}")
    if spec is not None:
        from sm86.cli.trace_record import to_record
        from sm86.record import save

        answer = trace_json(results, comparison, notes)
        saved = save(to_record(answer, [result.device for result in results], files[0], spec))
        print(f"record: {saved}", file=sys.stderr if json else sys.stdout)
    return EXIT_FINDING if bare else EXIT_OK


def _spec(record: bool, envelope: str | None) -> Envelope | None:
    """The envelope that was traced, where a record is wanted: a trace itself does not name it."""
    if not record:
        return None
    if envelope is None:
        raise CouldNotRun(
            "a record needs the envelope that was traced", "give --envelope too: invoke envelopes lists them"
        )
    from sm86.spec import load_envelope

    return load_envelope(envelope)


def diff(a: str, b: str, json: bool = False) -> int:
    """Print which buckets differ between two traces (or saved JSON answers of `trace`).

    Exit code 0 when no bucket moved beyond the spread of its own steps, 1 when one did.
    """
    from sm86.trace.diff import diff as compare
    from sm86.trace.diff import diff_json, side_of

    first, second = _json_of(Path(a)), _json_of(Path(b))
    one, two = side_of(first, a), side_of(second, b)
    if one.unit != two.unit:
        # graphs are in both when one of them was recorded without annotations
        one, two = side_of(first, a, "graph"), side_of(second, b, "graph")
    found = compare(one, two)
    if json:
        print(json_module.dumps(diff_json(found), indent=1))
    else:
        from sm86.trace.table import console, print_diff

        print_diff(console(), found)
    return EXIT_FINDING if found.moved else EXIT_OK


def _json_of(path: Path) -> Any:
    """The JSON form of what `path` holds: a saved answer as it is, a trace (or a folder's first) analysed."""
    from sm86.trace.as_json import SCHEMA, trace_json
    from sm86.trace.files import choose

    (first, *_), _ = choose([path])
    try:
        # what a pipe has given is gone, and a trace is read from its start
        with open_regular(first) as file:
            start = file.read(256)
            if b'"schema"' in start and SCHEMA.encode() in start:
                return parse_json(start + file.read())
    except OSError as error:
        raise CouldNotRun(
            f"cannot read {first}: {error.strerror or error}", "check the path and its permissions"
        ) from None
    except ValueError:
        raise CouldNotRun(f"{first} is a saved answer that is cut short", "save it again") from None
    return trace_json([_analysed(first)], None, [])


def _analysed(path: Path) -> Any:
    from sm86.trace.analysis import analyse

    with _progress(path) as update:
        return analyse(path, update)


@contextmanager
def _progress(path: Path) -> Iterator[Callable[[int], None] | None]:
    """A bar on stderr while a large file is read, where stderr is a terminal."""
    try:
        size = path.stat().st_size
    except OSError:
        size = 0
    if size < 8 << 20 or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading {task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(path.name, total=size)
        yield lambda done: bar.update(task, completed=done)


def _whole(value: int | str | None, name: str) -> int | None:
    if value is None:
        return None
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if number < 0:
        raise CouldNotRun(f"--{name} is {value!r}", "give a whole number from 0 on")
    return number


def _positive(value: float | str | None, name: str) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        raise CouldNotRun(f"--{name} is {value!r}", "give milliseconds per token, such as 17.2")
    return number
