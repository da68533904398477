"""Reading TOML with care: every key is asked for by name and type, what is left over is an error."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

from sm86.errors import CouldNotRun
from sm86.files import read_regular


def read_toml(path: Path) -> dict[str, Any]:
    """The file's contents; CouldNotRun when it is missing, unreadable, not UTF-8 or not TOML."""
    try:
        text = read_regular(path).decode("utf-8-sig")
        return tomllib.loads(text)
    except FileNotFoundError:
        raise CouldNotRun(f"no such file: {path}", "give the path of an envelope's TOML file") from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise CouldNotRun(f"cannot read {path}: {why}", "it must be a readable UTF-8 text file") from None
    except RecursionError:
        raise CouldNotRun(f"{path} nests too deeply", "write its lists and tables flat") from None
    except tomllib.TOMLDecodeError as error:
        raise CouldNotRun(
            f"{path} is not valid TOML: {error}", "mend that line; https://toml.io has the syntax"
        ) from None


class Table:
    """One TOML table whose keys are taken one by one. `finish` refuses what nobody asked for."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self._values = dict(values)
        self._known: list[str] = []
        self.where = where

    def fail(self, key: str, problem: str, mend: str) -> CouldNotRun:
        return CouldNotRun(f"{self.where}: {key} {problem}", mend)

    def _take(self, key: str, default: Any) -> Any:
        self._known.append(key)
        if key in self._values:
            return self._values.pop(key)
        if default is ...:
            raise self.fail(key, "is missing", f"add `{key} = ...` to that file or to its family")
        return default

    def text(self, key: str, default: Any = ..., choices: tuple[str, ...] = ()) -> str:
        value = self._take(key, default)
        if not isinstance(value, str):
            raise self.fail(key, f"is {value!r}, not a text", f'write {key} = "..."')
        if choices and value not in choices:
            raise self.fail(key, f"is {value!r}", f"use one of: {', '.join(choices)}")
        return value

    def integer(self, key: str, low: int, high: int, default: Any = ...) -> int:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(key, f"is {value!r}, not a whole number", f"use {low} to {high}")
        if not low <= value <= high:
            raise self.fail(key, f"is {value}, out of range", f"use {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float, default: Any = ...) -> float:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(key, f"is {value!r}, not a number", f"use {low} to {high}")
        if not low <= value <= high:
            raise self.fail(key, f"is {value}, out of range", f"use {low} to {high}")
        return float(value)

    def flag(self, key: str, default: Any = ...) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, f"is {value!r}", "use true or false")
        return value

    def texts(self, key: str, default: Any = ...) -> tuple[str, ...]:
        value = self._take(key, default)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.fail(key, f"is {value!r}, not a list of texts", f'write {key} = ["...", "..."]')
        return tuple(value)

    def integers(self, key: str, low: int, high: int, default: Any = ...) -> tuple[int, ...]:
        value = self._take(key, default)
        good = isinstance(value, list) and all(
            isinstance(item, int) and not isinstance(item, bool) and low <= item <= high for item in value
        )
        if not good:
            raise self.fail(key, f"is {value!r}", f"write a list of whole numbers from {low} to {high}")
        return tuple(value)

    def numbers(self, key: str, low: float, high: float) -> tuple[float, ...]:
        value = self._take(key, ...)
        good = isinstance(value, list) and all(
            isinstance(item, (int, float)) and not isinstance(item, bool) and low <= item <= high for item in value
        )
        if not good:
            raise self.fail(key, f"is {value!r}", f"write a list of numbers from {low} to {high}")
        return tuple(float(item) for item in value)

    def pairs(self, key: str) -> tuple[tuple[str, str], ...]:
        """A table of texts, as pairs; an empty value is refused (it would mask a configured default)."""
        value = self._take(key, {})
        if not isinstance(value, dict):
            raise self.fail(key, f"is {value!r}, not a table", f"write a [{key}] table")
        for name, item in value.items():
            if not isinstance(item, str) or not item:
                raise self.fail(f"{key}.{name}", f"is {item!r}", "give a text that is not empty, or leave the line out")
        return tuple(value.items())

    def table(self, key: str, required: bool = True) -> Table | None:
        value = self._take(key, ... if required else None)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fail(key, f"is {value!r}, not a table", f"write a [{key}] table")
        return Table(value, f"{self.where}: {key}")

    def finish(self) -> None:
        for key in self._values:
            near = difflib.get_close_matches(key, self._known, 1)
            mend = f"did you mean {near[0]}?" if near else f"the keys here are: {', '.join(self._known)}"
            raise self.fail(key, "is not a key of this table", mend)


def merge(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """`base` overlaid with `own`, table by table; lists and values are replaced whole."""
    merged = dict(base)
    for key, value in own.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged
