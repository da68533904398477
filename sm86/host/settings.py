"""The variables of `.env`, for what runs without Compose. Compose reads the file itself; this reads it the same way.

The file's faults are refused before (`sm86.render.dotenv`), so what is left to read is plain NAME=value lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.files import read_regular


def read_dotenv(path: Path) -> dict[str, str]:
    """Name to value; empty where there is no file. Quotes and comments as in Compose; a later line wins.

    Raises CouldNotRun: the file cannot be read, or a value would need Compose's interpolation.
    """
    try:
        text = read_regular(path).decode("utf-8-sig")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise CouldNotRun(f"cannot read {path}: {error}", "make it a readable UTF-8 file, or remove it") from None
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if not equals or name.lstrip().startswith("#"):
            continue
        found[name.strip()] = _value(value.strip(), path, number)
    return found


def effective(name: str, environment: Mapping[str, str], dotenv: Mapping[str, str], default: str) -> str:
    """The value that holds: the shell's, else the file's, else the default. An empty one counts as unset."""
    return environment.get(name) or dotenv.get(name) or default


def _value(text: str, path: Path, number: int) -> str:
    quote = text[:1]
    if quote == "'":
        return text[1 : text.find("'", 1)]
    if quote == '"':
        end = 1
        while end < len(text) and text[end] != '"':
            end += 2 if text[end] == "\\" else 1
        value = text[1:end].replace('\\"', '"').replace("\\\\", "\\")
    else:
        cut = min((at for at in (text.find(" #"), text.find("\t#")) if at >= 0), default=len(text))
        value = text[:cut].rstrip()
    if "$" in value:
        raise CouldNotRun(
            f"{path}, line {number}: the value holds a $, which only Compose replaces",
            "write the value itself, in single quotes, or use the engine docker",
        )
    return value
