"""Image classification, by hand and against a plain transcription."""

import math

import numpy as np
import pytest

from melm.errors import MelmError
from melm.measure.classification import classification

NAMES = ("cat", "dog", "cow")
SCORES = np.array([[0.9, 0.2, 0.1], [0.8, 0.6, 0.9], [0.7, 0.7, 0.2], [0.3, 0.1, 0.1]])
TAGS = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [1, 0, 0]])


def test_by_hand():
    result = classification(SCORES, TAGS, NAMES)
    # cat: right, wrong, right, right; dog: right, right, wrong, wrong
    assert result.ap[:2].tolist() == pytest.approx([(1 + 3 / 4 + 3 / 4) / 3, 1])
    assert result.ap_11_points[:2].tolist() == pytest.approx([(4 * 1 + 7 * 3 / 4) / 11, 1])
    assert math.isnan(result.ap[2]) and result.absent == ("cow",) and result.images.tolist() == [3, 2, 0]
    figures = result.figures()
    assert figures["mAP"] == pytest.approx((2.5 / 3 + 1) / 2)
    assert figures["P-C"] == pytest.approx((2 / 3 + 1) / 2)  # cow is predicted once, but no image shows it
    assert figures["R-C"] == pytest.approx((2 / 3 + 1) / 2)
    assert (figures["P-O"], figures["R-O"]) == (pytest.approx(4 / 6), pytest.approx(4 / 5))
    assert figures["F1-O"] == pytest.approx(2 * (4 / 6) * (4 / 5) / (4 / 6 + 4 / 5))


def test_macro_f1_is_the_mean_of_the_classes_f1():
    scores, tags = np.array([[0.9, 0.1], [0.9, 0.1], [0.9, 0.9]]), np.array([[1, 1], [0, 1], [0, 1]])
    result = classification(scores, tags, ("cat", "dog"))  # P 1/3, R 1 and P 1, R 1/3
    figures = result.figures()
    assert figures["P-C"] == pytest.approx(2 / 3) == figures["R-C"] and figures["F1-C"] == pytest.approx(1 / 2)


def test_unknown_pairs_are_left_out():
    known = np.ones_like(TAGS)
    known[1, 0] = known[1, 2] = 0  # the wrong cat and the wrong cow
    result = classification(SCORES, TAGS, NAMES, known)
    assert result.ap[0] == 1 and result.precision[0] == 1 and result.precision_o == 1
    known[3, 0] = 0
    assert classification(SCORES, TAGS, NAMES, known).recall_o == 1


def test_nothing_predicted():
    result = classification(SCORES, TAGS, NAMES, threshold=1.0)
    figures = result.figures()
    assert {figures[name] for name in ("P-C", "R-C", "F1-C", "P-O", "R-O", "F1-O")} == {0}
    assert figures["mAP"] > 0.9  # which needs no threshold


def test_equal_scores_rank_in_the_order_of_the_images():
    assert classification(np.full((2, 1), 0.5), np.array([[0], [1]]), ("cat",)).ap[0] == pytest.approx(1 / 2)


def test_against_plain_loops():
    random = np.random.default_rng(0)
    for _ in range(300):
        images = int(random.integers(2, 30))
        scores = random.integers(0, 10, (images, 4)) / 10
        tags, known = random.integers(0, 2, (images, 4)), random.integers(0, 4, (images, 4)) > 0
        tags[0, 0] = known[0, 0] = 1
        result = classification(scores, tags, tuple("abcd"), known, 0.6)
        totals = np.zeros(3)
        for k in range(4):
            order = sorted((i for i in range(images) if known[i, k]), key=lambda i: -scores[i, k])
            there = sum(int(tags[i, k]) for i in order)
            picked = [i for i in order if scores[i, k] >= 0.6]
            right = sum(int(tags[i, k]) for i in picked)
            totals += right, len(picked), there
            if not there:
                assert math.isnan(result.ap[k])
                continue
            points, so_far = [], 0
            for seen, i in enumerate(order, 1):
                so_far += int(tags[i, k])
                points.append((so_far, so_far / seen))
            area = sum(max(p for f, p in points if f >= n) for n in range(1, there + 1)) / there
            eleven = sum(max((p for f, p in points if 10 * f >= t * there), default=0) for t in range(11)) / 11
            assert (result.ap[k], result.ap_11_points[k]) == (pytest.approx(area), pytest.approx(eleven))
            assert result.recall[k] == pytest.approx(right / there)
            assert result.precision[k] == pytest.approx(right / len(picked) if picked else 0)
        assert result.recall_o == pytest.approx(totals[0] / totals[2])


def test_what_cannot_be_measured():
    with pytest.raises(MelmError, match="no tag"):
        classification(SCORES, np.zeros_like(TAGS), NAMES)
    with pytest.raises(MelmError, match="finite"):
        classification(np.full_like(SCORES, np.nan), TAGS, NAMES)
    with pytest.raises(ValueError, match="expected"):
        classification(SCORES, TAGS, NAMES[:2])
