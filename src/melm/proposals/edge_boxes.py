"""Edge boxes (Zitnick and Dollar, 2014) by OpenCV, on edges computed here.

The structured-edge model of the original is not shipped with any package. What stands in for it was chosen by recall
(docs/proposals.md): colour gradients at a scale of 1.5 pixels, less the mean gradient around them, so that texture does not
count as outline; then thinned across the edge. The algorithm expects as orientation the direction across an edge, in 0 to pi
with y pointing down: its affinity of two edge groups compares it to the line that joins them, turned by pi/2.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

SMOOTHING = 1.5  # pixels, before the gradient
SURROUND = 8.0  # pixels, the neighbourhood whose mean gradient is taken off
TEXTURE = 0.8  # share of that mean
LEAST_AREA = 100  # pixels: the smallest window that slides over the image
STEP = 0.6  # overlap of neighbouring windows: OpenCV's own 0.65 takes twice the time (docs/proposals.md)
STRONG = 99.5  # percentile of edge strength that becomes 1


def edge_boxes(
    image: NDArray[np.uint8], max_boxes: int, least_side: float = 20
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Boxes (N, 4) of an RGB image (H, W, 3) and their scores (N,), best first."""
    if min(image.shape[:2]) < 8:
        return np.zeros((0, 4)), np.zeros(0)
    strength, orientation = edges(image)
    finder = cv2.ximgproc.createEdgeBoxes()  # a new one each time: it keeps state of the last image
    finder.setMaxBoxes(max_boxes)
    finder.setAlpha(STEP)
    finder.setMinBoxArea(max(least_side**2, LEAST_AREA))
    rectangles, scores = finder.getBoundingBoxes(strength, orientation)
    boxes = np.asarray(rectangles, dtype=np.float64).reshape(-1, 4)
    boxes[:, :2] -= 1  # OpenCV's boxes still count pixels from 1, as Matlab does
    boxes[:, 2:] += boxes[:, :2]
    return boxes, np.asarray(scores, dtype=np.float64).reshape(-1)


def edges(image: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Edge strength (H, W) in 0 to 1, thinned, and the direction across the edge (H, W) in 0 to pi."""
    lab = cv2.cvtColor(image.astype(np.float32) / 255, cv2.COLOR_RGB2Lab) / 100
    lab = cv2.GaussianBlur(lab, (0, 0), SMOOTHING)
    dx, dy = cv2.Scharr(lab, -1, 1, 0), cv2.Scharr(lab, -1, 0, 1)
    channel = np.argmax(dx * dx + dy * dy, axis=2)[..., None]  # the colour that changes most
    dx, dy = (np.take_along_axis(d, channel, axis=2)[..., 0] for d in (dx, dy))
    orientation = np.mod(np.arctan2(dy, dx), np.pi).astype(np.float32)
    strength = np.hypot(dx, dy).astype(np.float32)
    strength = np.maximum(strength - TEXTURE * cv2.GaussianBlur(strength, (0, 0), SURROUND), 0)
    strength = np.minimum(strength / max(float(np.percentile(strength, STRONG)), 1e-6), 1)
    return _thin(strength, orientation), orientation


def _thin(strength: NDArray[np.float32], orientation: NDArray[np.float32]) -> NDArray[np.float32]:
    """Edges one pixel wide: only what is strongest across the edge stays."""
    height, width = strength.shape
    y, x = np.mgrid[:height, :width].astype(np.float32)
    dx, dy = np.cos(orientation), np.sin(orientation)
    keep = np.ones(strength.shape, bool)
    for side in (-1, 1):
        beside = cv2.remap(strength, x + side * dx, y + side * dy, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        keep &= strength * 1.0001 >= beside
    return (strength * keep).astype(np.float32)
