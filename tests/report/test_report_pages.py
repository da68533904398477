"""HTML and Markdown: whole, offline, and nothing in a record becomes markup."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sm86.errors import CouldNotRun
from sm86.record import Number, Record, Verdict
from sm86.report.build import document
from sm86.report.gather import Unread, gather
from sm86.report.html import html
from sm86.report.markdown import code, markdown, words
from sm86.spec import load_all
from tests.report import made_up

NOW = datetime(2026, 2, 3, tzinfo=UTC)
HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><b onmouseover="x">bold</b>',
    "{{ 7*7 }}{% raw %}",
    "a|b`c``d*e_f_[g](http://evil.example)![h](i)",
    "]]><!--",
    "&lt;b&gt;&amp;",
    "\x1b[31mred\x00\n# heading\n| a |",
    "'; DROP TABLE x",
    "$\\frac{1}{2}$ #1 @someone ~~gone~~ :smile:",
)
VOID = {"meta", "link", "br", "hr", "img"}


class Parsed(HTMLParser):
    """Elements, attributes and text of a page; unbalanced ones fail."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page(records: list[Record], unread: tuple[Unread, ...] = ()) -> str:
    return html(document(gather(made_up.sources(records), unread, load_all()), NOW))


def hostile(text: str) -> list[Record]:
    """The text wherever a record can carry one."""
    conditions = made_up.conditions(model=text, git_rev=text, image_id=text, vllm_version=text, driver=text)
    conditions = replace(conditions, gpus=({"uuid": text, "name": text, text: text},), host={text: text})
    conditions = replace(conditions, overrides={text: text})
    numbers = (Number(text, 1.5, text, (1.0, 2.0), text), Number("b", 1, text), Number("c", 2, text))
    made = []
    for kind in ("boot", "verify", "bench", "trace", "comm", "ladder", "plan", text):
        record = made_up.record(kind, "sm86-262k", conditions=conditions, numbers=numbers)
        verdicts = (Verdict(text, text, text), Verdict("ready", "fail", text))
        details = {text: text, "deep": {text: [text, {text: text}]}, "rows": [{text: text}], "definition": text}
        details |= {"failure": {"what": text, "lines": [{"line": text, "text": text}]}}
        details |= {"findings": [{"rule": text, "evidence": [{"line": 1, "text": text}]}]}
        made.append(replace(record, envelope=text, verdicts=verdicts, details=details))
    return made


class TestHtml:
    def test_it_is_whole_and_needs_nothing(self) -> None:
        parsed = Parsed(page(made_up.rig()))
        assert not parsed.tags & {"script", "iframe", "object", "embed", "img", "base", "form"}
        addresses = [value for _, name, value in parsed.attributes if name in ("href", "src", "action", "srcset")]
        assert addresses and all(value.startswith("#") or value == "data:," for value in addresses)
        assert not re.search(r"url\(|@import|https?://", page(made_up.rig()))

    @pytest.mark.parametrize("more", [0, 700])
    def test_every_link_leads_somewhere_and_every_name_is_one(self, more: int) -> None:
        many = [made_up.bench("sm86-262k", 50 + number / 100, 500 + number) for number in range(more)]
        parsed = Parsed(page([*made_up.rig(), *many]))
        names = [value for _, name, value in parsed.attributes if name == "id"]
        assert len(names) == len(set(names))
        links = {value[1:] for tag, name, value in parsed.attributes if name == "href" and value.startswith("#")}
        assert links <= set(names) and len(links) > 20

    @pytest.mark.parametrize("text", HOSTILE)
    def test_nothing_becomes_markup(self, text: str) -> None:
        plain = Parsed(page(hostile("harmless")))
        parsed = Parsed(page(hostile(text), (Unread(text, text, True),)))
        assert parsed.tags <= plain.tags | {"table", "tr", "td"}
        assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]
        shown = " ".join("".join(parsed.text).split())
        wanted = " ".join("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text).split())
        assert wanted in shown

    def test_missing_templates_are_words(self, tmp_path: Path) -> None:
        made = document(gather(made_up.sources(made_up.rig()), [], load_all()), NOW)
        with pytest.raises(CouldNotRun, match="there is no folder"):
            html(made, tmp_path / "nope")
        (tmp_path / "style.css").write_text("")
        (tmp_path / "page.html.j2").write_text("{{ nothing.here }}")
        with pytest.raises(CouldNotRun, match="cannot be rendered"):
            html(made, tmp_path)


class TestMarkdown:
    def tokens(self, text: str) -> list:
        from markdown_it import MarkdownIt

        return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)

    @pytest.mark.parametrize("text", HOSTILE)
    def test_nothing_becomes_markup(self, text: str) -> None:
        made = document(gather(made_up.sources(hostile(text)), [Unread(text, text, True)], load_all()), NOW)
        flat = [t for token in self.tokens(markdown(made)) for t in (token, *(token.children or ()))]
        kinds = {token.type for token in flat}
        assert not kinds & {"html_block", "html_inline", "image", "em_open", "s_open", "hr", "code_block"}
        links = {token.attrGet("href") for token in flat if token.type == "link_open"}
        assert links <= {"#records-and-conditions"}

    @pytest.mark.parametrize(
        "text", [*HOSTILE, "`", "``", " `a` ", "a|b", "1. one", "- a", "+ b", "=== x", "> q", "# h"]
    )
    def test_words_and_code_show_as_they_are(self, text: str) -> None:
        wanted = " ".join(text.split()).replace("\x1b", "\ufffd").replace("\x00", "\ufffd")
        for made, kind in ((words(text), "text"), (code(text), "code_inline")):
            (_, inline, _) = self.tokens(made)
            shown = "".join(t.content for t in inline.children if t.type in ("text", "text_special", kind))
            assert shown.strip() == wanted.strip()

    def test_every_table_has_its_columns_in_every_row(self) -> None:
        made = document(gather(made_up.sources(hostile("a|b`|`c")), [], load_all()), NOW)
        widths, tables = [], 0
        for token in self.tokens(markdown(made)):
            if token.type == "table_open":
                tables, widths = tables + 1, []
            elif token.type == "tr_open":
                widths.append(0)
            elif token.type in ("th_open", "td_open"):
                widths[-1] += 1
            elif token.type == "table_close":
                assert len(set(widths)) == 1
        assert tables > 5
        text = markdown(made)
        for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
            bars = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(bars) == 1
