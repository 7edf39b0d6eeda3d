"""What a detector believes of one tag of an image, drawn: its best proposals, its cliques, and where its scores lie."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from melm.boxes import Boxes
from melm.show.drawings import TRUE, Colour, class_colour

LIKELY, BEST, DARK = (64, 128, 255), (255, 255, 255), (24, 24, 24)
SIDE = 480  # pixels of the larger side of a picture
Pixels = NDArray[np.uint8]


def score_map(boxes: Boxes, scores: NDArray[np.floating], width: int, height: int) -> NDArray[np.float64]:
    """(height, width): at each pixel the sum of the scores of the boxes (N, 4) that cover it, as a share of the largest sum."""
    if scores.shape != (len(boxes),):
        raise ValueError(f"scores {scores.shape} for boxes {boxes.shape}; (N,) and (N, 4) were expected")
    corners = np.round(np.clip(boxes, 0, [width, height, width, height])).astype(np.intp)
    # a box adds its score at its first corner and takes it back behind its sides: two running sums fill it in
    edges = np.zeros((height + 1, width + 1))
    x1, y1, x2, y2 = corners.T
    for y, x, sign in ((y1, x1, 1), (y1, x2, -1), (y2, x1, -1), (y2, x2, 1)):
        np.add.at(edges, (y, x), sign * scores.astype(np.float64))
    sums = edges.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
    largest = sums.max(initial=0.0)
    shares: NDArray[np.float64] = np.clip(sums / largest, 0, 1) if largest > 0 else np.zeros_like(sums)
    return shares


def draw_score_map(image: Pixels, boxes: Boxes, scores: NDArray[np.floating], side: int = SIDE) -> Pixels:
    """The (H, W, 3) image in grey, and the score map on it: dark where nothing is believed, bright where most is."""
    small, stretch = _scaled(image, side)
    share = score_map(boxes * stretch, scores, *small.size)
    heat = matplotlib.colormaps["inferno"](share)[..., :3] * 255
    grey = np.asarray(small.convert("L").convert("RGB"), np.float64)
    strength = (0.25 + 0.5 * share)[..., None]
    mixed: Pixels = np.round(grey * (1 - strength) + heat * strength).astype(np.uint8)
    return mixed


def draw_proposals(image: Pixels, boxes: Boxes, objects: Boxes | None = None, side: int = SIDE) -> Pixels:
    """The image with boxes (N, 4), best first: thin and blue, the best one white; true objects (M, 4) in yellow."""
    small, stretch = _scaled(image, side)
    for box in reversed(boxes[1:] * stretch):
        _outline(small, box, LIKELY, 1)
    for box in np.zeros((0, 4)) if objects is None else objects * stretch:
        _outline(small, box, TRUE, 2)
    for box in boxes[:1] * stretch:
        _outline(small, box + np.array([-1, -1, 1, 1]), DARK, 5)
        _outline(small, box, BEST, 3)
    return np.asarray(small)


def draw_cliques(image: Pixels, cliques: Sequence[Boxes], side: int = SIDE) -> Pixels:
    """The image with the boxes of each clique in a colour of its own; the first, the discovered one, thick and on top."""
    small, stretch = _scaled(image, side)
    for number, members in reversed(list(enumerate(cliques))):
        for box in members * stretch:
            _outline(small, box, class_colour(number), 1 if number else 3)
    return np.asarray(small)


def _scaled(image: Pixels, side: int) -> tuple[Image.Image, NDArray[np.float64]]:
    """The image with a larger side of `side` pixels, and what its coordinates are multiplied with."""
    height, width = image.shape[:2]
    if image.shape != (height, width, 3) or image.dtype != np.uint8 or not image.size:
        raise ValueError(f"an image of {image.shape}, {image.dtype}; (H, W, 3) of uint8 was expected")
    scale = side / max(width, height)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    stretch = np.array([size[0] / width, size[1] / height] * 2)
    return Image.fromarray(image).resize(size, Image.Resampling.BICUBIC, reducing_gap=3), stretch


def _outline(picture: Image.Image, box: NDArray[np.floating], colour: Colour, line: int) -> None:
    limit = np.array([*picture.size, *picture.size]) - 1
    x1, y1, x2, y2 = np.clip(np.round(box) - [0, 0, 1, 1], 0, limit).astype(int).tolist()
    ImageDraw.Draw(picture).rectangle((x1, y1, max(x1, x2), max(y1, y2)), outline=colour, width=line)
