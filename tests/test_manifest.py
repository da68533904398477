"""The manifest's lines: what is written is read back, whatever the value holds."""

from hypothesis import given
from hypothesis import strategies as st

from sm86 import manifest

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=8,
)


@given(st.text())
def test_any_text_survives_on_one_line(text):
    line = manifest.format_entry("key", text)
    assert "\n" not in line and "\r" not in line
    entry = manifest.parse_line(line)
    assert entry == manifest.Entry("manifest", "key", text)


@given(st.lists(json_values) | st.dictionaries(st.text(), json_values))
def test_json_survives(value):
    line = manifest.format_entry("argv", value)
    assert len(line.splitlines()) == 1
    assert manifest.parse_line(line) == manifest.Entry("manifest", "argv", value)


def test_sections():
    line = manifest.format_entry("attention_backend", "X", section="backend")
    assert line == "[sm86] backend attention_backend=X"
    assert manifest.parse_line(line) == manifest.Entry("backend", "attention_backend", "X")


def test_a_block_is_read_back_and_the_last_complete_one_counts():
    first = manifest.format_manifest({"envelope": "a", "argv": ["serve", "x y"], "dirty": False})
    second = manifest.format_manifest({"envelope": "b"})
    assert manifest.manifest_of([*first, "noise", *second])["envelope"] == "b"
    assert manifest.manifest_of([*first, *second[:-1]]) == {
        "envelope": "a",
        "argv": ["serve", "x y"],
        "dirty": "false",
    }
    assert manifest.manifest_of(["nothing", "[sm86] backend a=b"]) is None


def test_entries_outside_a_block_do_not_count():
    lines = ["[sm86] envelope=stray", *manifest.format_manifest({"envelope": "a"}), "[sm86] envelope=late"]
    assert manifest.manifest_of(lines) == {"envelope": "a"}


def test_other_lines_are_none():
    for line in (
        "",
        "[sm86]",
        "[sm86] manifest begin",
        "[sm86] just words",
        "INFO [sm86] a=b",
        "[sm86] manifest end v1",
    ):
        assert manifest.parse_line(line) is None
