"""Everything that is measured of one run, or of the detections of any other tool, under one roof."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melm.data.records import TaggedImages
from melm.detect.detections import Detections
from melm.measure.average_precision import RULES, AveragePrecision, average_precision
from melm.measure.classification import Classification, classification
from melm.measure.coco import CocoMeasures, coco_measures
from melm.measure.compare import Bootstrap, Sampled, Spread, bootstrap_corloc, over_seeds, paired, sampled_ap
from melm.measure.corloc import CorLoc, corloc
from melm.measure.error_analysis import ErrorAnalysis, analyse_errors
from melm.measure.pointing import TOLERANCE, Pointing, pointing
from melm.measure.randomness import Randomness
from melm.measure.truth import Truth
from melm.progress import Steps


@dataclass(frozen=True)
class Subject:
    """What is measured: detections by image id, and what only a run of ours can tell beside them."""

    name: str
    detections: Mapping[str, Detections]
    image_scores: NDArray[np.float64] | None = None  # (I, K) of the tagged images and the truth's classes
    randomness: Randomness | None = None
    epochs: Sequence[Mapping[str, Any]] = ()  # of the log
    alike: str | None = None  # runs with the same text differ in their seed alone
    seeds: tuple[int, ...] = ()  # of the run, and of every retraining after it
    method: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)  # how it was looked at
    learned_from: bool | None = None  # whether this is the very data it learned from; None where that is not known


@dataclass(frozen=True)
class Evaluation:
    """All measures of one subject on one data set. Shares, not percent."""

    subject: Subject
    precision: dict[str, AveragePrecision]  # by rule
    coco: CocoMeasures
    corloc: CorLoc
    pointing: Pointing
    classification: Classification
    best_boxes: ErrorAnalysis  # of the best box of each tag
    top_boxes: ErrorAnalysis  # of as many detections of each class as it has objects
    sampled: Sampled | None = None  # mAP VOC07 on images drawn anew, once that was asked for

    @property
    def name(self) -> str:
        return self.subject.name

    def sample(self, truth: Truth, resamples: int) -> Evaluation:
        """The same with mAP on images drawn anew, which comparisons need."""
        if self.sampled is not None:
            return self
        found = {id: d for id, d in self.subject.detections.items() if id not in truth.left_out}
        return replace(self, sampled=sampled_ap(truth, found, resamples=resamples))

    def small(self) -> Evaluation:
        """The same with neither detections nor curves, which take the memory: every figure is there still."""
        precision = {rule: result.without_curves() for rule, result in self.precision.items()}
        return replace(self, subject=replace(self.subject, detections={}), precision=precision)

    def summary(self) -> dict[str, float]:
        """The figures that stand for the rest, by the names that tables give them."""
        of_images, coco = self.classification.figures(), self.coco.figures()
        result = {
            "CorLoc": self.corloc.mean,
            "mAP VOC07": self.precision["voc07"].mean,
            "mAP VOC12": self.precision["voc12"].mean,
            "mAP ILSVRC": self.precision["ilsvrc13"].mean,
            "AP": coco["AP"],
            "AP50": coco["AP50"],
            "AP75": coco["AP75"],
            "pointing": self.pointing.mean,
            "image mAP07": of_images["mAP-11"],
        }
        randomness = self.subject.randomness
        if randomness is not None:
            result |= {"loc. accuracy": randomness.accuracy, "loc. variance": randomness.variance}
        return result

    def per_class(self) -> dict[str, dict[str, float]]:
        """Measure -> class -> value."""
        images = zip(self.classification.classes, self.classification.ap_11_points.tolist(), strict=True)
        return {
            "CorLoc": self.corloc.per_class(),
            **{f"AP {rule}": self.precision[rule].per_class() for rule in RULES},
            "AP": self.coco.per_class(),
            "AP50": self.coco.per_class_50(),
            "pointing": self.pointing.per_class(),
            "image AP07": dict(images),
        }

    def as_dict(self) -> dict[str, Any]:
        """Every figure, as JSON has it: null for what there is not."""
        of_images = self.classification
        columns = {name: getattr(of_images, name) for name in ("ap", "ap_11_points", "precision", "recall", "f1")}
        result = {
            "name": self.name,
            "method": self.subject.method,
            "seed": self.subject.seeds[-1] if self.subject.seeds else None,
            "about": dict(self.subject.about),
            "summary": self.summary(),
            "detection": {
                **{rule: _with_mean(result.per_class(), result.mean) for rule, result in self.precision.items()},
                "coco": {
                    **self.coco.figures(),
                    "classes": self.coco.per_class(),
                    "classes_50": self.coco.per_class_50(),
                },
            },
            "corloc": {
                **_with_mean(self.corloc.per_class(), self.corloc.mean),
                "images": self.corloc.images(),
                "hits": self.corloc.hits(),
                "tags_without_box": len(self.corloc.without_box),
                "on_the_data_learned_from": self.subject.learned_from,
            },
            "pointing": {
                **_with_mean(self.pointing.per_class(), self.pointing.mean),
                "tolerance_pixels": self.pointing.tolerance,
                "accuracy": self.pointing.accuracy(),
            },
            "classification": {
                **of_images.figures(),
                "threshold": of_images.threshold,
                "scores": "sum of discovery's p(y, h)" if self.subject.image_scores is not None else "best detection",
                "classes": {
                    name: {column: float(values[k]) for column, values in columns.items()}
                    for k, name in enumerate(of_images.classes)
                },
            },
            "errors_of_best_boxes": _errors(self.best_boxes),
            "errors_of_top_boxes": _errors(self.top_boxes),
            "randomness": self._randomness(),
            "epochs": list(self.subject.epochs),
        }
        return dict(plain(result))

    def _randomness(self) -> dict[str, float] | None:
        """Localization accuracy and variance here, entropies and gradient norms of the last epoch."""
        if self.subject.randomness is None:
            return None
        last = self.subject.epochs[-1]["mean"] if self.subject.epochs else {}
        names = ("global_entropy", "local_entropy", "gradient_discovery", "gradient_localization")
        return {
            "localization_accuracy": self.subject.randomness.accuracy,
            "localization_variance": self.subject.randomness.variance,
            **{name: float(last[name]) for name in names if name in last},
        }


def evaluate(
    subject: Subject, truth: Truth, images: TaggedImages, tolerance: float = TOLERANCE, threshold: float = 0.5
) -> Evaluation:
    """Measures a subject on images whose boxes are known. Images that are left out of the truth are left out here."""
    detections = {id: found for id, found in subject.detections.items() if id not in truth.left_out}
    precision: dict[str, AveragePrecision] = {rule: average_precision(truth, detections, rule) for rule in RULES}
    placed = [i for i, image in enumerate(images) if image.id in truth.images]
    tags = {images[i].id: images[i].tags for i in placed}
    scores = subject.image_scores
    if scores is None:
        scores = _best_scores(detections, [image.id for image in images], truth.classes)
    true_tags, known = images.tags()[placed], images.known()[placed]
    return Evaluation(
        subject,
        precision,
        coco_measures(truth, detections),
        corloc(truth, detections, tags),
        pointing(truth, detections, tolerance),
        classification(scores[placed], true_tags, truth.classes, known, threshold),
        analyse_errors(truth, detections, tags=tags),
        analyse_errors(truth, detections, as_many_as_objects=True),
    )


def _best_scores(
    detections: Mapping[str, Detections], ids: Sequence[str], classes: Sequence[str]
) -> NDArray[np.float64]:
    """(I, K) the best score of each class in each image; minus infinity where there is none."""
    column = {name: k for k, name in enumerate(classes)}
    result = np.full((len(ids), len(classes)), -np.inf)
    for row, id in enumerate(ids):
        if id in detections and len(found := detections[id]):
            columns = np.array([column.get(name, -1) for name in found.names])[found.classes]
            np.maximum.at(result[row], columns, found.scores.astype(np.float64))
    return result


@dataclass(frozen=True)
class Comparison:
    """Two subjects on the same images."""

    first: str
    second: str
    measures: dict[str, Bootstrap] = field(default_factory=dict)  # mAP VOC07 and CorLoc

    def as_dict(self) -> dict[str, Any]:
        figures = {
            name: {
                "first": result.first,
                "second": result.second,
                "difference": result.difference,
                "interval_95": list(result.interval()),
                "p_value": result.p_value,
                "draws": len(result.of_first),
            }
            for name, result in self.measures.items()
        }
        return dict(plain({"first": self.first, "second": self.second, "measures": figures}))


def comparisons(
    evaluations: Sequence[Evaluation], truth: Truth, resamples: int = 1000, every_two: bool | None = None
) -> list[Comparison]:
    """The paired bootstrap of every two subjects, or of each with the first, as where there are many."""
    every_two = len(evaluations) <= 4 if every_two is None else every_two
    sampled = []
    with Steps("drawing images anew", len(evaluations)) as steps:
        for evaluation in evaluations if len(evaluations) > 1 else ():
            sampled.append(evaluation.sample(truth, resamples))
            steps.advance()
    result = []
    for first, second in combinations(sampled, 2):
        if first is not sampled[0] and not every_two:
            break
        assert first.sampled is not None and second.sampled is not None
        measures = {
            "mAP VOC07": paired(first.sampled, second.sampled),
            "CorLoc": bootstrap_corloc(first.corloc, second.corloc, resamples=resamples),
        }
        result.append(Comparison(first.name, second.name, measures))
    return result


def by_seed(evaluations: Sequence[Evaluation]) -> dict[str, dict[str, Spread]]:
    """For every set of runs that differ in their seed alone: its name, and mean and deviation of each figure."""
    groups: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        if evaluation.subject.alike is not None:
            groups.setdefault(evaluation.subject.alike, []).append(evaluation)
    result = {}
    for alike in groups.values():
        if len({evaluation.subject.seeds for evaluation in alike}) == len(alike) > 1:
            name = f"{alike[0].subject.method} ({', '.join(evaluation.name for evaluation in alike)})"
            summaries = [evaluation.summary() for evaluation in alike]
            result[name] = {figure: over_seeds([s[figure] for s in summaries]) for figure in summaries[0]}
    return result


def _with_mean(classes: Mapping[str, float], mean: float) -> dict[str, Any]:
    return {"mean": mean, "classes": dict(classes)}


def _errors(analysis: ErrorAnalysis) -> dict[str, Any]:
    names = [*analysis.gathered.classes, "none"]
    return {
        "shares": analysis.shares(),
        "classes": analysis.rows(),
        "confusion": {"classes": names, "table": analysis.confusion().tolist()},
    }


def plain(value: Any) -> Any:
    """As JSON has it: null for what is not a finite number."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.item() if isinstance(value, np.generic) else value
