"""Where annotated boxes lie in the upright image: shares become pixels, and boxes turn with the picture."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from melm.boxes import rotate_exif
from melm.data.formats.listing import Entry
from melm.data.images import ImageInfo
from melm.data.records import DataError


def placed_boxes(entry: Entry, info: ImageInfo) -> NDArray[np.float64]:
    """(M, 4) boxes of an entry's objects in the pixels of the upright image.

    Some tools draw on the picture as a viewer shows it, some on the pixels as stored. The size they wrote down tells which; where
    it does not (a square image, a turn by 180 degrees, no size), the boxes are taken to be drawn on the upright picture.
    """
    boxes = np.array([o.box for o in entry.objects if o.box is not None], dtype=np.float64).reshape(-1, 4)
    upright = (info.width, info.height)
    if len(boxes) == 0:
        return boxes
    if entry.normalised:
        return boxes * np.array([*upright, *upright], dtype=np.float64)
    if entry.size is None or entry.size == upright:
        return boxes
    if entry.size == info.stored_size:
        return rotate_exif(boxes, info.orientation, *info.stored_size)
    width, height = entry.size
    raise DataError(
        f"{entry.path}: its boxes were drawn on {width} x {height} pixels, the image has {info.width} x {info.height}"
    )
