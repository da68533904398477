"""`invoke report`: from records to a page, to Markdown and to pictures."""

from __future__ import annotations

import contextlib
import getpass
import json as json_module
import platform
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm86.errors import EXIT_FINDING, EXIT_OK, CouldNotRun, printable
from sm86.json_text import parse as parse_json
from sm86.record.schema import SCHEMA, from_json
from sm86.record.store import RESULTS_DIR, results_dir
from sm86.report.gather import Gathered, Source, Unread, gather
from sm86.report.sound import fault
from sm86.spec import load_all, load_proofs

if TYPE_CHECKING:
    from sm86.cli.report_folder import Written
    from sm86.report.document import Document
    from sm86.report.redact import Redactor

OUT = RESULTS_DIR / "report"
MAX_RECORDS = 2000
MAX_FILE_BYTES = 64 << 20
MAX_FILES_SEEN = 50_000


def report(
    paths: Sequence[str] = (),
    out: str | Path = OUT,
    redact: bool = False,
    hide: Sequence[str] = (),
    title: str | None = None,
    png: bool = True,
    json: bool = False,
    dry_run: bool = False,
) -> int:
    """Make report.html, report.md and a PNG of every chart from records.

    paths: record files or folders of them (default: results/); out: folder to write; redact: take out what names a
    machine or a person; hide: further names to take out.
    Exit code 0; 1 when a file that should be a record could not be read (the report says which). Raises CouldNotRun:
    no record at all, more than MAX_RECORDS, nothing can be written.
    """
    from sm86.report.build import TITLE, document

    if hide and not redact:
        raise CouldNotRun("--hide names something to take out, but --redact is not given", "give --redact too")
    out = results_dir() / OUT.name if Path(out) == OUT else out
    values, unread = _read([Path(path) for path in paths] or [results_dir()], Path(out))
    guard = _redactor(values, hide) if redact else None
    sources, faulty = _records(values, guard)
    unread += faulty
    if guard is not None:
        unread = [Unread(guard.text(u.place), guard.text(u.why), u.fault) for u in unread]
    if not sources:
        raise CouldNotRun(_nothing(unread), "measure first, for example with invoke demo, or name a folder of records")
    gathered = gather(sources, unread, (*load_all(), *load_proofs()))
    made = document(gathered, datetime.now(UTC), title or TITLE)
    if guard is not None:
        from sm86.report.document import map_text

        made = map_text(made, guard.text)
    written = None if dry_run else _write(made, Path(out), png)
    if json:
        print(json_module.dumps(_as_json(gathered, written, redact), indent=2, ensure_ascii=False))
    else:
        _say(gathered, made, written, Path(out), png)
    for file in gathered.unread:
        if file.fault:
            print(printable(f"sm86: not in the report: {file.place}: {file.why}"), file=sys.stderr)
    for path in written.foreign if written else ():
        print(printable(f"sm86: not of this report, and left as it is: {path}"), file=sys.stderr)
    return EXIT_FINDING if any(file.fault for file in gathered.unread) else EXIT_OK


def _read(paths: Sequence[Path], out: Path) -> tuple[list[tuple[str, Any]], list[Unread]]:
    """JSON values by place, and what is not one; nothing that this command itself has written."""
    values: list[tuple[str, Any]] = []
    unread: list[Unread] = []
    seen: set[Path] = set()
    for path in paths:
        for file, place, named in _files(path, out):
            real = file.resolve()
            if real in seen:
                continue
            seen.add(real)
            if len(values) >= MAX_RECORDS:
                raise CouldNotRun(
                    f"there are more than {MAX_RECORDS} files to report on", "name fewer folders or files"
                )
            try:
                if not file.is_file():
                    raise OSError(0, "it is no regular file")
                if file.stat().st_size > MAX_FILE_BYTES:
                    unread.append(Unread(place, f"it is larger than {MAX_FILE_BYTES >> 20} MiB, no record", True))
                    continue
                value = parse_json(file.read_bytes())
            except OSError as error:
                unread.append(Unread(place, f"cannot be read: {error.strerror or error}", True))
                continue
            except ValueError:
                unread.append(Unread(place, "it is not JSON, or was cut short", True))
                continue
            if isinstance(value, dict) and value.get("schema") == SCHEMA:
                values.append((place, value))
            else:
                schema = value.get("schema") if isinstance(value, dict) else None
                what = f"it is of the schema {schema!r}, no record" if schema else "it is no record"
                unread.append(Unread(place, what, named))
    return values, unread


