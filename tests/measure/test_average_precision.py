"""Average precision: by hand, and against the devkits' rules in plain loops."""

import math
import time

import numpy as np
import pytest
from devkits import average_precisions
from measure_scenes import NAMES, found, objects, of_truth, random_boxes, random_scene

from melm.errors import MelmError, UsageError
from melm.measure.average_precision import RULES, ap_of_ranking, average_precision
from melm.measure.truth import Truth

CAT = Truth(NAMES, {"a": objects([[0, 0, 10, 10], [50, 50, 60, 60]], [0, 0]), "b": objects([[0, 0, 10, 10]], [0])})


def ap(truth, detections, rule="voc12", name="cat"):
    return average_precision(truth, detections, rule).per_class()[name]


@pytest.mark.parametrize("rule", RULES)
def test_truth_scored_as_detections_is_perfect(rule):
    random = np.random.default_rng(0)
    for _ in range(50):
        truth, _ = random_scene(random, crowds=True)
        result = average_precision(truth, of_truth(truth), rule)
        assert all(c.ap == 1 for c in result.classes if c.objects) and result.mean == 1


def test_by_hand():
    detections = {
        "a": found([("cat", 0.9, 0, 0, 10, 10), ("cat", 0.7, 50, 50, 60, 61), ("cat", 0.6, 80, 80, 90, 90)]),
        "b": found([("cat", 0.8, 30, 30, 40, 40)]),
    }
    result = average_precision(CAT, detections, "voc12")
    cat = result.classes[0]  # right, wrong, right, wrong of 3 objects
    assert cat.right.tolist() == [True, False, True, False]
    assert cat.scores.tolist() == pytest.approx([0.9, 0.8, 0.7, 0.6])
    assert cat.precision.tolist() == pytest.approx([1, 1 / 2, 2 / 3, 2 / 4])
    assert cat.recall.tolist() == pytest.approx([1 / 3, 1 / 3, 2 / 3, 2 / 3])
    assert (cat.objects, cat.detections, cat.ignored, cat.found) == (3, 4, 0, 2)
    assert cat.ap == pytest.approx(1 / 3 * 1 + 1 / 3 * 2 / 3)
    # recalls 0 to 0.3 have precision 1, 0.4 to 0.6 have 2/3, the rest none
    assert ap(CAT, detections, "voc07") == pytest.approx((4 * 1 + 3 * 2 / 3) / 11)


def test_a_second_detection_of_an_object_is_wrong():
    detections = {"b": found([("cat", 0.9, 0, 0, 10, 9), ("cat", 0.8, 0, 0, 10, 10)])}
    result = average_precision(CAT, detections, "voc12").classes[0]
    assert result.right.tolist() == [True, False]


def test_a_detection_stands_for_the_object_it_overlaps_most_even_if_that_was_found():
    """Two objects side by side; the second detection overlaps both by half or more, the found one a little more."""
    truth = Truth(NAMES, {"a": objects([[0, 0, 100, 100], [0, 30, 100, 130]], [0, 0])})
    detections = {"a": found([("cat", 0.9, 0, 0, 100, 100), ("cat", 0.8, 0, 14, 100, 114)])}
    assert average_precision(truth, detections, "voc12").classes[0].right.tolist() == [True, False]
    assert average_precision(truth, detections, "ilsvrc13").classes[0].right.tolist() == [
        True,
        True,
    ]  # the best free one


@pytest.mark.parametrize(("height", "right"), [(5, True), (4.99, False)])
def test_half_is_enough(height, right):
    assert average_precision(CAT, {"b": found([("cat", 0.9, 0, 0, 10, height)])}).classes[0].right.tolist() == [right]


@pytest.mark.parametrize("flag", ["difficult", "crowd"])
def test_difficult_objects_and_crowds_are_neither_right_nor_wrong(flag):
    truth = Truth(NAMES, {"a": objects([[0, 0, 10, 10], [50, 50, 60, 60]], [0, 0], **{flag: [True, False]})})
    rows = [("cat", 0.9, 0, 0, 10, 10), ("cat", 0.8, 0, 0, 10, 10), ("cat", 0.7, 50, 50, 60, 60)]
    for rule in RULES:
        cat = average_precision(truth, {"a": found(rows)}, rule).classes[0]
        assert (cat.ap, cat.objects, cat.ignored, cat.detections) == (1, 1, 2, 3)
        assert average_precision(truth, {"a": found(rows[2:])}, rule).classes[0].ap == 1


def test_a_class_without_objects_is_left_out_of_the_mean():
    truth = Truth(NAMES, {"a": objects([[0, 0, 10, 10], [50, 50, 60, 60]], [0, 1], difficult=[False, True])})
    result = average_precision(truth, {"a": found([("cow", 0.9, 0, 0, 9, 9), ("cat", 0.9, 0, 0, 10, 10)])})
    assert result.absent == ("dog", "cow")  # only difficult ones, and none at all
    assert math.isnan(result.per_class()["dog"]) and math.isnan(result.per_class()["cow"]) and result.mean == 1


