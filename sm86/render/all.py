"""Every rendered file, from the specs and the templates. Reads the templates, writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm86.errors import CouldNotRun
from sm86.plan import kv
from sm86.render import runbook
from sm86.render import service as facts
from sm86.render.scalar import Scalar, comment, quoted
from sm86.render.service import service_of
from sm86.render.variables import settings
from sm86.spec.envelope import Envelope
from sm86.spec.pins import Pins

if TYPE_CHECKING:
    from jinja2 import Environment

ROOT = Path(__file__).resolve().parents[2]
"""The clone: templates and rendered files lie at its top, beside the package."""

TEMPLATES = "templates"
MARK = "Rendered by `invoke render`"
"""In the first line of every rendered file; what has it and is no longer rendered may be removed."""


def render_all(envelopes: Sequence[Envelope], pins: Pins, templates: Path = ROOT / TEMPLATES) -> dict[str, str]:
    """Path below the clone's root -> text, for everything that follows from the specs; the same text every time.

    Raises CouldNotRun: templates missing or broken, a value that a Compose file cannot carry.
    """
    yaml, plain = _environments(templates)
    shared = {"envelopes": envelopes, "pins": pins, "facts": facts, "mark": MARK}
    files = {
        f"compose/{envelope.name}.yaml": _text(yaml, "envelope.yaml.j2", **shared, service=service_of(envelope, pins))
        for envelope in envelopes
    }
    files["compose.yaml"] = _text(yaml, "compose.yaml.j2", **shared)
    files[".env.example"] = _text(plain, "env.example.j2", **shared, settings=settings(envelopes))
    rigs = [envelope for envelope in envelopes if envelope.uses_gpu]
    if rigs:
        files["docs/runbook.md"] = _text(plain, "runbook.md.j2", **shared, **_runbook(envelopes, rigs))
    return dict(sorted(files.items()))


def _runbook(envelopes: Sequence[Envelope], rigs: Sequence[Envelope]) -> dict[str, Any]:
    rig = rigs[0]
    return {
        "rig": rig,
        "m": kv.scheduled_tokens(rig.serve.max_num_batched_tokens, rig.serve.async_scheduling),
        "kv_step": kv.BLOCK_STEP,
        "blocks": runbook.block_rows(rigs),
        "checklist": runbook.CHECKLIST,
        "overrides": runbook.override_rows(
            rig, runbook.has_plugin((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        ),
        "matrix": runbook.COMM_MATRIX,
        "settings": settings(envelopes),
        "start_factor": facts.START_FACTOR,
        "restarts": facts.RESTARTS,
        "log_mib": facts.LOG_FILE_MIB * facts.LOG_FILES,
    }


def _text(environment: Environment, name: str, **values: Any) -> str:
    from jinja2 import TemplateError

    try:
        return _tidy(environment.get_template(name).render(**values))
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise CouldNotRun(
            f"template {name} cannot be rendered: {type(error).__name__}: {error}",
            f"mend it, or get {TEMPLATES}/ from the repository again",
        ) from error


def _environments(templates: Path) -> tuple[Environment, Environment]:
    """For YAML, where nothing but scalars is printed, and for plain text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    if not templates.is_dir():
        raise CouldNotRun(f"there is no folder {templates}", "run it from a clone of the repository, which has it")

    def make(**options: Any) -> Environment:
        return Environment(
            loader=FileSystemLoader(templates),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            auto_reload=False,
            **options,
        )

    yaml = make(finalize=_only_scalars)
    yaml.filters.update(quoted=quoted, comment=comment)
    plain = make()
    plain.filters.update(cell=runbook.cell)
    return yaml, plain


def _only_scalars(value: object) -> object:
    # a template that prints a spec's text without a filter is a fault that would only show with unusual text
    if isinstance(value, Scalar) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise CouldNotRun(
        f"a YAML template prints {value!r} as it is", "pipe it through `quoted`, or through `comment` in a comment"
    )


def _tidy(text: str) -> str:
    """No trailing blanks, one newline at the end."""
    return "\n".join(line.rstrip() for line in text.split("\n")).rstrip("\n") + "\n"
