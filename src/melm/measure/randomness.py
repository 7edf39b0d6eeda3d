"""Localization randomness: how near the proposals that the model believes in are to the object, and how scattered.

The paper's localization accuracy and localization variance: with p(y,h) of an image's proposals, normalised to sum to 1 over
them, the mean and the variance of their overlap with the objects of class y.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from melm.boxes import Boxes, iou


@dataclass(frozen=True)
class Randomness:
    """Accuracy and variance of every (image, tag) pair, and their means over the pairs."""

    accuracies: NDArray[np.float64]  # (P,)
    variances: NDArray[np.float64]  # (P,)

    @property
    def accuracy(self) -> float:
        """nan without a pair."""
        return float(self.accuracies.mean()) if len(self.accuracies) else float("nan")

    @property
    def variance(self) -> float:
        """nan without a pair."""
        return float(self.variances.mean()) if len(self.variances) else float("nan")


def localization(prob: NDArray[np.floating], proposals: Boxes, objects: Boxes) -> tuple[float, float]:
    """Localization accuracy and variance of one tag of one image.

    `prob` (N,) is p(y,h) of the `proposals` (N, 4), up to a factor; all alike where every one is 0. `objects` (M, 4) are the
    true boxes of class y. The overlap of a proposal is its IoU with the object it overlaps most.
    """
    if prob.shape != (len(proposals),) or not len(objects):
        raise ValueError(
            f"probabilities {prob.shape}, proposals {proposals.shape} and objects {objects.shape}; "
            "(N,), (N, 4) and (M, 4) with M of at least 1 were expected"
        )
    weight = prob.astype(np.float64)
    total = weight.sum()
    if not (np.isfinite(total) and (weight >= 0).all()):
        raise ValueError(f"probabilities that sum to {total}; none below 0 and a finite sum were expected")
    weight = weight / total if total > 0 else np.full(len(weight), 1 / len(weight))
    overlap = iou(proposals, objects).max(axis=1)  # (N,)
    accuracy = float(weight @ overlap)
    return accuracy, float(weight @ (overlap - accuracy) ** 2)


def randomness(pairs: Iterable[tuple[NDArray[np.floating], Boxes, Boxes]]) -> Randomness:
    """Of all (image, tag) pairs, each given as the arguments of `localization`."""
    values = np.array([localization(*pair) for pair in pairs], np.float64).reshape(-1, 2)
    return Randomness(values[:, 0], values[:, 1])
