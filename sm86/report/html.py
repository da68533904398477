"""A document as one HTML page that needs nothing else: no script, no request, light, dark and paper. Pure but for its
templates."""

from __future__ import annotations

from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.report.document import Document
from sm86.report.svg import NARROW, WIDE, svg

TEMPLATES = Path(__file__).resolve().parents[2] / "templates" / "report"


def html(document: Document, templates: Path = TEMPLATES) -> str:
    """The page. Raises CouldNotRun: the templates are missing or broken."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError
    from markupsafe import Markup

    if not templates.is_dir():
        raise CouldNotRun(f"there is no folder {templates}", "run it from a clone of the repository, which has it")
    environment = Environment(
        loader=FileSystemLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    # svg() escapes every text it is given; nothing else comes into the page unescaped
    environment.filters["wide"] = lambda chart: Markup(svg(chart, WIDE))
    environment.filters["narrow"] = lambda chart: Markup(svg(chart, NARROW))
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["slug"] = lambda text: "".join(c if c.isalnum() and c.isascii() else "-" for c in text)
    try:
        style = Markup((templates / "style.css").read_text(encoding="utf-8"))
        return environment.get_template("page.html.j2").render(document=document, style=style)
    except (TemplateError, OSError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise CouldNotRun(
            f"the page's template cannot be rendered: {type(error).__name__}: {error}",
            "get templates/report/ from the repository again",
        ) from error