def test_no_detections():
    for detections in ({}, {"a": found([])}, {"a": found([("dog", 0.9, 0, 0, 10, 10)])}):
        assert ap(CAT, detections, "voc07") == ap(CAT, detections, "voc12") == 0


def test_no_object_at_all_is_an_error():
    with pytest.raises(MelmError, match="no object to measure against"):
        average_precision(Truth(NAMES, {"a": objects([[0, 0, 1, 1]], [0], difficult=[True])}), {})


def test_equal_scores_rank_by_image_and_then_by_coordinates():
    """However the detections are written down."""
    right_b, wrong_b, wrong_a = (("cat", 0.5, *box) for box in ([0, 0, 10, 10], [1, 30, 9, 40], [20, 20, 30, 30]))
    one = {"a": found([wrong_a]), "b": found([right_b, wrong_b])}
    other = {"b": found([wrong_b, right_b]), "a": found([wrong_a])}
    for detections in (one, other):
        assert average_precision(CAT, detections).classes[0].right.tolist() == [False, True, False]


def test_names_in_another_order_and_more_of_them():
    detections = {"b": found([("cat", 0.9, 0, 0, 10, 10)], names=("zebra", "dog", "cat"))}
    assert average_precision(CAT, detections).classes[0].found == 1


@pytest.mark.parametrize(
    ("detections", "message"),
    [
        ({"a": found([("cats", 0.9, 0, 0, 1, 1)], names=("cats",))}, "image 'a'.*class 'cats'.*Did you mean 'cat'"),
        ({"c": found([])}, "image 'c'.*no ground truth"),
        ({"a": found([("cat", 0.9, 0, 0, 1, 1), ("cat", 0.8, 0, float("nan"), 1, 1)])}, "image 'a'.*nan.*finite"),
        ({"b": found([("cat", float("inf"), 0, 0, 1, 1)])}, "image 'b'.*inf.*finite"),
    ],
)
def test_what_cannot_be_measured(detections, message):
    with pytest.raises(MelmError, match=message):
        average_precision(CAT, detections)


def test_unknown_rule():
    with pytest.raises(UsageError, match=r"voc0.*Did you mean 'voc07'"):
        average_precision(CAT, {}, "voc0")


def test_eleven_points_compare_recalls_exactly():
    """3 of 10 found is a recall of 0.3, though 0.1 + 0.1 + 0.1 is more than that in floating point."""
    for found_so_far in range(11):
        right = np.array([True] * found_so_far + [False] * 5)
        assert ap_of_ranking(right, 10, eleven_points=True) == pytest.approx(
            (found_so_far + 1 if found_so_far else 0) / 11
        )


def test_ilsvrc_forgives_small_boxes_five_pixels_on_each_side():
    truth = Truth(NAMES, {"a": objects([[20, 20, 30, 30]], [0])})  # 10 x 10: 100 / 400
    for box, right in (([15, 15, 35, 35], True), ([15, 15, 35, 36], False)):
        assert average_precision(truth, {"a": found([("cat", 0.9, *box)])}, "ilsvrc13").classes[0].found == right
        assert average_precision(truth, {"a": found([("cat", 0.9, *box)])}, "voc12").classes[0].found == 0


@pytest.mark.parametrize("rule", RULES)
def test_equals_the_devkits_rules_on_random_scenes(rule):
    random = np.random.default_rng(RULES.index(rule))
    seen = 0
    for _ in range(1000):
        truth, detections = random_scene(random, images=int(random.integers(1, 12)), crowds=True)
        expected = average_precisions(truth, detections, rule)
        result = average_precision(truth, detections, rule)
        for name, value in expected.items():
            if value is None:
                assert name in result.absent and math.isnan(result.per_class()[name])
            else:
                assert result.per_class()[name] == pytest.approx(value, abs=1e-12)
                seen += 0 < value < 1
        assert result.mean == pytest.approx(np.mean([v for v in expected.values() if v is not None]), abs=1e-12)
    assert seen > 1000  # not only nothing and everything


@pytest.mark.slow
def test_a_large_set_takes_two_seconds():
    random = np.random.default_rng(0)
    names = tuple(f"class{k}" for k in range(20))
    truth, detections = {}, {}
    for i in range(5000):
        boxes, classes = random_boxes(random, 3, 300, 200), random.integers(0, 20, 3)
        truth[f"{i}"] = objects(boxes, classes)
        rows = [
            (names[k], s, *b)
            for k, s, b in zip(random.integers(0, 20, 20), random.uniform(size=20), boxes[[0, 1] * 10], strict=True)
        ]
        detections[f"{i}"] = found(rows, names)
    average_precision(Truth(names, {"0": truth["0"]}), {})  # compiles
    started = time.perf_counter()
    average_precision(Truth(names, truth), detections)
    assert time.perf_counter() - started < 2
