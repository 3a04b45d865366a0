"""A page of its own: one HTML file with all that it shows, which draws itself without a network.

The template, the style and the scripts lie in ``assets`` beside this file and ship with the wheel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from graphc.draw.palette import CURVES, FILLS
from graphc.draw.scene import View, scene
from graphc.ir import Schedule

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("base.js", "lanes.js", "sweep.js", "start.js")


def timeline_page(
    schedule: Schedule,
    views: Sequence[View],
    *,
    title: str,
    subtitle: str,
    phases: Mapping[str, Sequence[str]],
    notes: Sequence[str] = (),
) -> str:
    """Timelines of a schedule, one beneath the other on the same axis, with tables and memory."""
    data = scene(schedule, views, phases)
    data["phaseFills"] = [FILLS[at % len(FILLS)] for at in range(len(phases))]
    data["bufferFills"] = FILLS[:-1]
    facts = [fact for view in views for fact in view.facts]
    return page(data, title=title, subtitle=subtitle, facts=facts, notes=notes)


def page(
    data: Mapping[str, Any],
    *,
    title: str,
    subtitle: str,
    facts: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
) -> str:
    """The page of any data that the scripts know how to draw."""
    return template().render(
        title=title,
        subtitle=subtitle,
        facts=facts,
        notes=notes,
        version=version(),
        footer=f"graphc {version()}. All that this page shows is in it; it needs no network.",
        css=Markup(read("page.css")),
        script=Markup("\n".join(map(read, SCRIPTS))),
        data=Markup(embedded({"curves": CURVES, **data})),
    )


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that may stand in a script element, whatever names it holds.

    >>> embedded({"name": "</script>"})
    '{"name":"\\\\u003c/script>"}'
    """
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def version() -> str:
    from graphc import __version__

    return __version__


def read(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


@cache
def template() -> jinja2.Template:
    made = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return made.from_string(read("page.html.j2"))
