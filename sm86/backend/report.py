"""The backend's lines in the server's log: `[sm86] backend key=value`, each fact once per process."""

from __future__ import annotations

from sm86.manifest import Value, format_entry

SECTION = "backend"
_said: set[str] = set()


def report(key: str, value: Value) -> None:
    """Print one line now; stdout, where vLLM's own log goes and gets the process's prefix."""
    print(format_entry(key, value, SECTION), flush=True)


def report_once(key: str, value: Value) -> None:
    """Print the line unless this process has said the same already."""
    line = format_entry(key, value, SECTION)
    if line not in _said:
        _said.add(line)
        print(line, flush=True)
