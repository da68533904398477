"""The page in a real browser: it asks for nothing, fits every width, follows light and dark, and prints whole."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm86.cli.report import report
from sm86.record import save
from tests.report import browser as browsers
from tests.report import made_up

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    for record in made_up.rig():
        save(record, folder / "results")
    assert report([str(folder / "results"), str(DATA)], folder / "out", png=False) == 0
    return folder / "out" / "report.html"


@pytest.fixture(scope="module")
def browser(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[browsers.Browser]:
    program = browsers.find()
    if program is None:
        assert os.environ.get("CI") != "true", "there must be a browser where a change is judged: install chromium"
        pytest.skip("there is no Chromium here (Debian: apt-get install chromium)")
    with browsers.Browser(program, tmp_path_factory.mktemp("profile")) as running:
        running.open(page)
        yield running


@pytest.mark.parametrize("width", [340, 500, 800, 1000, 1280, 1920])
def test_nothing_sticks_out(browser: browsers.Browser, width: int) -> None:
    browser.shape(width, 900)
    assert browser.value("document.documentElement.scrollWidth") <= width
    # whatever is wider than its place scrolls inside it, and nothing lies outside the page
    outside = browser.value(
        "[...document.querySelectorAll('main p, main h2, main h3, main h4, figure, .tile, dl > div, nav a')]"
        ".filter(e => e.getClientRects().length && e.getBoundingClientRect().right > innerWidth + 1)"
        ".map(e => e.outerHTML.slice(0, 90))"
    )
    assert outside == []


@pytest.mark.parametrize(("width", "shown"), [(340, "narrow"), (1280, "wide")])
def test_charts_are_drawn_for_their_width(browser: browsers.Browser, width: int, shown: str) -> None:
    browser.shape(width, 900)
    sizes = browser.value(
        "[...document.querySelectorAll('svg')].filter(s => s.getClientRects().length)"
        ".map(s => [s.parentElement.className, s.getBoundingClientRect().width, s.viewBox.baseVal.width])"
    )
    assert {kind for kind, _, _ in sizes} == {shown}
    # scaled little, so that its letters stay readable
    assert all(0.85 < real / drawn <= 1.001 for _, real, drawn in sizes)


def test_text_in_charts_stays_inside(browser: browsers.Browser) -> None:
    for width in (340, 1280):
        browser.shape(width, 900)
        out = browser.value(
            "[...document.querySelectorAll('svg text')].filter(t => t.getClientRects().length).filter(t => {"
            "const a = t.getBoundingClientRect(), b = t.ownerSVGElement.getBoundingClientRect();"
            "return a.left < b.left - 4 || a.right > b.right + 4 || a.bottom > b.bottom + 4})"
            ".map(t => t.textContent)"
        )
        assert out == [], width


def test_it_asks_for_nothing(browser: browsers.Browser) -> None:
    browser.shape(1280, 900)
    browser.picture()
    assert browser.asked_for() == []
    assert browser.complaints() == []


def test_light_and_dark(browser: browsers.Browser) -> None:
    from PIL import Image

    def brightness(dark: bool) -> float:
        browser.shape(1280, 900, dark)
        grey = Image.open(io.BytesIO(browser.picture())).convert("L").resize((64, 64))
        return sum(grey.tobytes()) / 64 / 64

    assert brightness(False) > 200
    assert brightness(True) < 80


CONTRAST = """(() => {
  const rgb = c => c.match(/[\\d.]+/g).map(Number);
  const linear = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = rgb(c).map(v => linear(v / 255));
    return .2126 * r + .7152 * g + .0722 * b };
  const paper = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (rgb(c).length < 4 || rgb(c)[3] > 0) return c } return getComputedStyle(document.body).backgroundColor };
  return [...document.querySelectorAll('p, td, th, a, code, .mark, .state, dt, dd, summary, svg text:not(.inside)')]
    .filter(e => e.getClientRects().length && e.textContent.trim()).map(e => {
      const style = getComputedStyle(e), a = light(e.ownerSVGElement ? style.fill : style.color), b = light(paper(e));
      return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.outerHTML.slice(0, 80)] }).filter(x => x[0] < 4.5)
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_words_stand_out_from_the_paper(browser: browsers.Browser, dark: bool) -> None:
    browser.shape(1280, 900, dark)
    assert browser.value(CONTRAST) == []


def test_print_shows_what_the_page_folds_away(browser: browsers.Browser) -> None:
    browser.shape(800, 1100, media="print")
    hidden = (
        "[...document.querySelectorAll('details td, details p')].filter(e => !e.checkVisibility({contentVisibilityAuto:"
        " true}) || e.getBoundingClientRect().height === 0).length"
    )
    # folded parts are laid out some frames after the medium has changed
    deadline = time.monotonic() + 20
    while browser.value(hidden) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert browser.value(hidden) == 0
    assert not browser.value("document.querySelector('nav').checkVisibility()")
    browser.shape(1280, 900)
    # a browser without this feature would print folded parts away
    assert browser.value("CSS.supports('selector(::details-content)')")
    paper = browser.pdf()
    assert paper.startswith(b"%PDF") and paper.count(b"/Type /Page\n") + paper.count(b"/Type /Page/") > 3
