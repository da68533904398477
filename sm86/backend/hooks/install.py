"""Apply hooks when their module is imported; at once for modules that are imported already."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from sm86.backend.hooks.hook import Hook
from sm86.backend.refusal import Refused


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: Any, after: Callable[[ModuleType], None]) -> None:
        self._inner = inner
        self._after = after

    def create_module(self, spec: Any) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        self._after(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Finder(importlib.abc.MetaPathFinder):
    """Finds hooked modules like everybody else, then runs their hooks right after their code."""

    def __init__(self, hooks: tuple[Hook, ...]) -> None:
        self.hooks = hooks
        self.applied: list[str] = []
        self.fault: Exception | None = None
        self._by_module: dict[str, list[Hook]] = {}
        for hook in hooks:
            self._by_module.setdefault(hook.module, []).append(hook)
        self._searching: set[str] = set()

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if fullname not in self._by_module or fullname in self._searching:
            return None
        self._searching.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.apply_to)
        return spec

    def apply_to(self, module: ModuleType) -> None:
        """Run the module's hooks, each once per process. A fault is kept: whoever catches it here meets it again."""
        for hook in self._by_module.pop(module.__name__, []):
            try:
                hook.apply(module)
            except Exception as error:
                self.fault = self.fault or error
                raise
            self.applied.append(hook.name)

    def missing(self) -> list[str]:
        """Hooks of modules that this process has imported and that were not applied, by name."""
        return [hook.name for hook in self.hooks if hook.module in sys.modules and hook.name not in self.applied]


def installed() -> Finder | None:
    """This process's finder, if the hooks are in."""
    return next((finder for finder in sys.meta_path if isinstance(finder, Finder)), None)


def install(hooks: tuple[Hook, ...]) -> Finder:
    """Put the finder first and catch up with what is imported already. A second call returns the first finder."""
    present = installed()
    if present is not None:
        return present
    finder = Finder(hooks)
    sys.meta_path.insert(0, finder)
    for name in [hook.module for hook in hooks]:
        module = sys.modules.get(name)
        if module is not None:
            finder.apply_to(module)
    return finder


def check_applied() -> None:
    """Raise Refused when a hook of a module that is imported was not applied: what it mends would run unmended."""
    finder = installed()
    missing = finder.missing() if finder is not None else []
    if missing:
        raise Refused(
            f"hooks were not applied: {', '.join(missing)}", "read the first error of this log, and mend that"
        )


def read_source(module: str) -> str | None:
    """A module's source text, found from its parent package without importing the module itself; None if absent."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        return None
    base = Path(next(iter(spec.submodule_search_locations))).joinpath(*rest)
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return None
