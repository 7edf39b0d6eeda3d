"""Kinds of errors, by hand."""

import numpy as np
import pytest
from measure_scenes import NAMES, found, objects, of_truth, random_scene

from melm.measure.average_precision import average_precision
from melm.measure.error_analysis import KINDS, analyse_errors
from melm.measure.truth import Truth

TRUTH = Truth(
    NAMES,
    {
        "a": objects(
            [[0, 0, 100, 100], [200, 0, 300, 100], [400, 0, 500, 100]], [0, 1, 0], difficult=[False, False, True]
        ),
        "b": objects([[0, 0, 100, 100]], [0]),
    },
)
KIND = {  # of a cat in image a
    "correct": (0, 0, 100, 50),
    "wrong class": (200, 0, 300, 99),
    "part": (80, 0, 105, 100),  # 20 of its 25 columns inside
    "too large": (0, 0, 300, 300),
    "misplaced": (70, 0, 170, 100),
    "background": (90, 90, 190, 190),  # overlaps by far less than 0.1
    "ignored": (400, 0, 500, 60),
}


@pytest.mark.parametrize(("kind", "box"), KIND.items())
def test_each_kind(kind, box):
    result = analyse_errors(TRUTH, {"a": found([("cat", 0.5, *box)])})
    assert [KINDS[k] for k in result.kind] == [kind]
    assert result.counts[0].sum() == 1 and result.counts[0, KINDS.index(kind)] == 1
    assert result.missed.tolist() == [2 - (kind == "correct"), 1, 0] and result.objects.tolist() == [2, 1, 0]
    expected = {"background": -1, "wrong class": 2, "ignored": 1}.get(
        kind, 0
    )  # objects by image and class: cats 0, 1, dog 2
    assert result.meant.tolist() == [expected]


def test_a_duplicate_is_no_missed_object():
    rows = [("cat", 0.5, 0, 0, 100, 90), ("cat", 0.6, 0, 0, 100, 80), ("dog", 0.9, 0, 0, 100, 100)]
    result = analyse_errors(TRUTH, {"b": found(rows)})
    assert [KINDS[k] for k in result.kind] == ["correct", "duplicate", "wrong class"]
    assert result.missed.tolist() == [1, 1, 0]
    rows = result.rows()
    assert rows[0] == dict.fromkeys(KINDS, 0) | {
        "class": "cat",
        "correct": 1,
        "duplicate": 1,
        "objects": 2,
        "missed": 1,
    }
    assert result.shares() == {k: pytest.approx((k in ("correct", "duplicate", "wrong class")) / 3) for k in KINDS[:-1]}


def test_confusion():
    cats = [("cat", 0.9 - 0.1 * n, *KIND[kind]) for n, kind in enumerate(KIND)]
    result = analyse_errors(TRUTH, {"a": found(cats), "b": found([("dog", 0.5, 0, 0, 100, 100)])})
    expected = np.zeros((4, 4), int)
    expected[0, 0] = 1  # the correct cat
    expected[1, 0] = 1  # the dog called a cat
    expected[0, 1] = 1  # b's cat called a dog
    expected[3, 0] = 4  # part, too large, misplaced, background
    expected[:3, 3] = [1, 1, 0]  # missed
    assert result.confusion().tolist() == expected.tolist()


def test_the_nearer_object_decides_which_is_meant():
    truth = Truth(NAMES, {"a": objects([[0, 0, 100, 100], [0, 0, 60, 100]], [0, 0])})
    result = analyse_errors(truth, {"a": found([("cat", 0.5, 0, 0, 25, 100)])})  # part of both
    assert KINDS[result.kind[0]] == "part" and result.meant.tolist() == [1]


def test_scores_below_are_not_looked_at():
    rows = [("cat", 0.25, 0, 0, 100, 100), ("cat", 0.5, 300, 300, 310, 310)]
    result = analyse_errors(TRUTH, {"b": found(rows)}, min_score=0.3)
    assert [KINDS[k] for k in result.kind] == ["background"] and result.missed[0] == 2
    assert len(analyse_errors(TRUTH, {"b": found(rows)}, min_score=0.25).kind) == 2


def test_only_the_best_of_each_tag():
    rows = [("cat", 0.4, 0, 0, 100, 100), ("cat", 0.5, 0, 0, 30, 30), ("dog", 0.9, 0, 0, 100, 100)]
    result = analyse_errors(TRUTH, {"a": found(rows), "b": found(rows)}, tags={"b": ["cat"]})
    assert [KINDS[k] for k in result.kind] == ["part"] and result.gathered.image_ids[result.gathered.image[0]] == "b"


def test_agrees_with_average_precision_on_random_scenes():
    random = np.random.default_rng(0)
    for _ in range(200):
        truth, detections = random_scene(random, crowds=True)
        result, precision = analyse_errors(truth, detections), average_precision(truth, detections)
        for row, c in zip(result.rows(), precision.classes, strict=True):
            assert (row["correct"], row["ignored"], row["objects"]) == (c.found, c.ignored, c.objects)
        confusion = result.confusion()
        assert confusion.sum(axis=0)[:-1].tolist() == result.counts[:, :-1].sum(axis=1).tolist()
        assert analyse_errors(truth, of_truth(truth)).missed.sum() == 0
