"""COCO's measures, through hotcoco: an evaluator with pycocotools' numbers at a small part of its time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melm.boxes import area
from melm.detect.detections import Detections
from melm.errors import MelmError
from melm.measure.gather import Gathered, gather
from melm.measure.truth import Truth

SIZES = ("all", "small", "medium", "large")  # up to 32 x 32 pixels, up to 96 x 96, above
NEVER_COUNTED = 1e11  # an area beyond every range of sizes: found without gain, missed without loss


@dataclass(frozen=True)
class CocoMeasures:
    """COCO's twelve figures and the AP of each class; nan where there is no object to measure."""

    classes: tuple[str, ...]
    precision: NDArray[np.float64]  # (10, 101, K, 4) by IoU from 0.5 up, recall from 0 up, class and size; -1: none
    recall: NDArray[np.float64]  # (10, K, 4, 3) by IoU, class, size and boxes per image (1, 10, 100); -1: none

    @property
    def ap(self) -> float:
        """Mean over the IoUs 0.5, 0.55, ... 0.95 and the classes that have objects."""
        return _mean(self.precision[..., 0])

    def figures(self) -> dict[str, float]:
        """AP, AP50, AP75, APs, APm, APl, AR1, AR10, AR100, ARs, ARm, ARl: in the order in which pycocotools prints them."""
        result = {"AP": self.ap, "AP50": _mean(self.precision[0, ..., 0]), "AP75": _mean(self.precision[5, ..., 0])}
        result |= {f"AP{size[0]}": _mean(self.precision[..., i]) for i, size in enumerate(SIZES) if i}
        result |= {f"AR{count}": _mean(self.recall[..., 0, i]) for i, count in enumerate((1, 10, 100))}
        return result | {f"AR{size[0]}": _mean(self.recall[..., i, 2]) for i, size in enumerate(SIZES) if i}

    def per_class(self) -> dict[str, float]:
        """AP of each class."""
        return {name: _mean(self.precision[:, :, k, 0]) for k, name in enumerate(self.classes)}

    def per_class_50(self) -> dict[str, float]:
        """AP50 of each class."""
        return {name: _mean(self.precision[0, :, k, 0]) for k, name in enumerate(self.classes)}


def coco_measures(truth: Truth, detections: Mapping[str, Detections]) -> CocoMeasures:
    """COCO's measures of detections, by image id: the 100 best of each class and image, as COCO has it.

    Crowds are COCO's own: any number of detections may lie in one, unpunished. COCO knows no difficult objects; here they are
    ignored at ordinary overlap, so that one detection of each is neither right nor wrong. Sizes are those of the true boxes;
    COCO's server takes the area of the mask, so on COCO itself the figures by size differ a little from its own.
    """
    from hotcoco import COCO, COCOeval  # here, for it is not needed to learn or to detect

    gathered = gather(truth, detections)
    if not gathered.object_counts().any():
        raise MelmError("no object to measure against: there are none, or all are difficult or crowds")
    known = COCO.from_arrays(
        [{"id": i + 1} for i in range(len(gathered.image_ids))],
        [{"id": k + 1, "name": name} for k, name in enumerate(gathered.classes)],
        gathered.object_image + 1,
        gathered.object_class + 1,
        _corner_and_size(gathered.objects),
        area=coco_areas(gathered),
        iscrowd=gathered.crowd,
    )
    evaluation = COCOeval(known, known.load_res(coco_results(gathered)), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    result: dict[str, Any] = evaluation.eval or {}
    return CocoMeasures(gathered.classes, result["precision"][..., -1], result["recall"])


def coco_areas(gathered: Gathered) -> NDArray[np.float64]:
    """(O,) areas of the objects. A difficult object gets one beyond every range of sizes: so COCO's evaluators ignore it."""
    return np.where(gathered.ignored & ~gathered.crowd, NEVER_COUNTED, area(gathered.objects))


def coco_results(gathered: Gathered) -> NDArray[np.float64]:
    """(D, 7) rows of image id, x, y, width, height, score, category id, both ids from 1."""
    columns = gathered.image + 1, *_corner_and_size(gathered.boxes).T, gathered.scores, gathered.detected_class + 1
    return np.stack(columns, axis=1).astype(np.float64)


def _corner_and_size(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)


def _mean(values: NDArray[np.float64]) -> float:
    """Over what there is."""
    values = values[values > -1]
    return float(values.mean()) if len(values) else float("nan")
