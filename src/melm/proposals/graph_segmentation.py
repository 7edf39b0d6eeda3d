"""Graph segmentation (Felzenszwalb and Huttenlocher, 2004): an image cut into regions of even colour.

Neighbouring pixels are joined from the most alike to the least, where their difference is at most what is found inside either
region, plus k over its size. Differences are counted in whole steps of 1/16384 of a grey level and sorted by their digits, and
the order, which no k changes, is made once for all k. The steps are small because large regions grow by small ones: k over the
size of a region of 100,000 pixels is 0.003 grey levels.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numba
import numpy as np
from numpy.typing import NDArray

STEPS = 1 << 14  # of difference to a grey level
DIGIT = 12  # bits; 256 * sqrt(3) grey levels have less than two digits


@dataclass(frozen=True, slots=True)
class SortedEdges:
    """The pairs of neighbouring pixels of an image, the most alike first."""

    edges: NDArray[
        np.int32
    ]  # (E,) twice the pixel, plus 0 for the pair with the right one and 1 for that with the one below
    differences: NDArray[np.int32]  # (E,) in steps, rising
    height: int
    width: int


def sorted_edges(image: NDArray[np.uint8], sigma: float) -> SortedEdges:
    """The pairs of neighbours of an image (H, W, 3), smoothed by `sigma` pixels, by the distance of their colours."""
    height, width = image.shape[:2]
    smooth = cv2.GaussianBlur(image.astype(np.float32), (0, 0), sigma)
    edges, differences = _sorted(smooth)
    return SortedEdges(edges, differences, height, width)


def segment(graph: SortedEdges, k: float, least: int) -> NDArray[np.int32]:
    """(H, W) region of every pixel, numbered from 0 in the order of reading; none smaller than `least`, but for the image."""
    labels: NDArray[np.int32] = _segment(
        graph.edges, graph.differences, graph.height * graph.width, graph.width, round(k * STEPS), least
    )
    return labels.reshape(graph.height, graph.width)


@numba.njit(cache=True)
def _sorted(smooth):  # type: ignore[no-untyped-def]
    """Edges and their differences, sorted digit by digit; equal ones stay in the order of reading."""
    height, width, channels = smooth.shape
    count = height * (width - 1) + width * (height - 1)
    edges, differences = np.empty(count, np.int32), np.empty(count, np.int32)
    n = 0
    for y in range(height):
        for x in range(width):
            for side in range(2):
                there_y, there_x = y + side, x + 1 - side
                if there_y == height or there_x == width:
                    continue
                total = np.float32(0)
                for c in range(channels):
                    total += (smooth[there_y, there_x, c] - smooth[y, x, c]) ** 2
                edges[n] = 2 * (y * width + x) + side
                differences[n] = np.int32(np.sqrt(total) * np.float32(STEPS))
                n += 1
    for digit in range(2):
        start = np.zeros((1 << DIGIT) + 1, np.int32)
        shift, mask = digit * DIGIT, (1 << DIGIT) - 1
        for i in range(count):
            start[((differences[i] >> shift) & mask) + 1] += 1
        for value in range(1 << DIGIT):
            start[value + 1] += start[value]
        sorted_edges, sorted_differences = np.empty_like(edges), np.empty_like(differences)
        for i in range(count):
            value = (differences[i] >> shift) & mask
            sorted_edges[start[value]], sorted_differences[start[value]] = edges[i], differences[i]
            start[value] += 1
        edges, differences = sorted_edges, sorted_differences
    return edges, differences


@numba.njit(cache=True)
def _root(parent, pixel):  # type: ignore[no-untyped-def]
    """The pixel that stands for the region; the way to it is halved. A root's parent is less than 0: minus the region's size."""
    above = parent[pixel]
    while above >= 0:
        beyond = parent[above]
        if beyond < 0:
            return above
        parent[pixel] = beyond
        pixel = beyond
        above = parent[pixel]
    return pixel


@numba.njit(cache=True)
def _segment(edges, differences, pixels, width, k, least):  # type: ignore[no-untyped-def]
    """(H * W,) regions of the pixels of a graph."""
    parent = np.full(pixels, -1, np.int32)
    limit = np.full(pixels, k, np.int32)  # of a root: the largest difference that still joins
    left = np.empty(len(edges), np.int32)  # edges that joined nothing: borders, and those that came too early
    n = 0
    for i in range(len(edges)):
        one = edges[i] >> 1
        a, b = _root(parent, one), _root(parent, one + (width if edges[i] & 1 else 1))
        if a == b:
            continue
        difference = differences[i]
        if difference <= limit[a] and difference <= limit[b]:
            if parent[b] < parent[a]:
                a, b = b, a
            parent[a] += parent[b]
            parent[b] = a
            limit[a] = difference + k // -parent[a]
        else:
            left[n] = edges[i]
            n += 1
    for i in range(n):
        one = left[i] >> 1
        a, b = _root(parent, one), _root(parent, one + (width if left[i] & 1 else 1))
        if a != b and (-parent[a] < least or -parent[b] < least):
            if parent[b] < parent[a]:
                a, b = b, a
            parent[a] += parent[b]
            parent[b] = a
    labels = np.empty(pixels, np.int32)
    number = np.full(pixels, -1, np.int32)
    count = 0
    for pixel in range(pixels):
        root = _root(parent, pixel)
        if number[root] < 0:
            number[root] = count
            count += 1
        labels[pixel] = number[root]
    return labels
