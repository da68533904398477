"""Rendering: deterministic, tidy, refusing what it cannot carry, and comparing files truthfully."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sm86.cli.render import render
from sm86.errors import CouldNotRun
from sm86.render import apply, compare, render_all
from sm86.render.all import MARK, ROOT
from sm86.render.scalar import comment, literal, quoted, variable
from sm86.spec import load_all, load_pins
from tests.render.conftest import AWKWARD, synthetic

FILES = render_all(load_all(), load_pins())


def test_the_committed_files_are_the_specs() -> None:
    assert compare(FILES, ROOT) == (), "run invoke render and commit what it writes"


def test_the_same_text_twice() -> None:
    assert render_all(load_all(), load_pins()) == FILES


@pytest.mark.parametrize("path", FILES)
def test_every_file_is_tidy_and_says_what_made_it(path: str) -> None:
    text = FILES[path]
    assert MARK in text.split("\n")[0]
    assert text.endswith("\n") and not text.endswith("\n\n")
    assert all(line == line.rstrip() and line.isprintable() for line in text.split("\n"))


def test_an_awkward_title_stays_in_its_comment() -> None:
    text = render_all([synthetic()], load_pins())["compose/synthetic.yaml"]
    assert all(line.isprintable() for line in text.split("\n"))
    assert set(yaml.safe_load(text)) == {"name", "services", "volumes"}


def test_env_example_is_a_no_op_and_lists_what_the_files_read() -> None:
    lines = FILES[".env.example"].splitlines()
    assert all(not line or line.startswith("#") for line in lines)
    names = {line[1:].partition("=")[0] for line in lines if line[:1] == "#" and line[1:2].strip("# ") and "=" in line}
    read: set[str] = set()
    for path, text in FILES.items():
        if path.startswith("compose/"):
            for service in yaml.safe_load(text)["services"].values():
                read |= {line for line in service["environment"] if "=" not in line}
            read |= {part.partition(":-")[0] for part in text.split("${")[1:]}
    # told by the command that starts the container, and nothing to write into a file
    assert names == read - {"SM86_IMAGE_ID"} and "SM86_IMAGE_ID" in read
    for line in lines:
        if line[:1] == "#" and "=" in line and line[1:].partition("=")[0] in names:
            assert line.partition("=")[2].strip()


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_any_text_survives_yaml(text: str) -> None:
    scalar = quoted(text)
    assert "\n" not in scalar
    assert yaml.safe_load(f"- {scalar}") == [text]


@given(st.text())
def test_a_comment_is_one_printable_line(text: str) -> None:
    assert comment(text).isprintable()


@pytest.mark.parametrize("text", ["nul\0", "lone \udc80 surrogate"])
def test_what_no_command_line_can_carry_is_refused(text: str) -> None:
    with pytest.raises(CouldNotRun):
        literal(text)
    with pytest.raises(CouldNotRun):
        render_all([replace(load_all()[0], environment=(("A", text),))], load_pins())


@pytest.mark.parametrize("default", ["", "a$b", "a}b", "${X}"])
def test_a_default_that_compose_would_cut_is_refused(default: str) -> None:
    with pytest.raises(CouldNotRun):
        variable("NAME", default)


def test_a_template_may_not_print_a_specs_text_as_it_is(tmp_path: Path) -> None:
    templates = _templates(tmp_path)
    (templates / "compose.yaml.j2").write_text("name: {{ envelopes[0].title }}\n")
    with pytest.raises(CouldNotRun, match="as it is"):
        render_all(load_all(), load_pins(), templates)


@pytest.mark.parametrize("text", ["{% for x in %}", "{{ nothing_of_this_name | quoted }}", "{{ envelopes | quoted }}"])
def test_a_broken_template_is_named(tmp_path: Path, text: str) -> None:
    templates = _templates(tmp_path)
    (templates / "compose.yaml.j2").write_text(text)
    with pytest.raises(CouldNotRun, match=r"compose\.yaml\.j2"):
        render_all(load_all(), load_pins(), templates)


def test_missing_templates_are_named(tmp_path: Path) -> None:
    with pytest.raises(CouldNotRun, match="templates"):
        render_all(load_all(), load_pins(), tmp_path / "templates")
    templates = _templates(tmp_path)
    (templates / "env.example.j2").unlink()
    with pytest.raises(CouldNotRun, match=r"env\.example\.j2"):
        render_all(load_all(), load_pins(), templates)


def test_what_differs_is_found_written_and_removed(tmp_path: Path) -> None:
    apply(FILES, compare(FILES, tmp_path), tmp_path)
    assert compare(FILES, tmp_path) == ()
    right = tmp_path / "compose/sm86-64k.yaml"
    before = right.stat().st_mtime_ns
    (tmp_path / "compose.yaml").write_text(FILES["compose.yaml"] + "\n")
    (tmp_path / "compose/sm86-262k.yaml").unlink()
    (tmp_path / "compose/gone.yaml").write_text(f"# {MARK} once\nservices: {{}}\n")
    (tmp_path / "compose/mine.yaml").write_text("services: {}\n")
    changes = compare(FILES, tmp_path)
    assert [(change.path, change.state) for change in changes] == [
        ("compose.yaml", "differs"),
        ("compose/gone.yaml", "stale"),
        ("compose/sm86-262k.yaml", "missing"),
    ]
    apply(FILES, changes, tmp_path)
    assert compare(FILES, tmp_path) == ()
    assert (tmp_path / "compose/mine.yaml").exists()
    assert right.stat().st_mtime_ns == before


def test_check_writes_nothing_and_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert render(check=True, root=tmp_path) == 1
    assert list(tmp_path.iterdir()) == []
    assert "compose/sm86-262k.yaml is missing" in capsys.readouterr().out
    assert render(root=tmp_path) == 0
    assert render(check=True, root=tmp_path) == 0
    assert "as the specs want them" in capsys.readouterr().out


def test_json_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert render(check=True, json=True, root=tmp_path) == 1
    values = json.loads(capsys.readouterr().out)
    assert (values["schema"], values["version"], values["written"]) == ("sm86.render", 1, False)
    assert {entry["state"] for entry in values["files"]} == {"missing"}
    assert [entry["path"] for entry in values["files"]] == sorted(FILES)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "compose").write_text("a file where a folder belongs")
    with pytest.raises(CouldNotRun, match="compose"):
        render(root=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["compose"]


@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_texts_are_one_scalar_each(text: str) -> None:
    assert yaml.safe_load(f"k: {quoted(text)}") == {"k": text}


def _templates(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "templates", tmp_path / "templates"))
