"""A data set's objects and all that was detected in it, side by side as flat arrays: what the measures work on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from melm.detect.detections import Detections
from melm.errors import MelmError, did_you_mean
from melm.measure.truth import Truth


@dataclass(frozen=True)
class Gathered:
    """O objects and D detections of the images of a `Truth`, both with numbers into its classes and its images.

    Detections are in order of rank: by class, then from the highest score down; of equal scores the image that comes first in
    the truth goes first, and within an image the box with the smaller x1, y1, x2, y2. So a result never depends on the order
    in which detections were written down. Objects are by image and class, as annotated within.
    """

    classes: tuple[str, ...]
    image_ids: tuple[str, ...]
    objects: NDArray[np.float64]  # (O, 4)
    object_image: NDArray[np.intp]  # (O,)
    object_class: NDArray[np.intp]  # (O,)
    ignored: NDArray[np.bool_]  # (O,) difficult or a crowd: neither right nor wrong
    crowd: NDArray[np.bool_]  # (O,)
    boxes: NDArray[np.float64]  # (D, 4)
    scores: NDArray[np.float64]  # (D,)
    image: NDArray[np.intp]  # (D,)
    detected_class: NDArray[np.intp]  # (D,)

    def object_range(self) -> NDArray[np.intp]:
        """(I * K + 1,): the objects of class k in image i are those from number i * K + k up to the next."""
        cells = len(self.image_ids) * len(self.classes)
        return np.searchsorted(self.object_image * len(self.classes) + self.object_class, np.arange(cells + 1))

    def class_range(self) -> NDArray[np.intp]:
        """(K + 1,): the detections of class k are those from number k up to the next."""
        return np.searchsorted(self.detected_class, np.arange(len(self.classes) + 1))

    def object_counts(self) -> NDArray[np.intp]:
        """(K,) objects that count: neither difficult nor crowds."""
        return np.bincount(self.object_class[~self.ignored], minlength=len(self.classes))


def gather(truth: Truth, detections: Mapping[str, Detections]) -> Gathered:
    """Objects and detections of the truth's images. An image without an entry in `detections` has none.

    Classes are matched by name. A detection in an image or of a class that the truth does not have is an error.
    """
    number = {id: i for i, id in enumerate(truth.images)}
    column = {name: k for k, name in enumerate(truth.classes)}
    strange = next((id for id in detections if id not in number), None)
    if strange is not None:
        raise MelmError(
            f"detections of image {strange!r}, which has no ground truth.{did_you_mean(strange, number)} "
            f"Measure on the images that were detected in; the ground truth has {len(number):,} of them."
        )
    columns: dict[tuple[str, ...], NDArray[np.intp]] = {}  # of each set of names, which is mostly one
    found, classes = [], []
    for id, these in detections.items():
        if these.names not in columns:
            columns[these.names] = np.array([column.get(name, -1) for name in these.names], np.intp)
        if len(these):
            classes.append(columns[these.names][these.classes])
            found.append((number[id], these))
            if classes[-1].min() < 0:
                name = these.names[these.classes[classes[-1].argmin()]]
                listed = ", ".join(truth.classes)
                raise MelmError(
                    f"image {id!r}: a detection of class {name!r}, which the ground truth does not know."
                    f"{did_you_mean(name, truth.classes)} Its classes: {listed}."
                )
    boxes = np.concatenate([np.zeros((0, 4)), *(these.boxes for _, these in found)]).astype(np.float64)
    scores = np.concatenate([np.zeros(0), *(these.scores for _, these in found)]).astype(np.float64)
    image = np.repeat(np.array([i for i, _ in found], np.intp), [len(these) for _, these in found])
    detected = np.concatenate([np.zeros(0, np.intp), *classes])
    broken = np.flatnonzero(~(np.isfinite(boxes).all(axis=1) & np.isfinite(scores)))
    if len(broken):
        one = broken[0]
        raise MelmError(
            f"image {list(number)[image[one]]!r}: a detection with box {boxes[one].tolist()} and score {scores[one]}; "
            "finite numbers were expected"
        )
    rank = np.lexsort((*boxes.T[::-1], image, -scores, detected))
    objects = _objects(truth)
    return Gathered(truth.classes, tuple(number), *objects, boxes[rank], scores[rank], image[rank], detected[rank])


def first_of_each(gathered: Gathered) -> NDArray[np.intp]:
    """The best detection of each class in each image that has one: numbers of detections, in order of rank."""
    cell = gathered.image * len(gathered.classes) + gathered.detected_class
    return np.sort(np.unique(cell, return_index=True)[1])


def _objects(
    truth: Truth,
) -> tuple[NDArray[np.float64], NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_], NDArray[np.bool_]]:
    """Boxes, images and classes of all objects, which are ignored, and which are crowds."""
    true = list(truth.images.values())
    boxes = np.concatenate([np.zeros((0, 4)), *(t.boxes for t in true)])
    image = np.repeat(np.arange(len(true)), [len(t.boxes) for t in true])
    classes = np.concatenate([np.zeros(0, np.intp), *(t.classes for t in true)])
    ignored = np.concatenate([np.zeros(0, bool), *(t.difficult | t.crowd for t in true)])
    crowd = np.concatenate([np.zeros(0, bool), *(t.crowd for t in true)])
    order = np.lexsort((classes, image))  # stable: as annotated within an image's class
    return boxes[order], image[order], classes[order], ignored[order], crowd[order]
