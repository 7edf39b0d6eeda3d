"""Superpixel straddling: how well a box ends where regions end. A box that cuts many superpixels is no object.

Straddling of a box is 1 less the sum over superpixels of min(area inside, area outside), over the box's area; the mean over
two graph segmentations. From Alexe, Deselaers and Ferrari, "Measuring the objectness of image windows" (2012).
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from melm.proposals.graph_segmentation import segment, sorted_edges

SCALES = (100, 300)  # k of the graph segmentation, and the least size of a superpixel
SIGMA = 0.8


def straddling(image: NDArray[np.uint8], boxes: NDArray[np.floating]) -> NDArray[np.float32]:
    """(N,) in 0 to 1 for boxes (N, 4) in the pixels of an RGB image (H, W, 3)."""
    height, width = image.shape[:2]
    corners = np.round(boxes).astype(np.int64)
    corners[:, 0::2] = corners[:, 0::2].clip(0, width)
    corners[:, 1::2] = corners[:, 1::2].clip(0, height)
    values: list[NDArray[np.float64]] = [
        inside_out(segments, int(segments.max()) + 1, corners) for segments in superpixels(image)
    ]
    return (sum(values, np.zeros(len(boxes))) / len(values)).astype(np.float32)


def superpixels(image: NDArray[np.uint8]) -> list[NDArray[np.int32]]:
    """(H, W) segment numbers, one map per scale."""
    graph = sorted_edges(image, SIGMA)
    return [segment(graph, k, k) for k in SCALES]


@numba.njit(cache=True)
def inside_out(segments, count, boxes):  # type: ignore[no-untyped-def]
    """(N,) straddling on one segmentation. Walks runs of equal segments along rows: several times fewer than pixels."""
    height, width = segments.shape
    area = np.zeros(count, np.int64)
    run_of = np.empty((height, width), np.int32)  # the run each pixel is in
    run_start = np.empty(height * width, np.int32)
    run_segment = np.empty(height * width, np.int32)
    row_end = np.empty(height, np.int64)  # one past the last run of each row
    run = -1
    for y in range(height):
        for x in range(width):
            segment = segments[y, x]
            if x == 0 or segment != segments[y, x - 1]:
                run += 1
                run_start[run] = x
                run_segment[run] = segment
            run_of[y, x] = run
            area[segment] += 1
        row_end[y] = run + 1
    result = np.ones(len(boxes), np.float64)
    inside = np.zeros(count, np.int64)
    met = np.empty(count, np.int64)
    for b in range(len(boxes)):
        x1, y1, x2, y2 = boxes[b]
        if x2 <= x1 or y2 <= y1:
            result[b] = 0.0
            continue
        n = 0
        for y in range(y1, y2):
            run, end = run_of[y, x1], row_end[y]
            while run < end and run_start[run] < x2:
                stop = x2 if run + 1 == end else min(x2, run_start[run + 1])
                segment = run_segment[run]
                if inside[segment] == 0:
                    met[n] = segment
                    n += 1
                inside[segment] += stop - max(x1, run_start[run])
                run += 1
        cut = 0
        for k in range(n):
            segment = met[k]
            cut += min(inside[segment], area[segment] - inside[segment])
            inside[segment] = 0
        result[b] = 1.0 - cut / ((x2 - x1) * (y2 - y1))
    return result
