"""Detections drawn on their pictures, and many pictures on one sheet."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from melm.boxes import iou, ranked
from melm.detect.detections import Detections
from melm.errors import MelmError, UsageError
from melm.files import write_whole
from melm.show.labels import place_labels

Colour = tuple[int, int, int]
RIGHT, WRONG, TRUE = (46, 204, 64), (235, 40, 40), (255, 220, 0)  # as in the paper's figures
# Twenty colours chosen to be told apart; beyond them, hues as far as possible from those before.
COLOURS = bytes.fromhex(
    "ff3355 33cc55 ffe119 5580ff ff8822 b44ae0 40e8f0 ff50d8 b8f000 ffb4be "
    "00a39b d8b8ff c07838 f4ecc0 ff7a66 96ffc0 a0a020 ffc890 3848e0 b4b4b4"
)


class TrueObjects(Protocol):
    """What `melm.measure.truth.TrueBoxes` has."""

    @property
    def boxes(self) -> NDArray[np.floating]: ...  # (M, 4)

    @property
    def classes(self) -> NDArray[np.intp]: ...  # (M,) numbers into the detections' names


def class_colour(number: int) -> Colour:
    """The colour of a class, always the same."""
    if 3 * number < len(COLOURS):
        red, green, blue = COLOURS[3 * number : 3 * number + 3]
        return red, green, blue
    bright = (1.0, 0.75, 0.5)[number % 3]
    r, g, b = colorsys.hsv_to_rgb(number * 0.618034 % 1, 0.9, bright)
    return round(255 * r), round(255 * g), round(255 * b)


def draw_detections(
    image: NDArray[np.uint8], detections: Detections, min_score: float = 0.3, truth: TrueObjects | None = None
) -> NDArray[np.uint8]:
    """A copy of the (H, W, 3) image with its detections of at least `min_score`, with class and score.

    Colours tell the classes; with `truth`, right ones are green, wrong ones red, and the true objects yellow. A class whose
    name no font at hand can write is labelled by its number (`#3`).
    """
    height, width = image.shape[:2]
    if image.shape != (height, width, 3) or image.dtype != np.uint8:
        raise ValueError(f"an image of {image.shape}, {image.dtype}; (H, W, 3) of uint8 was expected")
    if (detections.width, detections.height) != (width, height):
        raise ValueError(
            f"detections for {detections.width} x {detections.height} pixels on an image of {width} x {height}"
        )
    shown = detections.above(min_score)
    shown = shown.best(len(shown))
    colours = [class_colour(int(k)) for k in shown.classes]
    if truth is not None:
        colours = [RIGHT if right else WRONG for right in _right(shown, truth)]
    picture = Image.fromarray(image)
    draw = ImageDraw.Draw(picture)
    line = max(1, round((width * height) ** 0.5 / 160))
    for box in [] if truth is None else truth.boxes:
        _outline(draw, box, TRUE, line, picture.size)
    for box, colour in reversed(list(zip(shown.boxes, colours, strict=True))):  # the best on top
        _outline(draw, box, colour, line, picture.size)
    labels = place_labels(shown, picture.size)
    for label, colour in reversed(list(zip(labels, colours, strict=True))):
        left, top, right, bottom = label.place
        draw.rectangle((left, top, right - 1, bottom - 1), fill=colour)
        draw.text(label.start, label.text, fill=_readable_on(colour), font=label.font, anchor="ls")
    return np.array(picture)


def save_drawing(
    path: Path,
    image: NDArray[np.uint8],
    detections: Detections,
    min_score: float = 0.3,
    truth: TrueObjects | None = None,
) -> None:
    """`draw_detections` as a JPEG or PNG file, by the name's ending."""
    kinds = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
    if path.suffix.lower() not in kinds:
        raise UsageError(f"{path}: a name that ends in .jpg or .png was expected")
    data = io.BytesIO()
    drawing = draw_detections(image, detections, min_score, truth)
    Image.fromarray(drawing).save(data, kinds[path.suffix.lower()], quality=92)
    try:
        write_whole(path, data.getvalue())
    except OSError as error:
        raise MelmError(f"{path}: cannot be written ({error.strerror})") from None


def save_jpeg(picture: NDArray[np.uint8], path: Path) -> None:
    data = io.BytesIO()
    Image.fromarray(picture).save(data, "JPEG", quality=92, subsampling=0)  # thin lines keep their colours
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data.getvalue())
    except OSError as error:
        raise MelmError(f"{path}: cannot be written ({error.strerror})") from None


def contact_sheet(images: Sequence[NDArray[np.uint8]], columns: int = 4, width: int = 1600) -> NDArray[np.uint8]:
    """Many pictures on one white sheet, `width` pixels wide, in rows from left to right."""
    gap = max(1, width // 200)
    cell = (width - (columns + 1) * gap) // columns if columns > 0 else 0
    if not images or cell < 1:
        raise ValueError(f"{len(images)} pictures in {columns} columns on {width} pixels do not make a sheet")
    rows: list[NDArray[np.uint8]] = []
    for first in range(0, len(images), columns):
        scaled = [_fitted(image, cell, cell) for image in images[first : first + columns]]
        row = np.full((max(len(image) for image in scaled) + gap, width, 3), 255, np.uint8)
        for i, image in enumerate(scaled):
            down = (len(row) - gap - len(image)) // 2
            left = gap + i * (cell + gap) + (cell - image.shape[1]) // 2
            row[down : down + len(image), left : left + image.shape[1]] = image
        rows.append(row)
    return np.concatenate([np.full((gap, width, 3), 255, np.uint8), *rows])


def _fitted(image: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    scale = min(width / image.shape[1], height / image.shape[0])
    size = max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale))
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))


def _right(found: Detections, truth: TrueObjects) -> list[bool]:
    """Best first, each is right if the object of its class that it overlaps most has IoU >= 0.5 and was not found before."""
    taken = np.zeros(len(truth.boxes), bool)
    overlaps = iou(found.boxes, truth.boxes)  # (M, T)
    right = [False] * len(found)
    for i in ranked(found.boxes, found.scores):
        same = np.where(truth.classes == found.classes[i], overlaps[i], -1)
        if len(same) and same.max() >= 0.5 and not taken[same.argmax()]:
            right[i] = taken[same.argmax()] = True
    return right


def _outline(
    draw: ImageDraw.ImageDraw, box: NDArray[np.floating], colour: Colour, line: int, size: tuple[int, int]
) -> None:
    limit = np.array([*size, *size]) - 1
    x1, y1, x2, y2 = np.clip(np.round(box) - [0, 0, 1, 1], 0, limit).astype(int).tolist()
    draw.rectangle((x1, y1, max(x1, x2), max(y1, y2)), outline=colour, width=line)


def _readable_on(colour: Colour) -> Colour:
    return (0, 0, 0) if np.dot(colour, (0.299, 0.587, 0.114)) > 130 else (255, 255, 255)