def _files(path: Path, out: Path) -> Iterable[tuple[Path, str, bool]]:
    """Files with the place to show for them, and whether they were named one by one."""
    if not path.is_dir():
        if not path.exists():
            mend = "measure first, for example with invoke demo" if path == results_dir() else "check the path"
            raise CouldNotRun(f"there is no file or folder {path}", mend)
        yield path, path.name, True
        return
    own = out.resolve()
    for count, file in enumerate(sorted(path.rglob("*.json"))):
        if count >= MAX_FILES_SEEN:
            raise CouldNotRun(f"{path} holds more than {MAX_FILES_SEEN} files", "name the folder of one envelope")
        if not file.name.startswith(".") and own not in file.resolve().parents:
            yield file, file.relative_to(path).as_posix(), False


def _records(values: Sequence[tuple[str, Any]], guard: Redactor | None) -> tuple[list[Source], list[Unread]]:
    sources: list[Source] = []
    unread: list[Unread] = []
    for place, value in values:
        try:
            record = from_json(value if guard is None else guard.values(value), place)
            why = fault(record)
        except CouldNotRun as error:
            why = error.what.removeprefix(f"{place} ").removeprefix("is ")
        except RecursionError:
            why = "it nests too deeply"
        if why:
            unread.append(Unread(place, why, True))
        else:
            sources.append(Source(record, place if guard is None else guard.text(place)))
    return sources, unread


def _redactor(values: Sequence[tuple[str, Any]], hide: Sequence[str]) -> Redactor:
    from sm86.report.redact import LEAST_NAME, redactor

    for name in hide:
        if len(name.strip()) < LEAST_NAME:
            raise CouldNotRun(
                f"--hide {name!r} would be found inside other words", f"give {LEAST_NAME} characters or more"
            )
    users: list[str] = []
    with contextlib.suppress(OSError, KeyError):  # a user without a name
        users.append(getpass.getuser())
    return redactor([value for _, value in values], [platform.node()], users, hide)


def _write(document: Document, out: Path, png: bool) -> Written:
    """The files; the page last, so that what it stands for is there."""
    from sm86.cli.report_folder import write_folder
    from sm86.report import png as pictures
    from sm86.report.html import html
    from sm86.report.markdown import markdown

    files: dict[str, str | bytes] = {}
    names: dict[str, str] = {}
    if png and pictures.available():
        for figure in document.figures():
            names[figure.name] = f"{figure.name}.png"
            files[names[figure.name]] = pictures.png(figure.chart)
    files["report.md"] = markdown(document, names)
    files["report.html"] = html(document)
    return write_folder(out, files)


def _nothing(unread: Sequence[Unread]) -> str:
    if not unread:
        return "there is no record to report on"
    first = unread[0]
    return f"there is no record to report on; {len(unread)} files were looked at ({first.place}: {first.why})"


def _as_json(gathered: Gathered, written: Written | None, redact: bool) -> dict[str, Any]:
    return {
        "schema": "sm86.report",
        "version": 1,
        "redacted": redact,
        "files": [str(path) for path in reversed(written.files)] if written else [],
        "removed": [str(path) for path in written.removed] if written else [],
        "foreign": [str(path) for path in written.foreign] if written else [],
        "machines": [
            {"name": machine.name, "mark": machine.mark, "records": [entry.place for entry in machine.entries]}
            for machine in gathered.machines
        ],
        "not_read": [{"file": file.place, "why": file.why, "fault": file.fault} for file in gathered.unread],
    }


def _say(gathered: Gathered, made: Document, written: Written | None, out: Path, png: bool) -> None:
    from sm86.report import png as pictures

    for machine in gathered.machines:
        mark = f" [{machine.mark}]" if machine.mark else ""
        kinds = list(dict.fromkeys(entry.kind for entry in machine.entries))
        counted = ", ".join(f"{len(machine.of(kind))} {kind}" for kind in kinds)
        print(printable(f"{machine.name}{mark}: {counted}"))
    if written is None:
        print(f"nothing was written; it would be {out / 'report.html'}, {out / 'report.md'} and pictures")
        return
    print(f"page: {out / 'report.html'}")
    print(f"Markdown: {out / 'report.md'}")
    figures = len(made.figures())
    if figures and png and not pictures.available():
        print("pictures: none, as matplotlib is not installed (pip install -e '.[plot]'); the page has its charts")
    elif len(written.files) > 2:
        print(f"pictures: {len(written.files) - 2} beside them")
    if written.removed:
        print(printable(f"removed, of an earlier report: {', '.join(path.name for path in written.removed)}"))
