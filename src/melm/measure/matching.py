"""Which detections are right: each one against the objects of its class in its image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numba
import numpy as np
from numpy.typing import NDArray

from melm.measure.gather import Gathered

Matching = Literal["voc", "ilsvrc"]
RIGHT, WRONG, IGNORED = 1, 0, -1


@dataclass(frozen=True)
class Matches:
    """What became of each of the D detections, in the order of `Gathered`."""

    verdict: NDArray[np.int8]  # (D,) RIGHT, WRONG, or IGNORED because it found an ignored object
    nearest: NDArray[np.intp]  # (D,) the object of its class it overlaps most, -1 where it overlaps none
    overlap: NDArray[np.float64]  # (D,) with that object


def match(gathered: Gathered, matching: Matching = "voc", min_overlap: float = 0.5) -> Matches:
    """A verdict on every detection, taken from the highest score down.

    `voc`, as the PASCAL VOC devkit: a detection stands for the object of its class that it overlaps most, whether or not another
    detection found that object before (of equal overlaps, the object annotated first). If they overlap by at least
    `min_overlap`, it is right when it is the first to find the object, wrong when it is not, and ignored when the object is
    difficult or a crowd. It is wrong if they overlap by less.

    `ilsvrc`, as the ILSVRC 2013 detection challenge: each object has its own threshold, the smaller of `min_overlap` and
    w h / ((w + 10) (h + 10)), which lets a small box be 5 pixels off on each side. A detection takes the object it overlaps most
    among those that are still free and whose threshold it reaches; without one it is wrong. The challenge has no difficult
    objects; where the data have, they stay free, and a detection that takes one is ignored.

    Boxes end where their last pixel ends, so overlaps are those that the devkits compute from inclusive corners with + 1.
    """
    if not 0 < min_overlap <= 1:
        raise ValueError(f"min_overlap is {min_overlap}; a number above 0 and up to 1 was expected")
    cell = gathered.image * len(gathered.classes) + gathered.detected_class
    arrays = (gathered.boxes, cell, gathered.objects, gathered.object_range(), gathered.ignored)
    best, overlap = _most_overlapped(*arrays[:-1])
    if matching == "ilsvrc":
        return Matches(_ilsvrc(*arrays, min_overlap), best, overlap)
    return Matches(_voc(best, overlap, gathered.ignored, min_overlap), best, overlap)


@numba.njit(cache=True, inline="always")
def _iou(a, b):  # type: ignore[no-untyped-def]
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    inter = width * height
    return inter / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inter)


@numba.njit(cache=True)
def _most_overlapped(boxes, cell, objects, start):  # type: ignore[no-untyped-def]
    """For each box the object of its cell that it overlaps most, the first of equals, and by how much."""
    best = np.full(len(boxes), -1, np.intp)
    overlap = np.zeros(len(boxes))
    for d in range(len(boxes)):
        for o in range(start[cell[d]], start[cell[d] + 1]):
            this = _iou(boxes[d], objects[o])
            if this > overlap[d]:
                best[d], overlap[d] = o, this
    return best, overlap


@numba.njit(cache=True)
def _voc(best, overlap, ignored, min_overlap):  # type: ignore[no-untyped-def]
    verdict = np.zeros(len(best), np.int8)
    found = np.zeros(len(ignored), np.bool_)
    for d in range(len(best)):
        o = best[d]
        if overlap[d] >= min_overlap:
            if ignored[o]:
                verdict[d] = IGNORED
            elif not found[o]:
                verdict[d] = RIGHT
                found[o] = True
    return verdict


@numba.njit(cache=True)
def _ilsvrc(boxes, cell, objects, start, ignored, min_overlap):  # type: ignore[no-untyped-def]
    verdict = np.zeros(len(boxes), np.int8)
    found = np.zeros(len(ignored), np.bool_)
    for d in range(len(boxes)):
        taken, most = -1, 0.0
        for o in range(start[cell[d]], start[cell[d] + 1]):
            width, height = objects[o, 2] - objects[o, 0], objects[o, 3] - objects[o, 1]
            this = _iou(boxes[d], objects[o])
            enough = min(min_overlap, width * height / ((width + 10) * (height + 10)))
            if found[o] or this < enough:
                continue
            if this > most:
                taken, most = o, this
        if taken >= 0 and ignored[taken]:
            verdict[d] = IGNORED
        elif taken >= 0:
            verdict[d] = RIGHT
            found[taken] = True
    return verdict
