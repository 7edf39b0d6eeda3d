"""Labels of boxes: where they go, so that each is inside the picture and, if there is room, none hides another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from PIL import ImageFont

from melm.detect.detections import Detections
from melm.show.fonts import fitted_text, font_for

Place = tuple[int, int, int, int]  # left, top, right, bottom


@dataclass(frozen=True, slots=True)
class Label:
    """Words and their place."""

    text: str
    font: ImageFont.FreeTypeFont
    place: Place
    start: tuple[int, int]  # where the base line begins


def place_labels(detections: Detections, size: tuple[int, int]) -> list[Label]:
    """A label with class and score for each detection on a picture of (width, height); the first ones choose first."""
    pixels = min(max(10, round((size[0] * size[1]) ** 0.5 / 30)), max(4, size[1] // 3))
    labels: list[Label] = []
    for box, score, number in zip(detections.boxes, detections.scores, detections.classes, strict=True):
        name = " ".join(detections.names[number].split())
        if font_for(name, pixels) is None:
            name = f"#{number}"
        text, font = fitted_text(f"{name} {score:.2f}", pixels, size[0] - 2 * max(1, pixels // 6))
        rise, fall = font.getmetrics()
        pad = max(1, pixels // 6)
        width, height = min(size[0], round(font.getlength(text)) + 2 * pad), min(size[1], rise + fall)
        x1, y1, x2, y2 = (round(float(v)) for v in box)
        tried = [_inside(*corner, width, height, size) for corner in _corners(x1, y1, x2, y2, width, height)]
        place = next((p for p in tried if not any(_meet(p, other.place) for other in labels)), tried[0])
        labels.append(Label(text, font, place, (place[0] + pad, place[1] + rise)))
    return labels


def _corners(x1: int, y1: int, x2: int, y2: int, width: int, height: int) -> Iterator[tuple[int, int]]:
    """Left and top of a label: above the box, in its corners, below it."""
    above = y1 - height
    if above >= 0:
        yield x1, above
    yield x1, y1
    if above >= 0:
        yield x2 - width, above
    yield x2 - width, y1
    yield x1, y2 - height
    yield x2 - width, y2 - height
    yield x1, y2


def _inside(left: int, top: int, width: int, height: int, size: tuple[int, int]) -> Place:
    left = max(0, min(left, size[0] - width))
    top = max(0, min(top, size[1] - height))
    return left, top, left + width, top + height


def _meet(a: Place, b: Place) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
