"""What is wrong with a `.env` file before Compose reads it.

Compose passes over some faults without a word (an empty value masks what is configured elsewhere, a misspelt name
does nothing, `=x` is dropped), and what it makes of a byte order mark or of carriage returns depends on its version
and on the other programs that read the file. Here each fault is one line that names the place, and one mend.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.files import read_regular
from sm86.launch.overrides import BY_NAME
from sm86.render.variables import BIND, PORT, PULL, PULL_POLICIES

LIMIT_BYTES = 1 << 20

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_BOMS = ((b"\xef\xbb\xbf", "a byte order mark"), (b"\xff\xfe", "a UTF-16 mark"), (b"\xfe\xff", "a UTF-16 mark"))


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault: line number from 1, what is wrong there, how to mend it."""

    line: int
    what: str
    mend: str


def check_dotenv(path: Path, known: Collection[str]) -> None:
    """Raise CouldNotRun for the first fault of the file, with all others as evidence; a missing file is right.

    known: names of the variables that the rendered files read; a name that looks like one but is none is a fault.
    """
    try:
        if not path.exists() and not path.is_symlink():
            return
        data = read_regular(path) if path.stat().st_size <= LIMIT_BYTES else None
    except OSError as error:
        raise CouldNotRun(f"cannot read {path}: {error.strerror}", "make it a readable file, or remove it") from None
    if data is None:
        raise CouldNotRun(f"{path} is larger than 1 MiB", "it holds NAME=value lines only; .env.example shows them")
    found = problems(data, known)
    if found:
        first, others = found[0], found[1:]
        raise CouldNotRun(
            f"{path}, line {first.line}: {first.what}",
            first.mend,
            tuple(f"line {other.line}: {other.what}" for other in others[:9]),
        )


def problems(data: bytes, known: Collection[str]) -> tuple[Problem, ...]:
    """Every fault of a `.env` file's bytes, by line; what a whole file is wrong in (its encoding) alone."""
    for mark, words in _BOMS:
        if data.startswith(mark):
            return (Problem(1, f"the file begins with {words}", "save it as UTF-8 without a byte order mark"),)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        return (Problem(line, "the file is not UTF-8 there", "save it as UTF-8"),)
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        return (Problem(line, "there is a NUL byte", "save it as plain UTF-8 text"),)
    if "\r" in text:
        line = text[: text.index("\r")].count("\n") + 1
        return (
            Problem(
                line, "the line ends with a carriage return", "sed -i 's/\\r$//' .env, or save it with Unix line ends"
            ),
        )
    return _line_problems(text, known)


def _line_problems(text: str, known: Collection[str]) -> tuple[Problem, ...]:
    found: list[Problem] = []
    seen: dict[str, int] = {}
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        name, separator, value = line.removeprefix("export ").partition("=")
        name = name.strip()
        fault = _name_fault(name, separator, known) or _value_fault(name, value.strip(), known)
        if fault is None and name in seen:
            fault = (f"{name} is set again (first in line {seen[name]})", "keep one of the two lines")
        seen.setdefault(name, number)
        if fault:
            found.append(Problem(number, *fault))
    return tuple(found)


def _name_fault(name: str, separator: str, known: Collection[str]) -> tuple[str, str] | None:
    if not separator:
        return "there is no `=`", "write NAME=value, or put a # before it"
    if not _NAME.fullmatch(name):
        return f"{name!r} is not a variable's name", "write NAME=value without blanks in the name"
    if name in known:
        return None
    near = difflib.get_close_matches(name.upper(), known, 1, cutoff=0.85)
    if near or name.upper().startswith("SM86_"):
        hint = f"did you mean {near[0]}? " if near else ""
        return f"nothing reads {name}", f"{hint}.env.example lists every variable"
    return None


def _value_fault(name: str, value: str, known: Collection[str]) -> tuple[str, str] | None:
    if name not in known:
        return None
    quote = value[:1] if value[:1] in "'\"" else ""
    if quote:
        end = _closing(value, quote)
        if end is None:
            return f"the quote before the value of {name} is not closed", f"close it with {quote}"
        value = value[1:end]
    else:
        value = re.split(r"(?:^|\s)#", value, maxsplit=1)[0].strip()
    if not value:
        return f"{name} is empty", "give a value, or put a # before the line: an empty value masks the default"
    if "$" in value and quote != "'":
        return None  # Compose puts another variable's value in; what comes out is checked where it is used
    test, mend = _TESTS.get(name, (None, ""))
    if test and not test(value):
        return f"{name} is {value!r}", mend
    override = BY_NAME.get(name)
    if override is None:
        return None
    try:
        override.read(value.replace('\\"', '"') if quote == '"' else value)
    except ValueError as error:
        return f"{name} is {value!r}: {error}", f"use {override.form}"
    return None


def _closing(value: str, quote: str) -> int | None:
    match = re.compile(rf"{quote}((?:\\.|[^{quote}\\])*){quote}" if quote == '"' else r"'([^']*)'").match(value)
    return match.end() - 1 if match else None


def _is_port(value: str) -> bool:
    return value.isascii() and value.isdigit() and 1 <= int(value) <= 65535


def _is_address(value: str) -> bool:
    try:
        ip_address(value.strip("[]"))
    except ValueError:
        return False
    return True


_TESTS: dict[str, tuple[Callable[[str], bool], str]] = {
    PORT: (_is_port, "give a port from 1 to 65535"),
    PULL: (PULL_POLICIES.__contains__, f"give one of: {', '.join(PULL_POLICIES)}"),
    BIND: (_is_address, "give an IP address of this machine: 127.0.0.1, or 0.0.0.0 for all"),
}
"""What Compose would refuse with words that do not name the variable."""
