"""Hooks: source hashes against the real wheel, refusals, and the import machinery. Needs neither torch nor vLLM."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sm86.backend.hooks import install as installing
from sm86.backend.hooks import shared_gpu
from sm86.backend.hooks.catalogue import HOOKS
from sm86.backend.hooks.hook import Expected, Hook, faults_of, verify
from sm86.backend.hooks.source import digest, imported_names, segment
from sm86.backend.refusal import Refused

SOURCE = """
import os
from a.b import c as d

def plain(x):
    return x

class Thing:
    @property
    @staticmethod
    def method(self):   
        return 1

    class Inner: ...
"""


@pytest.fixture(scope="session")
def wheel() -> Callable[[str], str | None]:
    """Reads modules out of the vLLM 0.26.0 wheel named by SM86_VLLM_WHEEL (CI downloads it)."""
    named = os.environ.get("SM86_VLLM_WHEEL")
    if not named:
        pytest.skip("SM86_VLLM_WHEEL does not name the vLLM 0.26.0 wheel")
    archive = zipfile.ZipFile(Path(named))

    def read(module: str) -> str | None:
        base = module.replace(".", "/")
        for name in (f"{base}.py", f"{base}/__init__.py"):
            if name in archive.NameToInfo:
                return archive.read(name).decode()
        return None

    return read


def test_every_hook_knows_the_wheel(wheel: Callable[[str], str | None]) -> None:
    verify((*shared_gpu.HOOKS, *HOOKS), "0.26.0", wheel)


@pytest.mark.parametrize("hook", (*shared_gpu.HOOKS, *HOOKS), ids=lambda hook: hook.name)
def test_a_changed_function_is_noticed(hook: Hook, wheel: Callable[[str], str | None]) -> None:
    for item in hook.expects:
        text = wheel(item.module)
        assert text is not None
        body = segment(text, item.name)
        changed = text.replace(body, body + "\n    # changed", 1)
        one = dataclasses.replace(hook, expects=(item,), imports=())

        def read(module: str, changed: str = changed, item: Expected = item) -> str | None:
            return changed if module == item.module else None

        same = faults_of(one, wheel)
        assert same == []
        lines = body.splitlines()
        edited = text.replace(body, "\n".join([*lines[:-1], lines[-1] + "  # edited"]), 1)
        assert faults_of(one, lambda module, edited=edited: edited) != []


def test_segments_and_digests() -> None:
    assert segment(SOURCE, "plain") == "def plain(x):\n    return x"
    assert segment(SOURCE, "Thing.method").startswith("    @property\n    @staticmethod\n    def method(self):\n")
    assert digest(SOURCE, "plain") != digest(SOURCE.replace("return x", "return  x"), "plain")
    assert digest(SOURCE, "plain") == digest(SOURCE.replace("return x", "return x   "), "plain"), "trailing blanks"
    assert imported_names(SOURCE) == {"os", "d"}
    for missing in ("nothing", "Thing.nothing", "plain.x", "Nothing.method"):
        with pytest.raises(LookupError):
            segment(SOURCE, missing)


def hook_on(module: str, apply: Callable, **changes: object) -> Hook:
    base = Hook("a-hook", module, "a test", (), apply)
    return dataclasses.replace(base, **changes)


@pytest.mark.parametrize(
    ("version", "read", "words"),
    [
        ("0.27.0", lambda module: SOURCE, "this is vLLM 0.27.0"),
        ("0.25.1+cu130", lambda module: SOURCE, "this is vLLM 0.25.1"),
        ("0.26.0rc1", lambda module: SOURCE, "this is vLLM 0.26.0rc1"),
        ("0.26.0.dev7+g123", lambda module: SOURCE, "this is vLLM 0.26.0.dev7"),
        ("0.26.01", lambda module: SOURCE, "this is vLLM 0.26.01"),
        ("0.26.0", lambda module: None, "does not exist"),
        ("0.26.0", lambda module: "import c", "m.plain does not exist"),
        ("0.26.0", lambda module: SOURCE.replace("return x", "return -x"), "has hash"),
        ("0.26.0", lambda module: SOURCE.replace("c as d", "c as e"), "does not import d"),
    ],
)
def test_refusals(version: str, read: Callable[[str], str | None], words: str) -> None:
    hook = hook_on("m", print, expects=(Expected("m", "plain", digest(SOURCE, "plain")),), imports=("d",))
    verify((hook,), "0.26.0+cu130", lambda module: SOURCE)
    with pytest.raises(Refused, match=words.replace(".", r"\.")) as caught:
        verify((hook,), version, read)
    assert caught.value.mend and "\n" not in str(caught.value)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    root = tmp_path / "hooked_package"
    (root / "inner").mkdir(parents=True)
    (root / "__init__.py").write_text("")
    (root / "inner/__init__.py").write_text("")
    (root / "inner/leaf.py").write_text("VALUE = 1\n\ndef answer():\n    return VALUE\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in [name for name in sys.modules if name.startswith("hooked_package")]:
        del sys.modules[name]
    return "hooked_package"


def test_a_hook_runs_once_right_after_import(package: str) -> None:
    seen = []

    def apply(module: object) -> None:
        seen.append(module.VALUE)  # type: ignore[attr-defined]
        module.answer = lambda: 2  # type: ignore[attr-defined]

    finder = installing.install((hook_on(f"{package}.inner.leaf", apply),))
    assert seen == [] and finder.applied == []
    leaf = importlib.import_module(f"{package}.inner.leaf")
    assert leaf.answer() == 2 and seen == [1]
    importlib.import_module(f"{package}.inner.leaf")
    assert seen == [1] and finder.applied == ["a-hook"]
    assert installing.install(()) is finder, "a second call adds nothing"
    assert installing.installed() is finder


def test_modules_imported_before_are_patched_at_once(package: str) -> None:
    leaf = importlib.import_module(f"{package}.inner.leaf")
    finder = installing.install((hook_on(f"{package}.inner.leaf", lambda module: setattr(module, "VALUE", 9)),))
    assert leaf.answer() == 9 and finder.applied == ["a-hook"]


def test_a_hook_that_failed_unseen_is_found_before_serving(package: str) -> None:
    """Whoever imports a module may go on after an error: then its hook is missing, and the model must not be served."""

    def fails(module: object) -> None:
        raise ValueError("no such attribute")

    finder = installing.install((hook_on(f"{package}.inner.leaf", fails), hook_on(f"{package}.other", fails)))
    installing.check_applied()
    with contextlib.suppress(ValueError):
        importlib.import_module(f"{package}.inner.leaf")
    assert isinstance(finder.fault, ValueError) and finder.missing() == []
    # the import system takes out what failed; a second import goes through, now without its hook
    importlib.import_module(f"{package}.inner.leaf")
    with pytest.raises(Refused, match="were not applied: a-hook"):
        installing.check_applied()


def test_sources_are_read_without_importing(package: str) -> None:
    text = installing.read_source(f"{package}.inner.leaf")
    assert text is not None and "def answer" in text
    assert f"{package}.inner.leaf" not in sys.modules
    assert installing.read_source(f"{package}.absent") is None and installing.read_source("no_such_package.x") is None


def test_names_are_unique_and_reasons_are_given() -> None:
    assert len({hook.name for hook in HOOKS}) == len(HOOKS) == 15
    assert all(hook.why and hook.expects for hook in HOOKS)
    assert all(len(item.digest) == 16 for hook in HOOKS for item in hook.expects)
