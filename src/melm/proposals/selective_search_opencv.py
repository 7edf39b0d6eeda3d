"""Selective search (Uijlings et al., 2013) by OpenCV, in its fast and its quality mode."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray


def selective_search_opencv(image: NDArray[np.uint8], quality: bool = False) -> NDArray[np.float64]:
    """(N, 4) boxes of an RGB image (H, W, 3), sorted by coordinates.

    The order in which OpenCV returns them is drawn from the C library's random numbers; sorting takes that out.
    """
    search = cv2.ximgproc.segmentation.createSelectiveSearchSegmentation()
    search.setBaseImage(cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    if quality:
        search.switchToSelectiveSearchQuality()
    else:
        search.switchToSelectiveSearchFast()
    rectangles = np.asarray(search.process(), dtype=np.float64).reshape(-1, 4)
    rectangles[:, 2:] += rectangles[:, :2]  # x, y, width, height -> corners
    return np.unique(rectangles, axis=0)
