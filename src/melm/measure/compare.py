"""Is one run better than another? Spread over seeds, and a paired bootstrap over images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from melm.detect.detections import Detections
from melm.errors import MelmError, one_of
from melm.measure.average_precision import RULES, Rule
from melm.measure.corloc import CorLoc
from melm.measure.gather import Gathered, gather
from melm.measure.matching import match
from melm.measure.truth import Truth

AT_ONCE = 100  # resamples drawn together: bounds the memory


@dataclass(frozen=True)
class Spread:
    """A figure over several runs that differ in their seed."""

    mean: float
    std: float  # of a sample (divided by n - 1); nan for one run
    count: int


def over_seeds(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of one figure over runs."""
    if not len(values):
        raise ValueError("no value; one for each run was expected")
    return Spread(
        float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else float("nan"), len(values)
    )


@dataclass(frozen=True)
class Sampled:
    """A figure of one run, and on images drawn with replacement; runs on the same images see the same draws of a seed."""

    value: float
    draws: NDArray[np.float64]  # (R,) nan on a draw that shows no object


@dataclass(frozen=True)
class Bootstrap:
    """A figure of two runs on the same images, and how it varies when other images might have been drawn.

    Images are drawn with replacement, as many as there are, and both runs are measured on each draw.
    """

    first: float
    second: float
    of_first: NDArray[np.float64]  # (R,) on each draw; nan on one that shows no object
    of_second: NDArray[np.float64]  # (R,)

    @property
    def difference(self) -> float:
        """Of the second over the first."""
        return self.second - self.first

    def differences(self) -> NDArray[np.float64]:
        """On each draw that shows an object."""
        both = self.of_second - self.of_first
        return both[~np.isnan(both)]

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Of the difference: the middle `level` of the draws."""
        low, high = np.quantile(self.differences(), [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)

    @property
    def p_value(self) -> float:
        """Two-sided: twice the share of draws in which the other run is better or both are equal, at least 2 / (R + 1)."""
        differences = self.differences()
        against = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
        return min(1.0, 2 * (against + 1) / (len(differences) + 1))


def bootstrap_ap(
    truth: Truth,
    first: Mapping[str, Detections],
    second: Mapping[str, Detections],
    rule: Rule = "voc07",
    min_overlap: float = 0.5,
    resamples: int = 1000,
    seed: int = 0,
) -> Bootstrap:
    """Paired bootstrap of mAP between the detections of two runs.

    Which detections are right does not depend on the other images, so they are matched once; each draw counts an image as often
    as it was drawn. A class that no image of a draw shows is left out of that draw's mean.
    """
    return paired(*(sampled_ap(truth, found, rule, min_overlap, resamples, seed) for found in (first, second)))


def sampled_ap(
    truth: Truth,
    found: Mapping[str, Detections],
    rule: Rule = "voc07",
    min_overlap: float = 0.5,
    resamples: int = 1000,
    seed: int = 0,
) -> Sampled:
    """mAP of a run's detections."""
    one_of("rule", rule, RULES)
    return _sampled(_map_of_weights(gather(truth, found), rule, min_overlap), len(truth.images), resamples, seed)


def bootstrap_corloc(first: CorLoc, second: CorLoc, resamples: int = 1000, seed: int = 0) -> Bootstrap:
    """Paired bootstrap of CorLoc between two runs, measured on the same images and tags."""
    pairs = [list(zip(run.pair_image.tolist(), run.pair_class.tolist(), strict=True)) for run in (first, second)]
    if first.image_ids != second.image_ids or first.classes != second.classes or set(pairs[0]) != set(pairs[1]):
        raise MelmError("the two runs were measured on different images or tags; measure both on the same")
    images = len(first.image_ids)
    return paired(*(_sampled(_corloc_of_weights(run), images, resamples, seed) for run in (first, second)))


def paired(first: Sampled, second: Sampled) -> Bootstrap:
    return Bootstrap(first.value, second.value, first.draws, second.draws)


