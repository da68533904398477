"""Bytecode for an image: by content, tolerant of files that are not this Python's, and of nothing else."""

from __future__ import annotations

import pytest

from sm86.image.steps.bytecode import compile_folder, main


def test_good_files_are_compiled_by_content_and_bad_ones_named(tmp_path, capsys):
    (tmp_path / "good.py").write_text("x = 1\n")
    (tmp_path / "template.py").write_text("x = {{ value }\n")
    (tmp_path / "nul.py").write_bytes(b"x = 1\0\n")
    assert main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "template.py" in out and "nul.py" in out and "1 of 3 files compiled" in out
    compiled = list((tmp_path / "__pycache__").iterdir())
    assert [file.name.split(".")[0] for file in compiled] == ["good"]
    assert compiled[0].read_bytes()[4:8] == b"\x01\0\0\0", "hash-based and unchecked: no time in it"


def test_two_compilations_give_the_same_bytes(tmp_path):
    import os

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.py").write_text("def f(): return 1\n")
        os.utime(tmp_path / name / "m.py", (1, ord(name)))
        assert compile_folder((tmp_path / name), 1) == (1, ())
    first, second = (next((tmp_path / name / "__pycache__").iterdir()).read_bytes() for name in ("a", "b"))
    assert first[:16] == second[:16]


def test_an_empty_folder_is_a_mistake_of_the_build(tmp_path):
    assert main([str(tmp_path)]) == 1


def test_a_folder_that_cannot_be_written_ends_the_build(tmp_path, monkeypatch):
    import py_compile

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    (tmp_path / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(py_compile, "compile", full)
    with pytest.raises(OSError, match="No space left"):
        compile_folder(tmp_path, 1)
