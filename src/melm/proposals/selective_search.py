"""Selective search (Uijlings et al., 2013): the boxes of regions, at every scale at which regions hold together.

An image in two colour spaces is cut into regions at three scales each, and the regions are merged to the last by two measures
of likeness: twelve hierarchies, as in OpenCV's fast mode. Scales are finer here, and the second measure is size and fill
without texture: at the same number of boxes that finds more objects (docs/proposals.md).
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from melm.proposals.graph_segmentation import segment, sorted_edges
from melm.proposals.region_merging import merge
from melm.proposals.regions import pixel_bins, regions_of

SPACES = (cv2.COLOR_RGB2HSV, cv2.COLOR_RGB2Lab)
SIGMA = 0.8  # pixels, of smoothing before an image is cut
SCALES = (100, 200, 400)  # k of the graph segmentation
LEAST = 100  # pixels of a region
STRATEGIES = ((1, 1, 1, 1), (0, 0, 1, 1))  # weights of colour, texture, size and fill


def selective_search(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    """(N, 4) boxes of an RGB image (H, W, 3), each once, sorted by coordinates."""
    found = []
    for space in SPACES:
        converted = cv2.cvtColor(np.ascontiguousarray(image), space)
        graph, bins = sorted_edges(converted, SIGMA), pixel_bins(converted)
        for k in SCALES:
            regions = regions_of(segment(graph, k, LEAST), bins)
            found += [regions.boxes, *(merge(regions, weights).boxes for weights in STRATEGIES)]
    boxes = np.concatenate(found).astype(np.float64)
    return np.unique(boxes, axis=0)
