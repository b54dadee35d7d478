"""The document as one self-contained page. It makes no request, and no name in it becomes markup."""

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from peakward.records.study import Plot
from peakward.report.charts import draw
from peakward.report.columns import in_one_unit, prose_columns, shown
from peakward.report.document import Block, Document
from peakward.report.format import format_cell, is_numeric, tone

WIDE, NARROW = 1040, 350
"""Widths in pixels. Each plot is drawn for a desk and for a phone, and the page shows the one that fits."""


def render(document: Document) -> str:
    """The page. Style and script are inline, and only their hashes are allowed to run."""
    style, script = _asset("page.css"), _asset("page.js")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src {_source(style)}",
            f"script-src {_source(script)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    # Both are our own text without values of the document: escaping would only break their hashes.
    return _template().render(
        document=document, policy=policy, style=Markup(style), script=Markup(script)
    )


def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("peakward.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        kind=_kind,
        cell=format_cell,
        is_numeric=is_numeric,
        tone=tone,
        drawings=_drawings,
        prose_columns=prose_columns,
        shown=shown,
        in_one_unit=in_one_unit,
    )
    return environment.get_template("page.html.j2")


def _asset(name: str) -> str:
    return files("peakward.report").joinpath("templates", name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _kind(block: Block) -> str:
    return type(block).__name__


def _drawings(plot: Plot) -> tuple[tuple[str, Markup], ...]:
    """The plot for each width of the page. `draw` escapes names itself."""
    return (("wide", Markup(draw(plot, WIDE))), ("narrow", Markup(draw(plot, NARROW))))
