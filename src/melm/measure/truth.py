"""Ground-truth boxes, for measuring only.

This module is the one door to them. Nothing that learns can import it: `measure` comes after `learn` in the order of
the package's folders, and `tests/test_walls.py` holds every file to that order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from melm.data.formats import read
from melm.data.formats.listing import Entry, Source
from melm.data.images import ImageError, image_info
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


def read_truth(source: Source) -> Truth:
    """The boxes of a data set, placed on its upright images."""
    listing = read(source, boxes=True)
    number = {name: k for k, name in enumerate(listing.classes)}
    problems = [problem for problem in listing.problems if problem.severity == "error"]
    images = {}
    for entry in listing.entries:
        try:
            images[entry.id] = _placed(entry, number)
        except (DataError, ImageError) as error:
            problems.append(
                Problem("error", "boxes left out", str(entry.path), str(error).removeprefix(f"{entry.path}: "))
            )
    if not any(len(image.boxes) for image in images.values()):
        raise DataError(f"{source.path}: this data set has no boxes to measure against")
    return Truth(listing.classes, images, tuple(problems))


def _placed(entry: Entry, number: dict[str, int]) -> TrueBoxes:
    strange = next((o.name for o in entry.objects if o.name not in number), None)
    if strange is not None:
        raise DataError(f"an object of class {strange!r}, which is not among the data's classes")
    boxed = [o for o in entry.objects if o.box is not None]
    return TrueBoxes(
        entry.id,
        placed_boxes(entry, image_info(entry.path)),
        np.array([number[o.name] for o in boxed], dtype=np.intp),
        np.array([o.difficult for o in boxed], dtype=bool),
        np.array([o.crowd for o in boxed], dtype=bool),
    )
