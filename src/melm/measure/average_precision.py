"""Average precision of detections: PASCAL VOC 2007, VOC 2010 and 2012, ILSVRC 2013."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from melm.detect.detections import Detections
from melm.errors import MelmError, one_of
from melm.measure.gather import gather
from melm.measure.matching import IGNORED, RIGHT, Matching, match
from melm.measure.truth import Truth

Rule = Literal["voc07", "voc12", "ilsvrc13"]
RULES: tuple[Rule, ...] = ("voc07", "voc12", "ilsvrc13")  # voc12 is VOC 2010's rule too


@dataclass(frozen=True)
class ClassPrecision:
    """One class: its average precision, and the curve it comes from, detection by detection from the highest score down.

    Detections of difficult objects and crowds are not on the curve: they are neither right nor wrong.
    """

    name: str
    ap: float  # nan if no object counts
    objects: int  # that count: neither difficult nor crowds
    detections: int  # all, with the ignored ones
    ignored: int
    scores: NDArray[np.float64]  # (P,)
    right: NDArray[np.bool_]  # (P,)
    precision: NDArray[np.float64]  # (P,)
    recall: NDArray[np.float64]  # (P,) nan if no object counts

    @property
    def found(self) -> int:
        """Objects that were found."""
        return int(self.right.sum())


@dataclass(frozen=True)
class AveragePrecision:
    """Average precision class by class, in the order of the truth's classes."""

    rule: str
    min_overlap: float
    classes: tuple[ClassPrecision, ...]

    @property
    def mean(self) -> float:
        """mAP: the mean over the classes that have objects."""
        return float(np.mean([c.ap for c in self.classes if c.objects]))

    @property
    def absent(self) -> tuple[str, ...]:
        """Classes without an object that counts, left out of the mean."""
        return tuple(c.name for c in self.classes if not c.objects)

    def per_class(self) -> dict[str, float]:
        return {c.name: c.ap for c in self.classes}

    def without_curves(self) -> AveragePrecision:
        """The figures alone."""
        nothing, none = np.zeros(0), np.zeros(0, bool)
        classes = (replace(c, scores=nothing, right=none, precision=nothing, recall=nothing) for c in self.classes)
        return replace(self, classes=tuple(classes))


def average_precision(
    truth: Truth, detections: Mapping[str, Detections], rule: Rule = "voc07", min_overlap: float = 0.5
) -> AveragePrecision:
    """Average precision of detections, by image id. `melm.measure.matching` says which of them are right.

    `voc07` is the mean of the best precision at recalls of at least 0, 0.1, ... 1; `voc12` the area under the curve whose
    precision at each recall is the best at that recall or beyond; `ilsvrc13` that area, with the challenge's matching. A class
    with objects and no detections has 0, a class without objects nan. Of equal scores the image that comes first in the truth
    ranks first, then the smaller coordinates. Give all detections: a cut at a score costs average precision.
    """
    one_of("rule", rule, RULES)
    gathered = gather(truth, detections)
    objects = gathered.object_counts()
    if not objects.any():
        raise MelmError("no object to measure against: there are none, or all are difficult or crowds")
    matching: Matching = "ilsvrc" if rule == "ilsvrc13" else "voc"
    verdict = match(gathered, matching, min_overlap).verdict
    start = gathered.class_range()
    classes = []
    for k, name in enumerate(gathered.classes):
        these = slice(start[k], start[k + 1])
        classes.append(_of_class(name, gathered.scores[these], verdict[these], int(objects[k]), rule))
    return AveragePrecision(rule, min_overlap, tuple(classes))


def _of_class(
    name: str, scores: NDArray[np.float64], verdict: NDArray[np.int8], objects: int, rule: Rule
) -> ClassPrecision:
    counted = verdict != IGNORED
    right = verdict[counted] == RIGHT
    found = np.cumsum(right)
    precision = found / np.arange(1, len(found) + 1)
    recall = found / objects if objects else np.full(len(found), np.nan)
    value = ap_of_ranking(right, objects, eleven_points=rule == "voc07")
    return ClassPrecision(
        name, value, objects, len(scores), int((~counted).sum()), scores[counted], right, precision, recall
    )


def ap_of_ranking(right: NDArray[np.bool_], objects: int, eleven_points: bool) -> float:
    """Average precision of a ranked list: which of it is right, best first, and how many there are to be found.

    Recalls are compared as whole numbers: 3 of 10 is a recall of at least 0.3, which in floating point it need not be.
    """
    if not objects:
        return float("nan")
    found = np.cumsum(right)
    precision = found / np.arange(1, len(found) + 1)
    best_from_here = np.maximum.accumulate(precision[::-1])[::-1]
    if not eleven_points:
        return float(best_from_here[right].sum()) / objects  # each object found is a step in recall of 1 / objects
    first = np.searchsorted(10 * found, np.arange(11) * objects)  # of each of the recalls
    return float(np.append(best_from_here, 0.0)[first].sum()) / 11
