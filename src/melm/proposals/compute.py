"""The proposals of one image: a method's boxes, cleaned, with their prior."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

from melm import boxes as box
from melm.proposals.edge_boxes import edge_boxes
from melm.proposals.record import Proposals, ProposalSettings
from melm.proposals.selective_search import selective_search
from melm.proposals.selective_search_opencv import selective_search_opencv
from melm.proposals.straddling import straddling

ALIKE = 0.8  # overlap above which a box is ranked behind its better twin


def compute_proposals(
    image: NDArray[np.uint8], settings: ProposalSettings, given: NDArray[np.floating] | None = None
) -> Proposals:
    """The proposals of an upright RGB image (H, W, 3); `given` are the boxes and scores (N, 5) of a ready-made file."""
    height, width = image.shape[:2]
    shrink = min(1.0, settings.max_side / max(height, width))
    small = image
    if shrink < 1:
        small = cv2.resize(
            image, (max(1, round(width * shrink)), max(1, round(height * shrink))), interpolation=cv2.INTER_AREA
        )
    large, little = (np.array([*shape[1::-1]] * 2, dtype=np.float64) for shape in (image.shape, small.shape))

    def to_image(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
        return boxes * large / little  # in this order the borders of one fall exactly on those of the other

    boxes, scores = _clean(*_found(small, settings, given, to_image), settings, width, height)
    if settings.whole_image:
        boxes = np.concatenate([boxes, [[0, 0, width, height]]])
        scores = np.concatenate([scores, [0.0]])
    prior = straddling(small, boxes * little / large)
    order = np.arange(len(boxes))  # edge boxes and files come in an order of their own
    if settings.method.startswith("selective-search"):
        found = len(boxes) - settings.whole_image
        order[:found] = _spread(boxes[:found], prior[:found])
    if len(order) > settings.max_boxes:
        order = np.concatenate(
            [order[: settings.max_boxes - settings.whole_image], order[len(order) - settings.whole_image :]]
        )
    if settings.whole_image and len(order) > 1:
        prior[-1] = prior[order[:-1]].mean()  # nothing can straddle the edge of the picture: that is no evidence
    return Proposals(boxes[order].astype(np.float32), prior[order], scores[order].astype(np.float32), width, height)


def _found(
    small: NDArray[np.uint8],
    settings: ProposalSettings,
    given: NDArray[np.floating] | None,
    to_image: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The method's boxes in the pixels of the whole image, and its own scores (zeros where it has none)."""
    if settings.method == "file":
        if given is None:
            raise ValueError("method `file` needs the boxes that the file gives for the image")
        return given[:, :4].astype(np.float64), given[:, 4].astype(np.float64)
    if settings.method == "edge-boxes":
        least = settings.min_side / to_image(np.ones((1, 4)))[0, 0]
        boxes, scores = edge_boxes(small, 3 * settings.max_boxes, least)  # many are thin, and go
        return to_image(boxes), scores
    if settings.method == "selective-search":
        boxes = selective_search(small)
    else:
        boxes = selective_search_opencv(small, quality=settings.method == "selective-search-quality")
    return to_image(boxes), np.zeros(len(boxes))


def _clean(
    boxes: NDArray[np.float64], scores: NDArray[np.float64], settings: ProposalSettings, width: int, height: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Boxes in the image, with sides long enough, each once; the whole image is added later and so left out here."""
    boxes = box.clip(boxes, width, height)
    sides = boxes[:, 2:] - boxes[:, :2]
    good = (sides >= settings.min_side).all(axis=1) & (sides > 0).all(axis=1)
    if settings.whole_image:
        good &= ~(boxes == [0, 0, width, height]).all(axis=1)
    boxes, scores = boxes[good], scores[good]
    first = np.sort(np.unique(boxes.astype(np.float32), axis=0, return_index=True)[1])
    return boxes[first], scores[first]


def _spread(boxes: NDArray[np.float64], scores: NDArray[np.float32]) -> NDArray[np.intp]:
    """Best first, near twins behind all others: the first boxes of the list then cover the image."""
    order = box.ranked(boxes, scores)
    ahead = np.isin(order, box.nms(boxes, scores, ALIKE))
    return np.concatenate([order[ahead], order[~ahead]])
