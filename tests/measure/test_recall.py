"""Recall of proposals, by hand."""

import numpy as np
import pytest

from melm.data import Source, read_image, read_tags
from melm.measure.recall import COUNTS, proposal_recall
from melm.measure.truth import TrueBoxes, Truth, read_truth
from melm.proposals import ProposalSettings, ReadyMade, compute_proposals


def objects(id, boxes, classes, difficult=None, crowd=None):
    flags = [np.array(f if f is not None else [False] * len(boxes), bool) for f in (difficult, crowd)]
    return TrueBoxes(id, np.array(boxes, float).reshape(-1, 4), np.array(classes, np.intp), *flags)


TRUTH = Truth(
    ("cat", "dog", "cow"),
    {
        "a": objects("a", [[0, 0, 10, 10], [20, 20, 30, 30]], [0, 1]),
        "b": objects("b", [[0, 0, 10, 10], [50, 50, 60, 60]], [0, 0], difficult=[False, True]),
        "c": objects("c", [[0, 0, 90, 90]], [1], crowd=[True]),
    },
)
BOXES = {
    "a": np.array([[90, 90, 99, 99]] * 10 + [[0, 0, 10, 10], [20, 20, 30, 26]]),  # cat exactly, as the 11th; dog by 0.6
    "b": np.array([[0, 0, 10, 4]]),  # cat by 0.4
    "c": np.zeros((0, 4)),
}


def test_by_hand():
    recall = proposal_recall(TRUTH, BOXES.get)
    assert recall.at(0.5) == pytest.approx(2 / 3)  # the difficult one and the crowd do not count
    assert recall.at(0.7) == pytest.approx(1 / 3)
    assert recall.at_with_difficult(0.5) == pytest.approx(2 / 4)
    assert recall.mabo() == pytest.approx(((1 + 0.4) / 2 + 0.6) / 2)  # cat 0.7, dog 0.6; no cow
    assert [(r["class"], r["objects"]) for r in recall.rows()] == [("cat", 2), ("dog", 1)]
    assert recall.boxes_per_image == pytest.approx(13 / 3) and recall.images == 3


def test_curve_counts_the_first_boxes_only():
    recall = proposal_recall(TRUTH, BOXES.get)
    assert recall.curve(0.5) == [(10, 0), (20, pytest.approx(2 / 3))]  # nothing beyond the longest list of 12
    assert recall.best_of_first.shape == (3, len(COUNTS))


def test_images_without_proposals_are_left_out():
    recall = proposal_recall(TRUTH, lambda id: BOXES[id] if id == "b" else None)
    assert recall.images == 1 and len(recall.best) == 1


@pytest.mark.slow
def test_opencvs_selective_search_on_voc2007(voc2007):
    """Recall of at least 0.90 on val at an overlap of 0.5, with at most 2,000 boxes.

    The file beside the data holds selective search of every image. OpenCV's finds the very same boxes on every 100th image, so
    the recall of the file on all of val, cut as OpenCV's is, is that of OpenCV's but for the order of the cut.
    """
    source = Source(voc2007, split="val")
    images = read_tags(source)
    boxes = ReadyMade(voc2007 / "proposals" / "voc_2007_trainval.mat").match([image.id for image in images])
    settings = ProposalSettings("selective-search-opencv", max_boxes=10**6, whole_image=False)
    for image, expected in list(zip(images, boxes, strict=True))[::100]:
        found = compute_proposals(read_image(image.path), settings)
        assert {tuple(box) for box in found.boxes.tolist()} == {tuple(box) for box in expected[:, :4].tolist()}
    by_id = {image.id: given[:2000, :4] for image, given in zip(images, boxes, strict=True)}
    recall = proposal_recall(read_truth(source), by_id.get)
    assert recall.images == len(images) == 2508 and recall.most_boxes == 2000
    assert recall.at(0.5) >= 0.90
