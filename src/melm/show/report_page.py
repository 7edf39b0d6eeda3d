"""A page that is one file: its style, its script and a policy that lets nothing else in; and the small pieces it is made of."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

ASSETS = files("melm.show") / "assets"


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page, with its name in the menu."""

    anchor: str
    title: str
    body: str


def page(title: str, head: str, sections: Sequence[Section], foot: str) -> bytes:
    """The whole file. Texts are escaped already; what UTF-8 cannot write, as some file names, becomes an escape."""
    style, script = ((ASSETS / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    # Nothing from outside, and of what is inside only this style and this script: a name that holds one is a name.
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    menu = "".join(f'<li><a href="#{section.anchor}">{section.title}</a></li>' for section in sections)
    body = "\n".join(
        f'<section id="{s.anchor}" aria-labelledby="{s.anchor}-title">'
        f'<h2 id="{s.anchor}-title">{s.title}</h2>\n{s.body}</section>'
        for s in sections
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#main">Skip to the contents</a>\n<header>{head}</header>\n'
        f'<nav aria-label="Parts of this page"><ul>{menu}</ul></nav>\n<main id="main">\n{body}\n</main>\n'
        f"<footer>{foot}</footer>\n<script>{script}</script>\n</body>\n</html>\n"
    ).encode("utf-8", "backslashreplace")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "", last_is_total: bool = False) -> str:
    """A table of cells that are HTML already; the first column names the row. The caption is plain words."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    lines = []
    for number, row in enumerate(rows):
        total = ' class="total"' if last_is_total and number == len(rows) - 1 else ""
        cells = "".join(f"<td>{cell}</td>" for cell in row[1:])
        lines.append(f'<tr{total}><th scope="row">{row[0]}</th>{cells}</tr>')
    words = f'<p class="caption">{caption}</p>' if caption else ""
    return (
        f'{words}<div class="scroll" tabindex="0"><table aria-label="{caption}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>\n"
    )


def bar(share: float) -> str:
    """A bar for a share from 0 to 1."""
    return stacked([("s1", share)], f"{100 * share:.0f} %") if math.isfinite(share) else ""


def stacked(parts: Sequence[tuple[str, float]], words: str) -> str:
    """Shares side by side in one bar, each with the style class of its colour."""
    rects, left = [], 0.0
    for style, share in parts:
        if share > 0:
            rects.append(f'<rect class="{style}" x="{100 * left:.2f}" y="0" width="{100 * share:.2f}" height="10"/>')
        left += share
    return (
        f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="{escape(words)}">'
        f"{''.join(rects)}</svg>"
    )


def columns(counts: Sequence[int], ends: Sequence[str], words: str) -> str:
    """A histogram: a column for each count, and what the first and the last stand for below."""
    most, width = max([*counts, 1]), 100 / max(len(counts), 1)
    rects = "".join(
        f'<rect class="s1" x="{i * width + 0.5:.2f}" y="{40 - 38 * count / most:.2f}" width="{width - 1:.2f}" '
        f'height="{38 * count / most:.2f}"><title>{count:,}</title></rect>'
        for i, count in enumerate(counts)
    )
    return (
        f'<figure class="columns"><svg viewBox="0 0 100 40" preserveAspectRatio="none" role="img" aria-label="{escape(words)}">'
        f"{rects}</svg><div><span>{ends[0]}</span><span>{ends[1]}</span></div>"
        f"<figcaption>{escape(words)}</figcaption></figure>"
    )


def missing(what: str, command: str = "") -> str:
    """What is not on the page, and the command that would put it there."""
    add = f" Add it with:<pre><code>{escape(command)}</code></pre>" if command else ""
    return f'<div class="missing">{escape(what)}{add}</div>\n'


def percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.1f}"
