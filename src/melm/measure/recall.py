"""How many objects a set of proposals can find at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from melm.boxes import iou
from melm.data.records import DataError
from melm.measure.truth import Truth

COUNTS = (10, 20, 50, 100, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 5000, 10000)


@dataclass(frozen=True)
class Recall:
    """Best overlaps of every object that is neither difficult nor a crowd, and what follows from them."""

    classes: tuple[str, ...]
    best: NDArray[np.float64]  # (M,) with any box of the image
    best_of_first: NDArray[np.float64]  # (M, len(COUNTS)) with the first so many
    object_class: NDArray[np.intp]  # (M,)
    best_difficult: NDArray[np.float64]  # of the difficult ones left out above
    boxes_per_image: float
    most_boxes: int
    images: int

    def at(self, overlap: float) -> float:
        """Share of the objects that some box overlaps by at least so much."""
        return float((self.best >= overlap).mean())

    def at_with_difficult(self, overlap: float) -> float:
        both = np.concatenate([self.best, self.best_difficult])
        return float((both >= overlap).mean())

    def rows(self) -> list[dict[str, object]]:
        """Class by class: objects, recall at 0.5 and 0.7, average best overlap."""
        rows: list[dict[str, object]] = []
        for k, name in enumerate(self.classes):
            best = self.best[self.object_class == k]
            if len(best):
                at5, at7, abo = float((best >= 0.5).mean()), float((best >= 0.7).mean()), float(best.mean())
                rows.append({"class": name, "objects": len(best), "recall_50": at5, "recall_70": at7, "abo": abo})
        return rows

    def mabo(self) -> float:
        """Mean over classes of the average best overlap."""
        return float(np.mean([row["abo"] for row in self.rows()]))  # type: ignore[arg-type]

    def curve(self, overlap: float) -> list[tuple[int, float]]:
        """(number of boxes, recall with that many)."""
        used = [i for i in range(len(COUNTS)) if i == 0 or COUNTS[i - 1] < self.most_boxes]
        return [(COUNTS[i], float((self.best_of_first[:, i] >= overlap).mean())) for i in used]


def proposal_recall(truth: Truth, boxes_of: Callable[[str], NDArray[np.floating] | None]) -> Recall:
    """Recall of the boxes that `boxes_of(image id)` gives; images for which it gives None are left out."""
    best, first, classes, difficult, counts = [], [], [], [], []
    for id, true in truth.images.items():
        boxes = boxes_of(id)
        if boxes is None:
            continue
        counts.append(len(boxes))
        overlap = iou(true.boxes, boxes) if len(boxes) else np.zeros((len(true.boxes), 1))  # (M, N)
        so_far = np.maximum.accumulate(overlap, axis=1)
        plain = ~true.difficult & ~true.crowd
        best.append(so_far[plain, -1])
        first.append(so_far[plain][:, [min(n, so_far.shape[1]) - 1 for n in COUNTS]])
        classes.append(true.classes[plain])
        difficult.append(so_far[true.difficult & ~true.crowd, -1])
    none = np.zeros(0)
    if not sum(map(len, best)):
        raise DataError("no object to measure against: all are difficult, crowds, or in images left out")
    return Recall(
        truth.classes,
        np.concatenate([none, *best]),
        np.concatenate([np.zeros((0, len(COUNTS))), *first]),
        np.concatenate([none.astype(np.intp), *classes]),
        np.concatenate([none, *difficult]),
        float(np.mean(counts)),
        max(counts),
        len(counts),
    )
