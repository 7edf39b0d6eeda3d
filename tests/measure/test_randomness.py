"""Localization accuracy and variance, by hand."""

import math

import numpy as np
import pytest

from melm.measure.randomness import localization, randomness

OBJECTS = np.array([[0, 0, 10, 10], [40, 40, 50, 50]], float)
PROPOSALS = np.array([[0, 0, 10, 10], [40, 40, 50, 44], [80, 80, 90, 90]], float)  # overlaps 1, 0.4, 0


def test_by_hand():
    accuracy, variance = localization(np.array([2.0, 1.0, 1.0]), PROPOSALS, OBJECTS)
    assert accuracy == pytest.approx(0.5 * 1 + 0.25 * 0.4)
    assert variance == pytest.approx(0.5 * 0.4**2 + 0.25 * 0.2**2 + 0.25 * 0.6**2)


def test_certainty_has_no_variance():
    assert localization(np.array([0, 0.3, 0]), PROPOSALS, OBJECTS) == (pytest.approx(0.4), 0)


def test_means_over_pairs():
    even = np.array([1.0, 1.0])
    pairs = [(even, PROPOSALS[:2], OBJECTS[:1]), (even, PROPOSALS[1:], OBJECTS)]
    result = randomness(iter(pairs))
    assert result.accuracies.tolist() == pytest.approx([0.5, 0.2]) and result.accuracy == pytest.approx(0.35)
    assert result.variances.tolist() == pytest.approx([0.25, 0.04]) and result.variance == pytest.approx(0.145)
    assert math.isnan(randomness([]).accuracy)


@pytest.mark.parametrize(
    ("prob", "true"),
    [
        ([1, math.nan, 1], OBJECTS),
        ([1, -1, 1], OBJECTS),
        ([1, 1], OBJECTS),
        ([1, 1, 1], OBJECTS[:0]),
    ],
)
def test_nothing_is_made_up(prob, true):
    with pytest.raises(ValueError, match="expected"):
        localization(np.array(prob, float), PROPOSALS, true)


def test_where_nothing_is_believed_all_proposals_are_alike():
    nothing = localization(np.zeros(len(PROPOSALS)), PROPOSALS, OBJECTS)
    assert nothing == localization(np.ones(len(PROPOSALS)), PROPOSALS, OBJECTS)
