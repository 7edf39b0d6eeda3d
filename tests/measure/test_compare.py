"""Spread over seeds, and the paired bootstrap against data that really hold an image several times."""

import math
import time

import numpy as np
import pytest
from measure_scenes import NAMES, found, objects, of_truth, random_scene

from melm.errors import MelmError, UsageError
from melm.measure import compare
from melm.measure.average_precision import RULES, average_precision
from melm.measure.compare import Bootstrap, bootstrap_ap, bootstrap_corloc, over_seeds
from melm.measure.corloc import corloc
from melm.measure.gather import gather
from melm.measure.truth import Truth


def tags_of(truth):
    return {id: [truth.classes[k] for k in sorted(set(true.classes.tolist()))] for id, true in truth.images.items()}


def drawn(truth, detections, weights):
    """A data set in which each image is as often as its weight. Copies differ only in their id."""
    copies = [(id, f"{id}#{n}") for id, w in zip(truth.images, weights, strict=True) for n in range(w)]
    images = {copy: truth.images[id] for id, copy in copies}
    return Truth(truth.classes, images), {copy: detections[id] for id, copy in copies if id in detections}


def with_distinct_scores(random, detections):
    """No two images share a score, so that copies of one are neighbours in rank."""
    scores = iter(random.permutation(10**4) / 10**4)
    return {
        id: found([(n, next(scores), *b) for n, b in zip(these.class_names(), these.boxes, strict=True)])
        for id, these in detections.items()
    }


def test_over_seeds():
    spread = over_seeds([1.0, 2.0, 3.0])
    assert (spread.mean, spread.std, spread.count) == (2, 1, 3)
    assert math.isnan(over_seeds([1.0]).std)
    with pytest.raises(ValueError, match="no value"):
        over_seeds([])


@pytest.mark.parametrize("rule", RULES)
def test_drawing_an_image_twice_is_having_it_twice(rule):
    random = np.random.default_rng(0)
    seen = 0
    for _ in range(100):
        truth, detections = random_scene(random, images=8)
        detections = with_distinct_scores(random, detections)
        weights = random.multinomial(8, np.full(8, 1 / 8))
        measure = compare._map_of_weights(gather(truth, detections), rule, 0.5)
        copied, copies = drawn(truth, detections, weights)
        if gather(copied, copies).object_counts().any():
            expected = average_precision(copied, copies, rule).mean
            assert measure(weights[None])[0] == pytest.approx(expected, abs=1e-12)
            seen += 0 < expected < 1
        once = measure(np.ones((1, len(truth.images)), int))[0]
        assert once == pytest.approx(average_precision(truth, detections, rule).mean, abs=1e-12)
    assert seen > 50


def test_corloc_of_a_draw_is_that_of_its_images():
    random = np.random.default_rng(1)
    for _ in range(50):
        truth, detections = random_scene(random, images=8)
        if not any(tags_of(truth).values()):
            continue
        run, weights = corloc(truth, detections, tags_of(truth)), random.multinomial(8, np.full(8, 1 / 8))
        copied, copies = drawn(truth, detections, weights)
        if any(tags_of(copied).values()):
            expected = corloc(copied, copies, tags_of(copied)).mean
            assert compare._corloc_of_weights(run)(weights[None])[0] == pytest.approx(expected)


def test_a_run_against_itself_and_against_perfection():
    truth, detections = random_scene(np.random.default_rng(2), images=30)
    same = bootstrap_ap(truth, detections, detections, resamples=150)
    assert same.difference == 0 and same.interval() == (0, 0) and same.p_value == 1 and len(same.of_first) == 150
    better = bootstrap_ap(truth, detections, of_truth(truth), resamples=150)
    assert better.second == 1 and better.interval()[0] > 0 and better.p_value == pytest.approx(2 / 151)
    tags = tags_of(truth)
    runs = corloc(truth, detections, tags), corloc(truth, of_truth(truth), tags)
    result = bootstrap_corloc(*runs, resamples=150)
    assert (result.first, result.second) == (pytest.approx(runs[0].mean), 1) and result.p_value < 0.05


def test_the_same_seed_draws_the_same_images():
    truth, detections = random_scene(np.random.default_rng(3), images=30)
    one, again = (bootstrap_ap(truth, detections, {}, resamples=120) for _ in range(2))
    other = bootstrap_ap(truth, detections, {}, resamples=120, seed=1)
    assert one.of_first.tolist() == again.of_first.tolist() != other.of_first.tolist()


def test_interval_and_p_value_by_hand():
    result = Bootstrap(0.5, 0.6, np.zeros(99), np.concatenate([np.arange(-4, 95) / 100]))
    assert result.interval(0.5) == (pytest.approx(0.205), pytest.approx(0.695))
    assert result.p_value == pytest.approx(2 * 6 / 100)  # -4 to 0 are not better: 5, and the sample itself
    assert len(Bootstrap(0, 0, np.array([0, np.nan]), np.array([1, np.nan])).differences()) == 1


def test_a_draw_without_objects_is_left_out():
    truth = Truth(NAMES, {"a": objects([[0, 0, 10, 10]], [0]), "b": objects([], [])})
    result = bootstrap_ap(truth, {}, of_truth(truth), resamples=100)
    assert 0 < np.isnan(result.of_first).sum() < 100 and result.interval() == (1, 1)


def test_corloc_of_other_images_is_no_pair():
    truth, detections = random_scene(np.random.default_rng(2), images=30)
    tags = tags_of(truth)
    fewer = dict(list(tags.items())[:10])
    with pytest.raises(MelmError, match="different images or tags"):
        bootstrap_corloc(corloc(truth, detections, tags), corloc(truth, detections, fewer))


def test_unknown_rule():
    with pytest.raises(UsageError, match="voc13"):
        bootstrap_ap(*random_scene(np.random.default_rng(0)), {}, "voc13")


@pytest.mark.slow
def test_a_thousand_draws_of_2500_images_take_seconds():
    random = np.random.default_rng(0)
    truth, detections = random_scene(random, images=2500)
    bootstrap_ap(truth, detections, detections, resamples=1)
    started = time.perf_counter()
    bootstrap_ap(truth, detections, detections)
    assert time.perf_counter() - started < 20
