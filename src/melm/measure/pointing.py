"""Pointing localization with class prediction: does the detector point at the object, and does it know what it is?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from melm.detect.detections import Detections
from melm.errors import MelmError
from melm.measure.average_precision import ap_of_ranking
from melm.measure.gather import first_of_each, gather
from melm.measure.truth import Truth

TOLERANCE = 18.0  # pixels, as Oquab et al. (CVPR 2015) have it


@dataclass(frozen=True)
class Pointing:
    """Average precision of points, class by class."""

    classes: tuple[str, ...]
    tolerance: float
    images: NDArray[np.intp]  # (K,) that show the class
    hits: NDArray[np.intp]  # (K,) of them those in which the point is on the class
    ap: NDArray[np.float64]  # (K,) nan for a class that no image shows

    @property
    def mean(self) -> float:
        """mAP: the mean over the classes that some image shows."""
        return float(self.ap[self.images > 0].mean())

    @property
    def absent(self) -> tuple[str, ...]:
        """Classes that no image shows, left out of the mean."""
        return tuple(name for name, count in zip(self.classes, self.images, strict=True) if not count)

    def per_class(self) -> dict[str, float]:
        return dict(zip(self.classes, self.ap.tolist(), strict=True))

    def accuracy(self) -> dict[str, float]:
        """Share of the images of each class in which the point is on it: localization alone, the class given."""
        shares = self.hits / np.maximum(self.images, 1)
        return dict(zip(self.classes, np.where(self.images > 0, shares, np.nan).tolist(), strict=True))


def pointing(
    truth: Truth, detections: Mapping[str, Detections], tolerance: float = TOLERANCE, eleven_points: bool = False
) -> Pointing:
    """Average precision of the centre of the best box of each image and class, ranked by its score.

    It is right in an image that shows the class if it lies in an object of it, or at most `tolerance` pixels beyond the object's
    sides, which are held to be part of it; everywhere else it is wrong. An image shows a class if it has an object of it that is
    neither difficult nor a crowd; in such an image a point on a difficult object or a crowd is right as well. Images that have
    only such objects are left out for that class. To be found are the images that show the class. Average precision is the area
    under the curve, or VOC 2007's with `eleven_points`. Equal scores rank as in `melm.measure.gather`.
    """
    gathered = gather(truth, detections)
    size = len(gathered.image_ids), len(gathered.classes)
    some, shows = np.zeros(size, bool), np.zeros(size, bool)
    some[gathered.object_image, gathered.object_class] = True
    shows[gathered.object_image[~gathered.ignored], gathered.object_class[~gathered.ignored]] = True
    if not shows.any():
        raise MelmError("no object to point at: there are none, or all are difficult or crowds")
    best = first_of_each(gathered)
    image, own = gathered.image[best], gathered.detected_class[best]
    centres = (gathered.boxes[best, :2] + gathered.boxes[best, 2:]) / 2
    on = _on_object(centres, image * size[1] + own, gathered.objects, gathered.object_range(), tolerance)
    counted = shows[image, own] | ~some[image, own]
    right = on & shows[image, own]
    ap, hits = np.zeros(size[1]), np.zeros(size[1], np.intp)
    for k in range(size[1]):
        ranking = right[counted & (own == k)]
        ap[k], hits[k] = ap_of_ranking(ranking, int(shows[:, k].sum()), eleven_points), ranking.sum()
    return Pointing(gathered.classes, tolerance, shows.sum(axis=0), hits, ap)


@numba.njit(cache=True)
def _on_object(points, cell, objects, start, tolerance):  # type: ignore[no-untyped-def]
    """(P,) whether each point is in an object of its cell, or so near."""
    on = np.zeros(len(points), np.bool_)
    for p in range(len(points)):
        x, y = points[p]
        for o in range(start[cell[p]], start[cell[p] + 1]):
            x1, y1, x2, y2 = objects[o]
            if x1 - tolerance <= x <= x2 + tolerance and y1 - tolerance <= y <= y2 + tolerance:
                on[p] = True
    return on