Measure = Callable[[NDArray[np.int64]], NDArray[np.float64]]  # (R, I) how often each image counts -> (R,)


def _sampled(measure: Measure, images: int, resamples: int, seed: int) -> Sampled:
    value = measure(np.ones((1, images), np.int64))[0]
    return Sampled(float(value), np.concatenate([measure(weights) for weights in _draws(images, resamples, seed)]))


def _draws(images: int, resamples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """(R, I) how often each image was drawn, a few resamples at a time."""
    random = np.random.default_rng(seed)
    for start in range(0, resamples, AT_ONCE):
        yield random.multinomial(images, np.full(images, 1 / images), min(AT_ONCE, resamples - start))


def _map_of_weights(gathered: Gathered, rule: Rule, min_overlap: float) -> Measure:
    verdict = match(gathered, "ilsvrc" if rule == "ilsvrc13" else "voc", min_overlap).verdict
    plain = ~gathered.ignored
    objects = np.zeros((len(gathered.image_ids), len(gathered.classes)))
    np.add.at(objects, (gathered.object_image[plain], gathered.object_class[plain]), 1)
    if not plain.any():
        raise MelmError("no object to measure against: there are none, or all are difficult or crowds")
    start = gathered.class_range()

    def measure(weights: NDArray[np.int64]) -> NDArray[np.float64]:
        count = np.rint(weights @ objects).astype(np.int64)  # (R, K)
        ap: NDArray[np.float64] = _weighted_ap(verdict, gathered.image, start, count, weights, rule == "voc07")
        return _mean_of_classes(ap)

    return measure


def _corloc_of_weights(run: CorLoc) -> Measure:
    size = len(run.image_ids), len(run.classes)
    tagged, hit = np.zeros(size), np.zeros(size)
    np.add.at(tagged, (run.pair_image, run.pair_class), 1)
    np.add.at(hit, (run.pair_image, run.pair_class), run.hit)

    def measure(weights: NDArray[np.int64]) -> NDArray[np.float64]:
        images = weights @ tagged  # (R, K)
        share = np.divide(weights @ hit, images, out=np.full(images.shape, np.nan), where=images > 0)
        return _mean_of_classes(share)

    return measure


def _mean_of_classes(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(R,) means of (R, K) over the classes that a draw shows; nan where it shows none."""
    there = ~np.isnan(values)
    total = np.where(there, values, 0).sum(axis=1)
    count = there.sum(axis=1)
    mean: NDArray[np.float64] = np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0)
    return mean


@numba.njit(cache=True)
def _weighted_ap(verdict, image, start, objects, weights, eleven_points):  # type: ignore[no-untyped-def]
    """(R, K) average precision where image i counts weights[r, i] times; nan where there is no object.

    An image drawn twice has its detections twice, one after the other in rank. The best precision at a recall is reached after
    the last copy of a right detection and before the first copy of a wrong one, so copies are counted in one step.
    """
    draws, classes = objects.shape
    ap = np.full((draws, classes), np.nan)
    longest = np.max(start[1:] - start[:-1])
    right, precision = np.empty(longest, np.int64), np.empty(longest)
    for r in range(draws):
        for k in range(classes):
            if objects[r, k] == 0:
                continue
            found, seen, points = 0, 0, 0
            for d in range(start[k], start[k + 1]):
                weight = weights[r, image[d]]
                if weight == 0 or verdict[d] < 0:
                    continue
                seen += weight
                if verdict[d] > 0:  # the best precision at any recall is that of a right detection
                    found += weight
                    right[points], precision[points] = found, found / seen
                    points += 1
            area, eleven, best, tenths = 0.0, 0.0, 0.0, 10
            for p in range(points - 1, -1, -1):
                while tenths * objects[r, k] > 10 * right[p]:  # a recall that is first reached after p
                    eleven += best
                    tenths -= 1
                best = max(best, precision[p])
                area += best * (right[p] - (right[p - 1] if p > 0 else 0))
            eleven += best * (tenths + 1)
            ap[r, k] = eleven / 11 if eleven_points else area / objects[r, k]
    return ap
