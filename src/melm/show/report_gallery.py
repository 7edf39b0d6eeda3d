"""The gallery of a report: which images are in it, and each with its boxes as a figure of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from melm.data.images import ImageError, read_image
from melm.detect.labels import LabelledImage, Labels
from melm.measure.error_analysis import CORRECT, KINDS, NOT_COUNTED
from melm.measure.truth import Truth
from melm.progress import Steps
from melm.show.drawings import class_colour
from melm.show.report_pictures import data_uri, thumbnail
from melm.show.report_scores import NOT_JUDGED, Scores

DOUBTFUL, AT_RANDOM = 200, 100  # images, where there are more than both together
MOST_BOXES = 40  # of an image, the surest
ROOM = 9_000_000  # bytes of text for all thumbnails: a page that opens fast
LARGEST = 60_000  # bytes of one
SEED = 0


@dataclass(frozen=True)
class Shot:
    """One image of the gallery."""

    image: LabelledImage
    at_random: bool
    kinds: NDArray[np.int8]  # (M,) of the boxes, as `Scores.kinds`


def chosen(count: int, doubtful: int = DOUBTFUL, at_random: int = AT_RANDOM) -> tuple[list[int], list[int]]:
    """Places among so many labels, the most doubtful first: all, or those at the beginning and others drawn at random.

    The same for the same number, so that a report made again shows the same images.
    """
    if count <= doubtful + at_random:
        return list(range(count)), []
    drawn = np.random.default_rng(SEED).choice(np.arange(doubtful, count), at_random, replace=False)
    return list(range(doubtful)), sorted(drawn.tolist())


def shots_of(labels: Labels, places: Mapping[int, bool], scores: Scores | None) -> list[Shot]:
    """The labels at some places, in their order; the value of a place tells whether it was drawn at random."""
    shots = {}
    for place, image in enumerate(labels):
        if place in places:
            kinds = np.full(len(image.found), NOT_JUDGED, np.int8)
            if scores is not None:
                kinds = scores.kinds(image.id, image.found)
            shots[place] = Shot(image, places[place], kinds)
    return [shots[place] for place in places]


def thumbnails(shots: Sequence[Shot], here: Mapping[str, Path], room: int) -> tuple[list[str], list[str]]:
    """A picture for each, one at a time, all within `room` bytes of text; and what is wrong with those that have none.

    `here` is where images lie now, by id, if not where they were labelled.
    """
    each = min(room, ROOM) // max(len(shots), 1) * 3 // 4 - 64  # of a JPEG, which is longer as text
    pictures, wrong = [], []
    with Steps("thumbnails", len(shots)) as steps:
        for shot in shots:
            path = here.get(shot.image.id, shot.image.path)
            try:
                pictures.append(data_uri(thumbnail(read_image(path), min(each, LARGEST))))
            except ImageError as error:
                pictures.append("")
                wrong.append(str(error))
            steps.advance()
    return pictures, wrong


def figure(shot: Shot, picture: str, truth: Truth | None, number: int) -> str:
    """The figure of one image: a button with the picture and its boxes, and a caption."""
    image = shot.image
    found, classes = image.found, image.found.names
    tags = ", ".join(image.tags) or "no tag"
    doubt = f"doubt {image.doubt:.2f}"
    numbers = " ".join(str(classes.index(tag)) for tag in image.tags if tag in classes)
    by_class = truth is None  # else colours tell right from wrong
    rects = [*_true_rects(shot, truth), *_rects(shot, by_class)]
    keys = [
        f"{_key(classes.index(tag))}{escape(tag)}" if by_class and tag in classes else escape(tag) for tag in image.tags
    ]
    photo = f'<img src="{picture}" alt="" loading="lazy" decoding="async">' if picture else '<span class="gone"></span>'
    rest = len(found) - MOST_BOXES
    notes = [
        '<span class="note">drawn at random</span>' if shot.at_random else "",
        '<span class="note">the picture cannot be read</span>' if not picture else "",
        f'<span class="note">and {rest} less sure boxes</span>' if rest > 0 else "",
    ]
    return (
        f'<figure class="shot" data-classes="{numbers}" id="image-{number}">'
        f'<button type="button" aria-label="{escape(f"{image.id}: {tags}; {doubt}. Open large")}">'
        f'<span class="photo">{photo}'
        f'<svg viewBox="0 0 {found.width} {found.height}" aria-hidden="true">{"".join(rects)}</svg></span></button>'
        f'<figcaption><b>{escape(image.id)}</b><span class="doubt">{doubt}</span>'
        f'<span class="tags">{", ".join(keys) or "no tag"}</span>{"".join(notes)}</figcaption></figure>'
    )


def _key(number: int) -> str:
    """A square in the colour of a class."""
    return f'<svg class="key" viewBox="0 0 10 10" aria-hidden="true"><path d="M0 0h10v10H0z" fill="{_hex(number)}"/></svg> '


def _hex(number: int) -> str:
    return "#{:02x}{:02x}{:02x}".format(*class_colour(number))


def _rects(shot: Shot, by_class: bool) -> list[str]:
    """The label's boxes, the best on top."""
    found, lines = shot.image.found, []
    shown = np.argsort(-found.scores, kind="stable")[:MOST_BOXES]
    names = found.class_names()
    for k in reversed(shown.tolist()):
        verdict, words = verdict_of(int(shot.kinds[k]))
        best = " best" if shot.image.best[k] else ""
        colour = f' stroke="{_hex(int(found.classes[k]))}"' if by_class else ""
        title = f"{names[k]} {found.scores[k]:.2f}" + (f", {words}" if words else "")
        lines.append(
            f'<rect class="box {verdict}{best}" data-score="{found.scores[k]:.6g}" data-class="{found.classes[k]}" '
            f'data-verdict="{escape(words)}"{colour} {_place(found.boxes[k])}><title>{escape(title)}</title></rect>'
        )
    return lines


