"""The one result type."""

import sys

import numpy as np
import pytest

from melm.detect.detections import Detections, no_detections
from melm.errors import MelmError

BOXES = np.array([[0, 0, 10, 10], [5, 5, 20, 20], [1, 1, 4, 4], [2, 2, 8, 8]], np.float32)


@pytest.fixture
def found():
    scores = np.array([0.5, 0.9, 0.1, 0.5], np.float32)
    return Detections(BOXES, scores, np.array([0, 1, 1, 0]), ("cat", "dog", "cow"), 30, 20)


@pytest.mark.parametrize(
    "boxes, scores, classes",
    [
        (np.zeros((2, 4)), np.zeros(1), np.zeros(2, int)),
        (np.zeros((2, 4)), np.zeros(2), np.zeros(3, int)),
        (np.zeros((2, 5)), np.zeros(2), np.zeros(2, int)),
        (np.zeros(0), np.zeros(0), np.zeros(0, int)),  # no boxes are (0, 4)
    ],
)
def test_shapes_that_do_not_fit_are_refused(boxes, scores, classes):
    with pytest.raises(ValueError, match="were expected"):
        Detections(boxes, scores, classes, ("cat",), 30, 20)


@pytest.mark.parametrize(
    "chosen, left",
    [
        (slice(1, 3), [1, 2]),
        ([3, 0], [3, 0]),
        (np.array([True, False, False, True]), [0, 3]),
        (2, [2]),
        (-1, [3]),
        (np.int64(1), [1]),
        ([], []),
        (slice(0, 0), []),
    ],
)
def test_some_of_them(found, chosen, left):
    some = found[chosen]
    assert some.boxes.tolist() == BOXES[left].tolist() and len(some) == len(left)
    assert some.scores.tolist() == found.scores[left].tolist()
    assert some.classes.tolist() == found.classes[left].tolist()
    assert (some.names, some.width, some.height) == (found.names, 30, 20)


def test_iterating_ends(found):
    assert [one.scores[0] for one in found] == found.scores.tolist()


def test_by_score_and_class(found):
    assert found.above(0.5).scores.tolist() == pytest.approx([0.5, 0.9, 0.5])  # the limit itself is in
    assert found.best(3).boxes.tolist() == BOXES[[1, 0, 3]].tolist()  # of equal scores the first by coordinates
    assert found[[3, 2, 1, 0]].best(3).boxes.tolist() == BOXES[[1, 0, 3]].tolist()
    assert len(found.best(99)) == 4 and len(found.best(0)) == 0
    assert found.of("dog").boxes.tolist() == BOXES[[1, 2]].tolist()
    assert len(found.of("cow")) == 0
    assert found.class_names() == ["cat", "dog", "dog", "cat"]


def test_the_best_of_some_classes(found):
    assert found.best_of(["dog", "cow", "cat"]).boxes.tolist() == BOXES[[1, 0]].tolist()  # of equal scores, the first
    assert len(found.best_of([])) == 0 and len(no_detections(found.names, 30, 20).best_of(["cat"])) == 0
    with pytest.raises(MelmError, match="Did you mean 'cow'"):
        found.best_of(["cwo"])


def test_an_unknown_class_is_named(found):
    with pytest.raises(MelmError, match=r"'cwo'.*Did you mean 'cow'"):
        found.of("cwo")


def test_none():
    none = no_detections(["cat"], 30, 20)
    assert len(none) == 0 and none.boxes.shape == (0, 4) and none.names == ("cat",)
    assert len(none.above(0)) == len(none.best(5)) == len(none.of("cat")) == 0 and none.class_names() == []


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_to_supervision(found):
    supervision = pytest.importorskip("supervision")
    theirs = found.to_supervision()
    assert isinstance(theirs, supervision.Detections)
    assert theirs.xyxy.tolist() == BOXES.tolist() and theirs.confidence.tolist() == found.scores.tolist()
    assert theirs.class_id.tolist() == [0, 1, 1, 0] and theirs["class_name"].tolist() == ["cat", "dog", "dog", "cat"]
    assert len(theirs[theirs.confidence > 0.4]) == 3
    assert len(no_detections(["cat"], 30, 20).to_supervision()) == 0
    assert no_detections(["cat"], 30, 20).to_supervision().is_empty()


def test_supervision_that_is_not_installed(found, monkeypatch):
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(MelmError, match="pip install supervision"):
        found.to_supervision()
