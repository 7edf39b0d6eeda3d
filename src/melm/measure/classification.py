"""Image classification: which classes an image shows, whatever it says about where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from melm.errors import MelmError
from melm.measure.average_precision import ap_of_ranking


@dataclass(frozen=True)
class Classification:
    """Average precision by class, and precision, recall and F1 of the classes that reach the threshold. Shares, not percent.

    Macro figures (C) are means over the classes that some image shows: of their precision, of their recall, and of their F1,
    which is not the F1 of the two means. Micro figures (O) are of all pairs of image and class in one.
    """

    classes: tuple[str, ...]
    threshold: float
    images: NDArray[np.intp]  # (K,) that show the class
    ap: NDArray[np.float64]  # (K,) nan for a class that no image shows
    ap_11_points: NDArray[np.float64]  # (K,) by VOC 2007's rule
    precision: NDArray[np.float64]  # (K,) 0 where no image reaches the threshold
    recall: NDArray[np.float64]  # (K,)
    f1: NDArray[np.float64]  # (K,)
    precision_o: float
    recall_o: float
    f1_o: float

    def figures(self) -> dict[str, float]:
        """mAP (area), mAP-11 (VOC 2007), P-C, R-C, F1-C, P-O, R-O, F1-O."""
        shown = self.images > 0
        names = ("mAP", "mAP-11", "P-C", "R-C", "F1-C")
        of_classes = (self.ap, self.ap_11_points, self.precision, self.recall, self.f1)
        result = {name: float(values[shown].mean()) for name, values in zip(names, of_classes, strict=True)}
        return result | {"P-O": self.precision_o, "R-O": self.recall_o, "F1-O": self.f1_o}

    @property
    def absent(self) -> tuple[str, ...]:
        """Classes that no image shows, left out of the means."""
        return tuple(name for name, count in zip(self.classes, self.images, strict=True) if not count)


def classification(
    scores: NDArray[np.floating],
    tags: NDArray[np.integer],
    classes: Sequence[str],
    known: NDArray[np.integer] | None = None,
    threshold: float = 0.5,
) -> Classification:
    """How well scores (I, K) of images tell which have which tags (I, K), 1 or 0.

    Pairs of image and class with `known` (I, K) 0, as where an image has only difficult objects of a class, are left out. A
    class is predicted where its score is at least `threshold`. Of equal scores the image that comes first ranks first. Minus
    infinity is no score: the image is not among those named for the class, however low one goes.
    """
    if scores.shape != tags.shape or scores.shape[1:] != (len(classes),):
        raise ValueError(
            f"scores {scores.shape}, tags {tags.shape}, {len(classes)} classes; (I, K), (I, K) and K were expected"
        )
    if np.isnan(scores).any() or np.isposinf(scores).any():
        raise MelmError("a classification score is NaN or infinite; finite numbers were expected")
    counted = np.ones(tags.shape, bool) if known is None else known.astype(bool)
    there = tags.astype(bool) & counted
    if not there.any():
        raise MelmError("no tag to measure against: no image is known to show any class")
    predicted = (scores >= threshold) & counted
    right = (predicted & there).sum(axis=0)  # (K,)
    precision, recall, f1 = _precision_recall_f1(right, predicted.sum(axis=0), there.sum(axis=0))
    overall = _precision_recall_f1(*(np.array([table.sum()]) for table in (predicted & there, predicted, there)))
    ranked = [there[_order(scores[:, k], counted[:, k]), k] for k in range(len(classes))]
    count = there.sum(axis=0).tolist()
    ap, ap_11 = (
        np.array([ap_of_ranking(r, n, eleven_points=e) for r, n in zip(ranked, count, strict=True)])
        for e in (False, True)
    )
    return Classification(
        tuple(classes), threshold, there.sum(axis=0), ap, ap_11, precision, recall, f1, *(float(v[0]) for v in overall)
    )


def _order(scores: NDArray[np.floating], counted: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The images that count, from the highest score down."""
    order = np.argsort(-scores, kind="stable")
    return order[(counted & (scores > -np.inf))[order]]


def _precision_recall_f1(
    right: NDArray[np.intp], predicted: NDArray[np.intp], there: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """0 where nothing is predicted, and where nothing is there."""
    return right / np.maximum(predicted, 1), right / np.maximum(there, 1), 2 * right / np.maximum(predicted + there, 1)