def _true_rects(shot: Shot, truth: Truth | None) -> list[str]:
    """The true objects, first: under the boxes."""
    if truth is None or shot.image.id not in truth.images:
        return []
    true, classes = truth.images[shot.image.id], shot.image.found.names
    lines = []
    for box, k in zip(true.boxes, true.classes, strict=True):
        name = truth.classes[k]
        number = classes.index(name) if name in classes else -1
        lines.append(
            f'<rect class="true" data-class="{number}" {_place(box)}><title>true {escape(name)}</title></rect>'
        )
    return lines


def verdict_of(kind: int) -> tuple[str, str]:
    """How a box is drawn, and what is wrong with it in words."""
    if kind == NOT_JUDGED:
        return "plain", ""
    if kind == NOT_COUNTED:
        return "plain", "on a difficult object, not counted"
    if kind == CORRECT:
        return "right", "right"
    return "wrong", f"wrong: {KINDS[kind].replace('wrong', 'another')}"


def _place(box: NDArray[np.floating]) -> str:
    x1, y1, x2, y2 = (float(value) for value in box)
    return f'x="{x1:.1f}" y="{y1:.1f}" width="{max(x2 - x1, 0):.1f}" height="{max(y2 - y1, 0):.1f}"'


def gallery_body(figures: Sequence[str], classes: Sequence[str], total: int, at_random: int, truth: bool) -> str:
    """The controls, the legend and the figures."""
    options = "".join(f'<option value="{k}">{escape(name)}</option>' for k, name in enumerate(classes))
    held = f"All {total:,} labelled images, the most doubtful first."
    if at_random:
        held = (
            f"The {len(figures) - at_random:,} most doubtful of {total:,} labelled images, the most doubtful first, then "
            f"{at_random:,} of the others, drawn at random."
        )
    legend = '<li class="plain">a box, in the colour of its tag</li>'
    if truth:
        legend = (
            '<li class="right">right</li><li class="wrong">wrong</li><li class="true">true object</li>'
            '<li class="plain">not judged</li>'
        )
    switch = '<label class="check"><input type="checkbox" id="truth" checked> true objects</label>' if truth else ""
    return (
        f"<p>{held} Doubt is 1 less the confidence of an image's least sure tag. "
        "Click an image, or press Enter on it, to see it large; the arrow keys move on.</p>\n"
        '<form class="controls" id="controls">'
        '<label class="range">Confidence of at least <output id="least" for="threshold">0.00</output>'
        '<input type="range" id="threshold" min="0" max="1" step="0.01" value="0" autocomplete="off"></label>'
        f'<label>Class <select id="class" autocomplete="off"><option value="">all</option>{options}</select></label>{switch}'
        '<p class="count" id="count" role="status" aria-live="polite"></p></form>'
        f'<ul class="keys legend">{legend}<li class="solid">best of its tag</li><li class="dashed">another object</li></ul>\n'
        f'<div class="gallery" id="gallery">\n{chr(10).join(figures)}\n</div>\n'
        '<dialog id="large" aria-labelledby="large-title"><div class="bar-top"><h3 id="large-title"></h3>'
        '<span id="large-place"></span><button type="button" id="back" aria-label="The image before">←</button>'
        '<button type="button" id="next" autofocus aria-label="The next image">→</button>'
        '<button type="button" id="close" aria-label="Close">✕</button></div>'
        '<div class="stage" id="stage"></div><ol id="large-boxes"></ol></dialog>\n'
    )
