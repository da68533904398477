"""Text as a YAML scalar that Compose reads back unchanged.

Two layers lie between a spec's value and what Compose makes of it: YAML's types (`yes`, `0644`, `1e3`, `# x`)
and Compose's interpolation (`$`). A value passes `literal` for the second and `quoted` for the first.
"""

from __future__ import annotations

import json
import re

from sm86.errors import CouldNotRun

# YAML forbids these raw, or reads them as line breaks; json.dumps leaves them as they are.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")


class Scalar(str):
    """Text that is already a YAML scalar; the templates of YAML files print nothing else from a spec."""

    __slots__ = ()


def literal(text: str) -> str:
    """The Compose expression whose value is `text`: every `$` doubled.

    Raises CouldNotRun for text that no argument list or environment can hold (NUL, lone surrogates).
    """
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise CouldNotRun(
            f"{text!r} holds a character that no command line can carry", "write it without NUL and lone surrogates"
        )
    return text.replace("$", "$$")


def variable(name: str, default: str) -> str:
    """The Compose expression for the variable's value, or `default` when it is unset or empty.

    Raises CouldNotRun when the default would be empty or has a `$` or a brace: Compose ends a default at the
    first `}`, so such a value would be cut without a word.
    """
    if not _VARIABLE.fullmatch(name):
        raise CouldNotRun(f"{name!r} cannot be a variable's name", "use capital letters, digits and underscores")
    if not default or any(character in default for character in "${}"):
        raise CouldNotRun(
            f"{default!r} cannot be the default of {name} in a Compose file",
            "give a default that is not empty and has no `$`, `{` or `}`",
        )
    return f"${{{name}:-{literal(default)}}}"


def quoted(expression: str) -> Scalar:
    """A quoted YAML scalar for a Compose expression: a JSON string, which is valid YAML.

    JSON inside a value stays readable in single quotes, where nothing but the quote itself would need care.
    """
    if '"' in expression and expression.isprintable() and not set(expression) & set("'\\"):
        return Scalar(f"'{expression}'")
    text = json.dumps(expression, ensure_ascii=False)
    return Scalar(_ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def comment(text: str, width: int = 0) -> Scalar:
    """Text for a comment: one line, whatever it was; filled up to `width` characters."""
    return Scalar(" ".join("".join(c if c.isprintable() else " " for c in text).split()).ljust(width))
