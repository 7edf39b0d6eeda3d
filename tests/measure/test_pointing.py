"""Pointing localization with class prediction, by hand."""

import math

import numpy as np
import pytest
from measure_scenes import NAMES, found, objects, of_truth, random_scene

from melm.errors import MelmError
from melm.measure.pointing import pointing
from melm.measure.truth import Truth

TRUTH = Truth(
    NAMES,
    {
        "a": objects([[100, 100, 200, 200], [300, 300, 400, 400]], [0, 0], difficult=[False, True]),
        "b": objects([[100, 100, 200, 200]], [1]),
        "c": objects([[100, 100, 200, 200]], [0], difficult=[True]),
        "d": objects([[100, 100, 200, 200]], [0]),
    },
)


def point(name, score, x, y):
    return name, score, x - 5, y - 7, x + 5, y + 7


def test_by_hand():
    detections = {
        "a": found(
            [point("cat", 0.9, 350, 350), point("cat", 0.3, 10, 10)]
        ),  # on the difficult one of an image that shows cats
        "b": found([point("cat", 0.8, 150, 150)]),  # shows no cat
        "c": found([point("cat", 0.95, 10, 10)]),  # only a difficult cat: left out
        "d": found([point("cat", 0.7, 150, 150)]),
    }
    result = pointing(TRUTH, detections)
    assert result.images.tolist() == [2, 1, 0] and result.hits.tolist() == [2, 0, 0] and result.tolerance == 18
    assert result.per_class()["cat"] == pytest.approx((1 + 2 / 3) / 2)
    assert result.per_class()["dog"] == 0 and math.isnan(result.per_class()["cow"]) and result.absent == ("cow",)
    assert result.mean == pytest.approx((1 + 2 / 3) / 4)
    assert result.accuracy()["cat"] == 1 and result.accuracy()["dog"] == 0
    # the recalls up to 0.5 have precision 1, those beyond have 2/3
    assert pointing(TRUTH, detections, eleven_points=True).ap[0] == pytest.approx((6 + 5 * 2 / 3) / 11)


def test_only_the_best_box_counts():
    detections = {"d": found([point("cat", 0.5, 150, 150), point("cat", 0.6, 10, 10)])}
    assert pointing(TRUTH, detections).hits[0] == 0


@pytest.mark.parametrize(("x", "hit"), [(82, 1), (81.9, 0), (218, 1), (218.1, 0)])
def test_tolerance(x, hit):
    assert pointing(TRUTH, {"d": found([point("cat", 0.5, x, 150)])}).hits[0] == hit
    assert pointing(TRUTH, {"d": found([point("cat", 0.5, x, 150)])}, tolerance=0).hits[0] == 0


def test_truth_itself_is_perfect():
    random = np.random.default_rng(0)
    for _ in range(50):
        truth, _ = random_scene(random, crowds=True)
        assert pointing(truth, of_truth(truth)).mean == pointing(truth, of_truth(truth), 0).mean == 1


def test_nothing_to_point_at():
    with pytest.raises(MelmError, match="no object to point at"):
        pointing(Truth(NAMES, {"c": TRUTH.images["c"]}), {})
