"""Ground-truth boxes, for measuring only.

This module is the one door to them. Nothing that learns can import it: `measure` comes after `learn` in the order of
the package's folders, and `tests/test_walls.py` holds every file to that order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from melm.data.formats import read
from melm.data.formats.listing import Entry, Source
from melm.data.images import ImageError, ImageInfo, image_info
from melm.data.placing import placed_boxes
from melm.data.records import DataError, Problem


@dataclass(frozen=True, slots=True)
class TrueBoxes:
    """The objects of one image."""

    id: str
    boxes: NDArray[np.float64]  # (M, 4) xyxy, pixels of the upright image
    classes: NDArray[np.intp]  # (M,)
    difficult: NDArray[np.bool_]  # (M,) neither right nor wrong in VOC's measure
    crowd: NDArray[np.bool_]  # (M,) a region of many objects, COCO's iscrowd


@dataclass(frozen=True)
class Truth:
    """The objects of a data set's images. Images whose boxes cannot be placed are not in it; `problems` names them."""

    classes: tuple[str, ...]
    images: dict[str, TrueBoxes]
    problems: tuple[Problem, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)  # by image id
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # upright width and height, by image id
    image_numbers: Mapping[int, str] = field(default_factory=dict)  # COCO's number -> image id, also of one left out
    class_numbers: Mapping[int, str] = field(default_factory=dict)  # COCO's number -> class, also of one left out
    left_out: Mapping[str, Path] = field(default_factory=dict)  # images of the data that are not in `images`, by id

    def only(self, classes: tuple[str, ...]) -> Truth:
        """The objects of some of the classes, in this order."""
        number = np.full(len(self.classes), -1)
        number[[self.classes.index(name) for name in classes]] = np.arange(len(classes))
        images = {}
        for id, true in self.images.items():
            kept = number[true.classes] >= 0
            images[id] = TrueBoxes(
                id, true.boxes[kept], number[true.classes[kept]], true.difficult[kept], true.crowd[kept]
            )
        return replace(self, classes=classes, images=images)


def read_truth(source: Source) -> Truth:
    """The boxes of a data set, placed on its upright images."""
    listing = read(source, boxes=True)
    number = {name: k for k, name in enumerate(listing.classes)}
    problems = [problem for problem in listing.problems if problem.severity == "error"]
    images, files, sizes, left_out = {}, {}, {}, {}
    for entry in listing.entries:
        try:
            info = image_info(entry.path)
            images[entry.id] = _placed(entry, info, number)
            files[entry.id], sizes[entry.id] = entry.path, (info.width, info.height)
        except (DataError, ImageError) as error:
            left_out[entry.id] = entry.path
            problems.append(
                Problem("error", "boxes left out", str(entry.path), str(error).removeprefix(f"{entry.path}: "))
            )
    if not any(len(image.boxes) for image in images.values()):
        raise DataError(f"{source.path}: this data set has no boxes to measure against")
    numbers = listing.image_numbers, listing.class_numbers
    return Truth(listing.classes, images, tuple(problems), files, sizes, *numbers, left_out)


def _placed(entry: Entry, info: ImageInfo, number: dict[str, int]) -> TrueBoxes:
    strange = next((o.name for o in entry.objects if o.name not in number), None)
    if strange is not None:
        raise DataError(f"an object of class {strange!r}, which is not among the data's classes")
    boxed = [o for o in entry.objects if o.box is not None]
    return TrueBoxes(
        entry.id,
        placed_boxes(entry, info),
        np.array([number[o.name] for o in boxed], dtype=np.intp),
        np.array([o.difficult for o in boxed], dtype=bool),
        np.array([o.crowd for o in boxed], dtype=bool),
    )
