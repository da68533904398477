"""Listings of images stand in for images, papers lie beside them, and a check shows what takes the room."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from sm86.cli import image as cli
from sm86.errors import CouldNotRun
from sm86.host import docker as gateway
from sm86.host.image_facts import listing
from sm86.host.image_papers import file_name, papers, write_papers
from sm86.image.check.probe import SCHEMA, VERSION

FACTS = {
    "schema": SCHEMA,
    "version": VERSION,
    "build": {"git_rev": "a" * 40},
    "distributions": {"vllm": "0.26.0"},
    "files": {"/usr/bin/python3": ["0o100755", 10, "aa"]},
}


class Engine:
    """An engine with one image, whose probe prints `facts` and which holds papers unless told otherwise."""

    def __init__(self, facts: dict, has_papers: bool = True) -> None:
        self.facts, self.has_papers = facts, has_papers

    def image(self, name: str):
        return SimpleNamespace(id="sha256:1", size=5, labels={}) if name == "there:1" else None

    def image_history(self, name: str):
        return (("COPY", 5),)

    def image_config(self, name: str):
        return "1000:1000", ()

    def image_inside(self, name: str, argv: tuple[str, ...], within_s: float):
        if argv[0] == "cat":
            return (0, "{}", "") if self.has_papers else (1, "", "cat: no such file")
        return 0, "words of a library\n" + json.dumps(self.facts), ""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    found = Engine(FACTS)
    monkeypatch.setattr(gateway, "require_engine", lambda: found)
    return found


def test_a_listing_written_before_is_compared_like_its_image(engine, tmp_path, capsys):
    saved = tmp_path / "a.json"
    assert cli.digest("there:1", str(saved)) == 0
    digest = capsys.readouterr().out.split()[0]
    assert cli.diff(str(saved), "there:1") == 0
    assert capsys.readouterr().out.count(digest) == 2
    engine.facts = {**FACTS, "files": {"/usr/bin/python3": ["0o100755", 10, "bb"]}}
    assert cli.diff(str(saved), "there:1") == 1
    assert "file     /usr/bin/python3" in capsys.readouterr().out
    assert cli.digest("there:1", json=True) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["tree_digest"] != digest and printed["files"] == 1


def test_the_largest_packages_are_shown_and_all_are_in_the_json(engine, capsys):
    sizes = {"python": {f"p{n}": 1_000_000 * n for n in range(30, 0, -1)}, "debian": {"gcc-12": 25_500_000}}
    engine.facts = {**FACTS, "packages": sizes}
    assert cli.check("there:1") == 1
    shown = [
        line.split("MB  ")[1] for line in capsys.readouterr().out.splitlines() if "package" in line and "MB" in line
    ]
    assert shown[:7] == [*(f"package p{n}" for n in (30, 29, 28, 27, 26)), "package gcc-12 (Debian)", "package p25"]
    assert shown[-1] == f"{31 - cli.SHOWN_PACKAGES} smaller packages (--json names each)"
    assert cli.check("there:1", json=True) == 1
    assert json.loads(capsys.readouterr().out)["packages"] == sizes


@pytest.mark.parametrize(
    ("sizes", "words"), [(None, "not seen (its probe tells none"), ({"error": "OSError: x"}, "not seen (OSError: x)")]
)
def test_sizes_that_were_not_seen_are_said_so(engine, capsys, sizes, words):
    engine.facts = {**FACTS, "packages": sizes}
    cli.check("there:1")
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", json.dumps({**FACTS, "files": {}}), json.dumps({**FACTS, "schema": "other"})]
)
def test_another_file_is_no_listing(engine, tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(CouldNotRun) as caught:
        listing(engine, str(tmp_path / "a.json"))
    assert "image.digest --out" in caught.value.mend


def test_a_listing_that_is_not_there_is_not_taken_for_an_image(engine, tmp_path):
    with pytest.raises(CouldNotRun, match=r"cannot read .*none\.json"):
        listing(engine, str(tmp_path / "none.json"))


def test_papers_lie_beside_the_image_or_nothing_does(engine, tmp_path):
    paths = write_papers(engine, "there:1", tmp_path / "new" / "image.tar", {"seconds": 3})
    assert [path.name for path in paths] == ["image.tar.build.json", "image.tar.sbom.json"]
    assert json.loads(paths[0].read_text()) == {
        "image": "there:1",
        "image_id": "sha256:1",
        "size_bytes": 5,
        "layers": [5],
        "seconds": 3,
    }
    engine.has_papers = False
    with pytest.raises(CouldNotRun, match=r"has no /opt/sm86/build\.json"):
        write_papers(engine, "there:1", tmp_path / "other.tar")
    assert not list(tmp_path.glob("other*"))
    with pytest.raises(CouldNotRun, match="there is no image gone"):
        write_papers(engine, "gone", tmp_path / "x")
    with pytest.raises(CouldNotRun):
        papers(engine, "there:1")
    assert file_name("host:5000/sm86-vllm:0.26.0") == "host-5000-sm86-vllm-0.26.0"
