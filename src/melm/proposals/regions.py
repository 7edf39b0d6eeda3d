"""What selective search knows of regions: size, box, colours, texture, and which of them touch."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numba
import numpy as np
from numpy.typing import NDArray

COLOURS = 25  # bins a channel
ORIENTATIONS = 8
STRENGTHS = 10  # bins of gradient an orientation
TEXTURES = ORIENTATIONS * STRENGTHS


@dataclass(frozen=True, slots=True)
class Regions:
    """R regions of an image and their P pairs of neighbours."""

    sizes: NDArray[np.int32]  # (R,) pixels
    boxes: NDArray[np.int32]  # (R, 4) x1, y1, x2, y2
    colours: NDArray[np.int32]  # (R, 75) pixels of each bin, channel by channel
    textures: NDArray[np.int32]  # (R, 240) likewise
    pairs: NDArray[np.int32]  # (P, 2) regions with a common border, each pair once, the smaller number first


def pixel_bins(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(H, W, 6) for each channel the bin of the colour, then for each channel that of the gradient."""
    dx, dy = cv2.Scharr(image, cv2.CV_16S, 1, 0), cv2.Scharr(image, cv2.CV_16S, 0, 1)
    bins: NDArray[np.uint8] = _bins(image, dx, dy, STRENGTH_OF)
    return bins


def regions_of(labels: NDArray[np.int32], bins: NDArray[np.uint8]) -> Regions:
    """The regions of a segmentation (H, W), each in one piece, from the bins of its pixels."""
    count = int(labels.max()) + 1
    sizes, boxes, colours, textures = _measured(labels, bins, count)
    return Regions(sizes, boxes, colours, textures, _touching(labels, count))


def _strengths() -> NDArray[np.uint8]:
    """The bin of every strength that Scharr's operator gives on 8 bits, 0 to 16 * 255."""
    return (np.arange(16 * 255 + 1) * STRENGTHS // (16 * 255 + 1)).astype(np.uint8)


STRENGTH_OF = _strengths()


@numba.njit(cache=True)
def _bins(image, dx, dy, strength_of):  # type: ignore[no-untyped-def]
    """Bins of pixels, from the gradient of each channel."""
    height, width, channels = image.shape
    bins = np.empty((height, width, 2 * channels), np.uint8)
    for y in range(height):
        for x in range(width):
            for c in range(channels):
                bins[y, x, c] = np.int32(image[y, x, c]) * COLOURS // 256
                right, down = np.int32(dx[y, x, c]), np.int32(dy[y, x, c])
                across, along = abs(right), abs(down)
                # eight directions, each 45 degrees wide: along the axes first, as tan 22.5 is 0.4142
                if along * 10000 < across * 4142:
                    orientation = 0 if right > 0 else 1
                elif across * 10000 < along * 4142:
                    orientation = 2 if down > 0 else 3
                elif right > 0:
                    orientation = 4 if down > 0 else 5
                else:
                    orientation = 6 if down > 0 else 7
                bins[y, x, channels + c] = orientation * STRENGTHS + strength_of[max(across, along)]
    return bins


@numba.njit(cache=True)
def _measured(labels, bins, count):  # type: ignore[no-untyped-def]
    """Sizes, boxes, and histograms of colours and textures."""
    height, width, channels = bins.shape
    channels //= 2
    sizes = np.zeros(count, np.int32)
    boxes = np.empty((count, 4), np.int32)
    colours = np.zeros((count, channels * COLOURS), np.int32)
    textures = np.zeros((count, channels * TEXTURES), np.int32)
    for y in range(height):
        for x in range(width):
            region = labels[y, x]
            if sizes[region] == 0:
                boxes[region] = x, y, x + 1, y + 1
            sizes[region] += 1
            boxes[region, 0] = min(boxes[region, 0], x)
            boxes[region, 2] = max(boxes[region, 2], x + 1)
            boxes[region, 3] = y + 1
            for c in range(channels):
                colours[region, c * COLOURS + bins[y, x, c]] += 1
                textures[region, c * TEXTURES + bins[y, x, channels + c]] += 1
    return sizes, boxes, colours, textures


@numba.njit(cache=True)
def _touching(labels, count):  # type: ignore[no-untyped-def]
    """(P, 2) pairs of regions with pixels side by side or above each other, in the order of reading.

    The graph of such pairs lies in a plane and so has less than three times as many pairs as regions: the table never fills.
    """
    height, width = labels.shape
    room = 16
    while room < 8 * count:
        room *= 2
    table = np.full(room, -1, np.int64)
    pairs = np.empty((max(3 * count, 1), 2), np.int32)
    n = 0
    for y in range(height):
        for x in range(width):
            here = np.int64(labels[y, x])
            for side in range(2):
                if (side == 0 and x + 1 == width) or (side == 1 and y + 1 == height):
                    continue
                there = np.int64(labels[y, x + 1] if side == 0 else labels[y + 1, x])
                if here == there:
                    continue
                key = min(here, there) * count + max(here, there)
                place = ((key * 0x9E3779B1) >> 12) & (room - 1)
                while table[place] != -1 and table[place] != key:
                    place = (place + 1) & (room - 1)
                if table[place] == -1:
                    table[place] = key
                    pairs[n, 0], pairs[n, 1] = min(here, there), max(here, there)
                    n += 1
    return pairs[:n].copy()
