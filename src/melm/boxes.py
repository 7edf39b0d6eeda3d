"""Boxes are (N, 4) arrays of pixel corners (x1, y1, x2, y2): x2 and y2 are where the box ends, so its width is x2 - x1."""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
from numpy.typing import NDArray

Boxes = NDArray[np.floating]
ALIKE_IOU = 0.7  # overlap from which two boxes say the same


def area(boxes: Boxes) -> NDArray[np.floating]:
    """(N,) areas; a box that is inside out has none."""
    return np.clip(boxes[:, 2] - boxes[:, 0], 0, None) * np.clip(boxes[:, 3] - boxes[:, 1], 0, None)


def iou(a: Boxes, b: Boxes) -> NDArray[np.float64]:
    """(N, M) intersection over union; 0 where both boxes are empty."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    width = np.minimum(a[:, None, 2], b[None, :, 2]) - np.maximum(a[:, None, 0], b[None, :, 0])
    height = np.minimum(a[:, None, 3], b[None, :, 3]) - np.maximum(a[:, None, 1], b[None, :, 1])
    inter = np.clip(width, 0, None) * np.clip(height, 0, None)  # (N, M)
    union = area(a)[:, None] + area(b)[None, :] - inter
    result: NDArray[np.float64] = np.divide(inter, union, out=np.zeros_like(inter), where=union > 0)
    return result


def clip(boxes: NDArray[np.float64], width: float, height: float) -> NDArray[np.float64]:
    """The part of each box that lies in an image of this size."""
    limit = np.array([width, height, width, height], dtype=np.float64)
    return np.clip(boxes, 0, limit)


def rotate_exif(boxes: NDArray[np.float64], orientation: int, width: float, height: float) -> NDArray[np.float64]:
    """Boxes drawn on the stored pixels (`width` x `height`), moved to the picture as EXIF `orientation` shows it."""
    x1, y1, x2, y2 = boxes.T
    moved = {
        1: (x1, y1, x2, y2),
        2: (width - x2, y1, width - x1, y2),
        3: (width - x2, height - y2, width - x1, height - y1),
        4: (x1, height - y2, x2, height - y1),
        5: (y1, x1, y2, x2),
        6: (height - y2, x1, height - y1, x2),
        7: (height - y2, width - x2, height - y1, width - x1),
        8: (y1, width - x2, y2, width - x1),
    }[orientation]
    return np.stack(moved, axis=1)


@numba.njit(cache=True, nogil=True, inline="always")
def _overlap(boxes, i, j):  # type: ignore[no-untyped-def]
    """The areas that boxes i and j share and that they cover together."""
    width = min(boxes[i, 2], boxes[j, 2]) - max(boxes[i, 0], boxes[j, 0])
    height = min(boxes[i, 3], boxes[j, 3]) - max(boxes[i, 1], boxes[j, 1])
    shared = width * height if width > 0 and height > 0 else 0.0
    area_i = (boxes[i, 2] - boxes[i, 0]) * (boxes[i, 3] - boxes[i, 1])
    area_j = (boxes[j, 2] - boxes[j, 0]) * (boxes[j, 3] - boxes[j, 1])
    return shared, area_i + area_j - shared


@numba.njit(cache=True, nogil=True)
def _suppress(boxes, order, threshold):  # type: ignore[no-untyped-def]
    """Greedy suppression of `boxes` taken in `order`: True where a box is kept."""
    kept = np.zeros(len(boxes), np.bool_)
    gone = np.zeros(len(boxes), np.bool_)
    for a in range(len(order)):
        i = order[a]
        if gone[i]:
            continue
        kept[i] = True
        for b in range(a + 1, len(order)):
            j = order[b]
            if not gone[j]:
                shared, together = _overlap(boxes, i, j)
                gone[j] = shared > threshold * together
    return kept


@numba.njit(cache=True, nogil=True)
def _vote(boxes, scores, rows, overlap):  # type: ignore[no-untyped-def]
    """(len(rows), 4) the mean of the boxes that overlap each of `rows`, weighted by score; itself where no weight is left."""
    result = np.empty((len(rows), 4))
    for a in range(len(rows)):
        i = rows[a]
        total, mean = 0.0, np.zeros(4)
        for j in range(len(boxes)):
            shared, together = _overlap(boxes, i, j)
            if shared > 0 and shared >= overlap * together:
                total += scores[j]
                mean += scores[j] * boxes[j]
        result[a] = mean / total if total > 0 else boxes[i]
    return result


@numba.njit(cache=True, nogil=True)
def _around(boxes, scores, overlap):  # type: ignore[no-untyped-def]
    """(N, K) for each box the scores of all that overlap it so much, its own too; added up in the same order on any machine."""
    result = scores.copy()
    for i in range(len(boxes)):
        for j in range(i + 1, len(boxes)):
            shared, together = _overlap(boxes, i, j)
            if shared > 0 and shared >= overlap * together:
                result[i] += scores[j]
                result[j] += scores[i]
    return result


def ranked(boxes: Boxes, scores: NDArray[np.floating]) -> NDArray[np.intp]:
    """Indices from the best score to the worst; equal scores by coordinates, so that the order of the input does not matter."""
    return np.lexsort((boxes[:, 3], boxes[:, 2], boxes[:, 1], boxes[:, 0], -scores))


def nms(boxes: Boxes, scores: NDArray[np.floating], threshold: float) -> NDArray[np.intp]:
    """Non-maximum suppression: indices of the boxes that no better kept one overlaps by more than `threshold`, best first."""
    order = ranked(boxes, scores)
    kept: NDArray[np.bool_] = _suppress(boxes.astype(np.float64), order, threshold)
    return order[kept[order]]


def voted(boxes: Boxes, scores: NDArray[np.floating], rows: NDArray[np.intp], overlap: float) -> NDArray[np.floating]:
    """Box voting: each of the boxes in `rows` as the mean of all that overlap it by at least `overlap`, weighted by score."""
    result: NDArray[np.float64] = _vote(boxes.astype(np.float64), scores.astype(np.float64), rows, overlap)
    return result.astype(boxes.dtype)


def supported(boxes: Boxes, scores: NDArray[np.float32], weight: float) -> NDArray[np.float32]:
    """Scores (N, K) of boxes, each times the `weight` power of how much of its class's score lies on boxes like it: one that many
    moved to is surer than one that is alone."""
    if not weight:
        return scores
    exact = scores.astype(np.float64)
    around = _around(boxes.astype(np.float64), exact, ALIKE_IOU)
    share = np.minimum(around / np.maximum(exact.sum(axis=0), 1e-300), 1)
    result: NDArray[np.float32] = (exact * share**weight).astype(np.float32)
    return result


def agreed(
    scores: Sequence[NDArray[np.float32]], places: Sequence[NDArray[np.float32]]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What several say of the same N boxes: the geometric mean of their scores (N, K), for which it does not matter that one is
    surer of everything than another, and the mean of the places (N, 4) where they put them."""
    logs = [np.log(np.maximum(of_one, 1e-30)) for of_one in scores]
    mean = np.exp(np.stack(logs).mean(axis=0, dtype=np.float64))
    return mean.astype(np.float32), np.stack(places).mean(axis=0, dtype=np.float64).astype(np.float32)
