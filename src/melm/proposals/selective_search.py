"""Selective search (Uijlings et al., 2013)."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from melm.proposals.graph_segmentation import segment, sorted_edges
from melm.proposals.region_merging import merge
from melm.proposals.regions import pixel_bins, regions_of

SIGMA = 0.8
SCALES = (150, 300, 450)
LEAST = 100
SPACES = (cv2.COLOR_RGB2HSV, cv2.COLOR_RGB2Lab)
STRATEGIES = ((1, 1, 1, 1), (0, 1, 1, 1))


def selective_search(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    found = []
    for space in SPACES:
        converted = cv2.cvtColor(image, space)
        graph, bins = sorted_edges(converted, SIGMA), pixel_bins(converted)
        for k in SCALES:
            regions = regions_of(segment(graph, k, LEAST), bins)
            found.append(regions.boxes)
            found += [merge(regions, weights).boxes for weights in STRATEGIES]
    return np.unique(np.concatenate(found), axis=0).astype(np.float64)
