"""What every page of ours is made with: one template engine, one style, one security policy."""

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from tocsin.chaos.report.model import GLYPHS
from tocsin.chaos.report.wording import legible, milliseconds, rate, share

PAGES = "tocsin.chaos.report"


def page_text(name: str, package: str = PAGES) -> str:
    """A template, style or script that comes with a package."""
    return (files(package) / "page" / name).read_text(encoding="utf-8")


def page_environment() -> Environment:
    """The template engine: every text is escaped, every unknown name is an error."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_finished,
        loader=FunctionLoader(page_text),
    )
    environment.filters.update(
        ms=milliseconds, rate=rate, share=share, coded=_coded, dotted=_dotted
    )
    environment.globals.update(glyphs=GLYPHS)
    return environment


def content_policy(css: str, js: str = "", *, form: bool = False) -> str:
    """Nothing may be loaded; only this style and this script may be used.

    Args:
        form: whether the page may send a form to where it came from.
    """
    script = f"script-src '{_digest(js)}'; " if js else ""
    action = "'self'" if form else "'none'"
    return (
        f"default-src 'none'; img-src data:; style-src '{_digest(css)}'; {script}"
        f"base-uri 'none'; form-action {action}"
    )


def _finished(value: object) -> object:
    """What every expression of the template goes through before it is escaped."""
    return legible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _coded(text: str) -> Markup:
    """Escaped text in which what stood between backticks is code."""
    pieces = [
        Markup("<code>%s</code>") % piece if k % 2 else escape(piece)
        for k, piece in enumerate(legible(text).split("`"))
    ]
    return Markup("").join(pieces)


def _dotted(name: str) -> Markup:
    """An escaped dotted name that may be broken at its dots and low lines."""
    broken = str(escape(legible(name)))
    for mark in "._":
        broken = broken.replace(mark, f"{mark}<wbr>")
    return Markup(broken)


def _digest(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
