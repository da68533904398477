"""The source text of a function in a file, found without importing it, and its hash. Pure."""

from __future__ import annotations

import ast
import hashlib


def segment(text: str, name: str) -> str:
    """The lines of function or class `name` ("f" or "Class.f"), decorators included.

    Raises LookupError when the file does not define it.
    """
    scope: list[ast.stmt] = ast.parse(text).body
    node: ast.stmt | None = None
    for part in name.split("."):
        node = next(
            (
                item
                for item in scope
                if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and item.name == part
            ),
            None,
        )
        if node is None:
            raise LookupError(name)
        scope = getattr(node, "body", [])
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return "\n".join(line.rstrip() for line in text.splitlines()[first - 1 : node.end_lineno])


def digest(text: str, name: str) -> str:
    """First 16 hex digits of the SHA-256 over `segment`."""
    return hashlib.sha256(segment(text, name).encode()).hexdigest()[:16]


def imported_names(text: str) -> set[str]:
    """Every name a module binds by an import statement anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(item.asname or item.name).split(".")[0] for item in node.names}
    return found
