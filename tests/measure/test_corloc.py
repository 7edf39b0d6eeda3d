"""CorLoc, by hand."""

import math

import numpy as np
import pytest
from measure_scenes import NAMES, found, objects, of_truth, random_scene

from melm.errors import MelmError
from melm.measure.corloc import corloc
from melm.measure.truth import Truth

TRUTH = Truth(
    NAMES,
    {
        "a": objects([[0, 0, 10, 10], [20, 20, 30, 30]], [0, 1]),
        "b": objects([[0, 0, 10, 10], [50, 50, 60, 60]], [0, 0], difficult=[False, True]),
        "c": objects([[0, 0, 90, 90]], [0], crowd=[True]),
    },
)
TAGS = {"a": ("cat", "dog"), "b": ("cat",), "c": ("cat",)}


def test_by_hand():
    detections = {
        "a": found([("cat", 0.1, 0, 0, 10, 10), ("cat", 0.9, 0, 0, 10, 4), ("dog", 0.2, 20, 20, 30, 25)]),
        "b": found([("cat", 0.3, 50, 50, 60, 60)]),
    }
    result = corloc(TRUTH, detections, TAGS)
    assert result.per_class()["cat"] == pytest.approx(1 / 3)  # only the best box of a counts; b's is on a difficult one
    assert result.per_class()["dog"] == 1  # 0.5 is enough
    assert math.isnan(result.per_class()["cow"]) and result.absent == ("cow",)
    assert result.mean == pytest.approx((1 / 3 + 1) / 2)  # over classes, not over images
    assert result.images() == {"cat": 3, "dog": 1, "cow": 0} and result.hits() == {"cat": 1, "dog": 1, "cow": 0}
    pairs = zip(result.pair_image, result.pair_class, result.overlap, result.hit, strict=True)
    expected = [("a", "cat", 0.4, False), ("a", "dog", 0.5, True), ("b", "cat", 1, True), ("c", "cat", 0, False)]
    assert [(result.image_ids[i], NAMES[k], pytest.approx(o), h) for i, k, o, h in pairs] == expected


def test_equal_scores_go_by_coordinates():
    rows = [("cat", 0.5, 5, 0, 15, 10), ("cat", 0.5, 0, 0, 10, 10)]
    for these in (rows, rows[::-1]):
        assert corloc(TRUTH, {"b": found(these)}, {"b": ["cat"]}).mean == 1


def test_truth_itself_hits_everywhere():
    random = np.random.default_rng(0)
    for _ in range(50):
        truth, _ = random_scene(random, crowds=True)
        tags = {id: [truth.classes[k] for k in sorted(set(true.classes.tolist()))] for id, true in truth.images.items()}
        assert corloc(truth, of_truth(truth), tags).mean == 1


def test_a_tag_without_a_true_box_is_left_out_and_named():
    result = corloc(TRUTH, {"a": found([("cat", 0.5, 0, 0, 10, 10)])}, {"a": ["cat", "cow"]})
    assert result.without_box == (("a", "cow"),) and result.images() == {"cat": 1, "dog": 0, "cow": 0}


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ({"d": ["cat"]}, "image 'd'.*no ground truth"),
        ({"a": ["cut"]}, "tag 'cut'.*Did you mean 'cat'"),
        ({"a": ["cow"]}, "no tag to measure"),
        ({}, "no tag to measure"),
    ],
)
def test_what_cannot_be_measured(tags, message):
    with pytest.raises(MelmError, match=message):
        corloc(TRUTH, {}, tags)
