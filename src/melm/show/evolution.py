"""Strips of pictures that show a detector learn, as in the paper's first figure and its figure of the evolving cliques."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from melm.boxes import Boxes, iou
from melm.data.images import read_image
from melm.measure.truth import Truth
from melm.measure.watching import Look
from melm.show.drawings import TRUE, Colour, class_colour, save_jpeg
from melm.show.fonts import fitted_text, font_for

LIKELY, LEARNED, DARK, FRAME = (64, 128, 255), (255, 255, 255), (24, 24, 24), (208, 208, 208)
CLIQUES = 12  # drawn at most
GAP = 6  # pixels between panels and around them


def evolution_strip(
    image: NDArray[np.uint8], looks: Sequence[Look], objects: Boxes | None = None, height: int = 220
) -> NDArray[np.uint8]:
    """The (H, W, 3) image, then for each look the likely proposals in blue and the learned box in white, epoch by epoch.

    With the true boxes of the tag, `objects` (M, 4), they are yellow in the first panel, and each look tells its IoU.
    """
    panel = _Panel(image, height)
    looks = _by_epoch(looks)
    true = np.zeros((0, 4)) if objects is None else objects
    first = panel.picture()
    for box in true:
        panel.outline(first, box, TRUE, 2)
    panels = [panel.captioned(first, looks[0].tag)]
    for look in looks:
        picture = panel.picture()
        for box in reversed(look.likely):
            panel.outline(picture, box, LIKELY, 1)
        panel.outline(picture, look.box, LEARNED, 3, DARK)
        overlap = f", IoU {iou(np.array([look.box]), true).max():.2f}" if len(true) else ""
        panels.append(panel.captioned(picture, f"epoch {look.epoch}{overlap}"))
    return _side_by_side(panels)


def clique_strip(image: NDArray[np.uint8], looks: Sequence[Look], height: int = 220) -> NDArray[np.uint8]:
    """For each look the boxes of its cliques on the (H, W, 3) image, in one colour each; the discovered one on top and thick."""
    panel = _Panel(image, height)
    panels = []
    for look in _by_epoch(looks):
        picture = panel.picture()
        for number, clique in reversed(list(enumerate(look.cliques[:CLIQUES]))):
            for box in clique:
                panel.outline(picture, box, class_colour(number), 1 if number else 2)
        panels.append(panel.captioned(picture, f"epoch {look.epoch}"))
    return _side_by_side(panels)


def chosen_epochs(looks: Sequence[Look], most: int = 8) -> list[Look]:
    """At most so many looks at one tag of one image, spread evenly, with the first and the last; an epoch counts once."""
    if most < 2:
        raise ValueError(f"at most {most} looks: the first and the last are two")
    looks = list({look.epoch: look for look in looks}.values())
    looks.sort(key=lambda look: look.epoch)
    if len(looks) <= most:
        return looks
    return [looks[i] for i in np.linspace(0, len(looks) - 1, most).round().astype(int)]


def write_strips(looks: Sequence[Look], folder: Path, truth: Truth | None) -> list[Path]:
    """`evolution-ID-TAG.jpg` and `cliques-ID-TAG.jpg` in the folder for every tag of every image; their paths."""
    paths = []
    for id, of_image in groupby(sorted(looks, key=lambda look: (look.id, look.tag, look.epoch)), lambda look: look.id):
        image: NDArray[np.uint8] | None = None
        for tag, of_tag in groupby(of_image, lambda look: look.tag):
            shown = chosen_epochs(list(of_tag))
            here = truth.files.get(id) if truth else None  # where the data lies now
            image = read_image(here or Path(shown[-1].file)) if image is None else image
            name = file_name(id, tag)
            for path, strip in (
                (folder / f"evolution-{name}.jpg", evolution_strip(image, shown, true_boxes_of(truth, id, tag))),
                (folder / f"cliques-{name}.jpg", clique_strip(image, shown)),
            ):
                save_jpeg(strip, path)
                paths.append(path)
    return paths


def file_name(id: str, tag: str) -> str:
    """A part of a file's name for an image and a tag: another for each pair, and never a path.

    What is no letter, digit, point, dash or underscore becomes an underscore; then, and where a dash in the tag or a length
    would make two pairs alike, a + and a number that stands for the whole pair follow.
    """
    safe = [re.sub(r"[^\w.-]", "_", part).encode()[:90].decode(errors="ignore") for part in (id, tag)]
    name = "-".join(safe)
    if safe == [id, tag] and "-" not in tag:
        return name
    exact = f"{len(id)} {id} {tag}".encode(errors="surrogatepass")
    return f"{name}+{hashlib.blake2b(exact, digest_size=6).hexdigest()}"


class _Panel:
    """The image at the size of a panel: of this height, less if it is very wide; and room for words beside a very tall one."""

    def __init__(self, image: NDArray[np.uint8], height: int) -> None:
        rows, columns = image.shape[:2]
        if image.shape != (rows, columns, 3) or image.dtype != np.uint8 or not image.size:
            raise ValueError(f"an image of {image.shape}, {image.dtype}; (H, W, 3) of uint8 was expected")
        scale = min(height / rows, 2 * height / columns)
        self.size = max(1, round(columns * scale)), max(1, round(rows * scale))
        self.stretch = np.array([self.size[0] / columns, self.size[1] / rows] * 2)
        self.room = max(self.size[0], round(0.75 * height)), self.size[1]
        self.letters = max(9, height // 16)
        self.scaled = Image.fromarray(image).resize(self.size, Image.Resampling.BICUBIC, reducing_gap=3)

    def picture(self) -> Image.Image:
        return self.scaled.copy()

    def outline(
        self,
        picture: Image.Image,
        box: Sequence[float] | NDArray[np.floating],
        colour: Colour,
        line: int,
        around: Colour | None = None,
    ) -> None:
        """The part of a box that lies in the image, in lines edged with `around`; an empty one as a dot, so that it shows."""
        corners = np.asarray(box, np.float64) * self.stretch
        limit = np.array([*self.size, *self.size])
        if not np.isfinite(corners).all() or (corners[:2] > limit[:2]).any() or (corners[2:] < 0).any():
            return
        x1, y1, x2, y2 = np.clip(np.round(corners) - [0, 0, 1, 1], 0, limit - 1).astype(int).tolist()
        x1, y1 = max(0, min(x1, self.size[0] - line)), max(0, min(y1, self.size[1] - line))
        x2, y2 = max(x2, x1 + line - 1), max(y2, y1 + line - 1)
        draw = ImageDraw.Draw(picture)
        most = (min(x2 - x1, y2 - y1) + 2) // 2  # of a line: Pillow draws wider ones beyond the rectangle
        if around is not None:
            draw.rectangle((x1 - 1, y1 - 1, x2 + 1, y2 + 1), outline=around, width=min(line + 2, most + 1))
        draw.rectangle((x1, y1, x2, y2), outline=colour, width=min(line, most))

    def captioned(self, picture: Image.Image, words: str) -> NDArray[np.uint8]:
        """The picture in the middle of its room, in a thin frame, and the words under it."""
        width, height = self.room
        text = " ".join(words.split())
        if font_for(text, self.letters) is None:
            text = ascii(text)[1:-1]  # escapes like \u732b, where no font has the characters
        text, font = fitted_text(text, self.letters, width)
        rise, fall = fitted_text("0", self.letters, width)[1].getmetrics()
        whole = Image.new("RGB", (width + 2, height + rise + fall + 6), "white")
        left = 1 + (width - picture.width) // 2
        draw = ImageDraw.Draw(whole)
        draw.rectangle((left - 1, 0, left + picture.width, height + 1), outline=FRAME)
        whole.paste(picture, (left, 1))
        draw.text((1 + (width - round(font.getlength(text))) // 2, height + 4 + rise), text, DARK, font, anchor="ls")
        return np.asarray(whole)


def _by_epoch(looks: Sequence[Look]) -> list[Look]:
    if not looks:
        raise ValueError("no look, nothing to draw")
    return sorted(looks, key=lambda look: look.epoch)


def _side_by_side(panels: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Panels of one height in a row on white, a little apart."""
    spaced = [np.pad(panel, ((GAP, GAP), (GAP, 0), (0, 0)), constant_values=255) for panel in panels]
    return np.pad(np.concatenate(spaced, axis=1), ((0, 0), (0, GAP), (0, 0)), constant_values=255)


def true_boxes_of(truth: Truth | None, id: str, tag: str) -> Boxes | None:
    """The true boxes of a tag, difficult ones and crowds too, as for CorLoc; None where they are not known."""
    if truth is None or id not in truth.images or tag not in truth.classes:
        return None
    true = truth.images[id]
    objects: Boxes = true.boxes[true.classes == truth.classes.index(tag)]
    return objects
