"""Imports point downward, the pure folders stay pure, heavy libraries load where they are used, files stay small."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "sm86"

# What each folder may import of the others; errors, files, manifest and json_text, below all, may be imported by all.
# A folder inside another that has a line of its own is a place of its own; one without is of the folder around it.
BASE = {"errors", "files", "manifest", "json_text", "__version__"}
BELOW: dict[str, set[str]] = {
    "plan": set(),
    "doctor": set(),
    "spec": {"plan"},
    "record": set(),
    "weights": set(),
    "image": {"spec"},
    "image/judge": {"spec", "image"},
    "image/check": {"spec", "image", "image/judge"},
    "image/steps": {"spec", "image"},
    "image/native": {"image"},
    "verify": {"spec", "record"},
    "trace": set(),
    "comm": set(),
    "probe": set(),
    "boot": {"spec", "verify"},
    "fit": {"spec", "plan", "doctor", "verify"},
    "report": {"spec", "record", "plan", "fit"},
    "measure": {"spec", "record"},
    "host": {"spec", "record", "weights", "image", "image/judge", "image/check", "verify", "boot", "doctor"},
    "launch": {"spec", "plan", "weights", "host"},
    "ladder": {"spec", "record", "launch"},
    "compare": {"record"},
    "render": {"spec", "plan", "image", "launch", "ladder"},
    "embedded": {"spec", "image", "host"},
    "cli": {"spec", "record", "image", "verify", "trace", "boot", "report", "measure", "host", "launch", "render"}
    | {"plan", "fit", "embedded", "weights", "doctor", "ladder", "compare", "comm", "probe", "image/judge"},
    "backend": {"weights"},
}

PURE = (
    "spec",
    "plan",
    "fit",
    "weights",
    "doctor",
    "verify",
    "trace",
    "probe",
    "boot",
    "record",
    "report",
    "render",
    "ladder",
    "compare",
    "image",
    "image/judge",
)
EFFECTS = {"subprocess", "socket", "http", "urllib", "fcntl", "asyncio", "docker", "requests", "httpx", "pynvml"}

# Whatever is outside the standard library loads in the function that needs it; the backend is loaded by vLLM alone.
ENGINE_FOLDERS = ("backend",)

MOST_LINES = 420
LONGER = {
    "trace/collect.py": "one pass over the events: its parts share their state in the tight loop",
    "trace/testing/generator.py": "one made-up trace, whose totals are counted where its events are written",
}


@dataclass(frozen=True)
class Import:
    file: str
    line: int
    module: str
    in_function: bool

    @property
    def folder(self) -> str:
        return place(tuple(self.file.split("/")[:-1])) or self.file


def place(parts: tuple[str, ...]) -> str:
    """The innermost folder with a line in the table, of a path's parts below the package; "" for none of them."""
    while parts and "/".join(parts) not in BELOW:
        parts = parts[:-1]
    return "/".join(parts)


def _imports_of(file: str, text: str) -> Iterator[Import]:
    def walk(node: ast.AST, inside: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue  # types alone: nothing is loaded
            if isinstance(child, ast.Import):
                for name in child.names:
                    yield Import(file, child.lineno, name.name, inside)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{file}:{child.lineno}: a relative import hides where it points"
                modules = [f"sm86.{n.name}" for n in child.names] if child.module == "sm86" else [child.module or ""]
                for module in modules:
                    yield Import(file, child.lineno, module, inside)
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from walk(child, inside or function)

    yield from walk(ast.parse(text), False)


FILES = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
IMPORTS = [found for file, text in FILES.items() for found in _imports_of(file, text)]


def upward(found: Import) -> bool:
    """An import of a folder of this package that does not lie below the importing one."""
    parts = found.module.split(".")
    if parts[0] != "sm86" or len(parts) == 1 or parts[1] in BASE:
        return False
    return (place(tuple(parts[1:])) or parts[1]) not in BELOW.get(found.folder, set()) | {found.folder}


def impure(found: Import) -> bool:
    """A pure folder's import of what has effects."""
    parts = found.module.split(".")
    return found.folder in PURE and (parts[0] in EFFECTS or parts[:2] == ["sm86", "host"])


def early(found: Import) -> bool:
    """An import of a library when the module loads, which every command would pay for."""
    root = found.module.split(".")[0]
    outside = root != "sm86" and root not in sys.stdlib_module_names
    return outside and not found.in_function and found.folder not in ENGINE_FOLDERS


def test_every_folder_has_its_place() -> None:
    folders = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")} - {"."}
    assert {folder.split("/")[0] for folder in folders} == {line.split("/")[0] for line in BELOW}
    assert set(BELOW) <= folders, "a line of the table is of no folder"
    divided = {line.split("/")[0] for line in BELOW if "/" in line}
    within = {folder for folder in folders if "/" in folder and folder.split("/")[0] in divided}
    assert within <= set(BELOW), "where one inner folder has its line, all have"


def test_the_order_has_no_circle() -> None:
    placed: set[str] = set()
    while len(placed) < len(BELOW):
        ready = {folder for folder, below in BELOW.items() if folder not in placed and below <= placed}
        assert ready, f"a circle among {sorted(set(BELOW) - placed)}"
        placed |= ready


@pytest.mark.parametrize("fault", [upward, impure, early], ids=lambda rule: rule.__name__)
def test_imports(fault) -> None:
    assert [f"{found.file}:{found.line} imports {found.module}" for found in IMPORTS if fault(found)] == []


@pytest.mark.parametrize(
    ("fault", "file", "text"),
    [
        (upward, "spec/made_up.py", "from sm86.cli.guard import guard"),
        (upward, "cli/made_up.py", "from sm86 import backend"),
        (upward, "verify/made_up.py", "def f():\n    import sm86.launch.engine"),
        (impure, "verify/made_up.py", "def f():\n    import subprocess"),
        (impure, "boot/made_up.py", "from sm86.host.process import run"),
        (impure, "report/made_up.py", "import urllib.request"),
        (upward, "image/made_up.py", "from sm86.image.steps.record import make_record"),
        (upward, "image/judge/made_up.py", "from sm86.image.check import probe"),
        (upward, "cli/made_up.py", "from sm86.image.check.probe import facts"),
        (impure, "image/judge/made_up.py", "import subprocess"),
        (impure, "image/made_up.py", "from sm86.host import docker"),
        (early, "cli/made_up.py", "import rich.console"),
        (early, "launch/made_up.py", "class A:\n    from vllm import envs"),
    ],
)
def test_a_fault_is_seen(fault, file: str, text: str) -> None:
    assert any(fault(found) for found in _imports_of(file, text))


def test_no_file_grows_without_a_reason() -> None:
    long = {file for file, text in FILES.items() if text.count("\n") > MOST_LINES}
    assert long == set(LONGER)
