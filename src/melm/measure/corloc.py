"""CorLoc: in how many of a class's images the best box is on an object of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from melm.boxes import iou
from melm.detect.detections import Detections
from melm.errors import MelmError, did_you_mean
from melm.measure.gather import first_of_each, gather
from melm.measure.matching import match
from melm.measure.truth import Truth


@dataclass(frozen=True)
class CorLoc:
    """Correct localization, pair by pair of image and tag, and what follows."""

    classes: tuple[str, ...]
    image_ids: tuple[str, ...]  # of the truth
    pair_image: NDArray[np.intp]  # (P,) into `image_ids`
    pair_class: NDArray[np.intp]  # (P,) into `classes`
    overlap: NDArray[np.float64]  # (P,) of the best box with the object it overlaps most; 0 where there is no box
    hit: NDArray[np.bool_]  # (P,)
    without_box: tuple[
        tuple[str, str], ...
    ]  # (image id, tag): no true box to measure against, left out of all the above

    def images(self) -> dict[str, int]:
        """Tagged images of each class."""
        return dict(zip(self.classes, np.bincount(self.pair_class, minlength=len(self.classes)).tolist(), strict=True))

    def hits(self) -> dict[str, int]:
        """Images of each class in which its best box is right."""
        counts = np.bincount(self.pair_class[self.hit], minlength=len(self.classes))
        return dict(zip(self.classes, counts.tolist(), strict=True))

    def per_class(self) -> dict[str, float]:
        """Share of the tagged images that are hits; nan for a class that is no image's tag."""
        hits = self.hits()
        return {name: hits[name] / n if n else float("nan") for name, n in self.images().items()}

    @property
    def mean(self) -> float:
        """The mean over the classes that are some image's tag."""
        return float(np.nanmean(list(self.per_class().values())))

    @property
    def absent(self) -> tuple[str, ...]:
        """Classes that are no image's tag, left out of the mean."""
        return tuple(name for name, n in self.images().items() if not n)


def corloc(
    truth: Truth, detections: Mapping[str, Detections], tags: Mapping[str, Sequence[str]], min_overlap: float = 0.5
) -> CorLoc:
    """CorLoc of the best box of each tag. It is meant for the images that were learned from, whose tags are given by image id.

    A hit is a box that overlaps any object of its class by at least `min_overlap`; difficult objects and crowds are objects.
    The best box is that of the highest score, of equal scores the one with the smaller x1, y1, x2, y2. A tag without a
    detection is a miss.
    """
    column = {name: k for k, name in enumerate(truth.classes)}
    number = {id: i for i, id in enumerate(truth.images)}
    gathered = gather(truth, detections)
    best = first_of_each(gathered)
    best_overlap = np.zeros((len(number), len(column)))
    overlaps = match(gathered, "voc", min_overlap).overlap
    best_overlap[gathered.image[best], gathered.detected_class[best]] = overlaps[best]
    has_object = np.zeros(best_overlap.shape, bool)
    has_object[gathered.object_image, gathered.object_class] = True
    pairs, without_box = [], []
    for id, names in tags.items():
        if id not in number:
            raise MelmError(
                f"tags of image {id!r}, which has no ground truth.{did_you_mean(id, number)} "
                "Measure on images whose boxes are known."
            )
        for name in dict.fromkeys(names):  # each once
            if name not in column:
                raise MelmError(
                    f"image {id!r}: the tag {name!r} is no class of the ground truth."
                    f"{did_you_mean(name, column)} Its classes: {', '.join(column)}."
                )
            if has_object[number[id], column[name]]:
                pairs.append((number[id], column[name]))
            else:
                without_box.append((id, name))
    if not pairs:
        raise MelmError("no tag to measure: no image has both a tag and a true box of that class")
    image, classes = np.array(pairs, np.intp).T
    overlap = best_overlap[image, classes]
    return CorLoc(truth.classes, tuple(number), image, classes, overlap, overlap >= min_overlap, tuple(without_box))


def chance_of(
    truth: Truth,
    tags: Mapping[str, Sequence[str]],
    boxes_of: Callable[[str], NDArray[np.floating] | None],
    min_overlap: float = 0.5,
) -> dict[str, float]:
    """What CorLoc to expect, class by class, of one box drawn at random from an image's boxes for each of its tags.

    Images for which `boxes_of(image id)` gives None are left out. nan for a class that is no image's tag.
    """
    shares: dict[str, list[float]] = {name: [] for name in truth.classes}
    for id, true in truth.images.items():
        boxes = boxes_of(id)
        if boxes is None:
            continue
        for name in dict.fromkeys(tags.get(id, ())):
            objects = true.boxes[true.classes == truth.classes.index(name)]
            if len(objects):
                hits = iou(boxes, objects).max(axis=1) >= min_overlap if len(boxes) else np.zeros(1)
                shares[name].append(float(hits.mean()))
    return {name: float(np.mean(of_images)) if of_images else float("nan") for name, of_images in shares.items()}
