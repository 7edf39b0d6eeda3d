"""Overlaps, suppression and EXIF turns of boxes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from melm.boxes import area, clip, iou, nms, ranked, rotate_exif, supported, voted

corners = st.integers(0, 40)


def boxes_of(array):
    """Any four integers as a box with its corners in order."""
    array = array.astype(np.float64)
    return np.concatenate([np.minimum(array[:, :2], array[:, 2:]), np.maximum(array[:, :2], array[:, 2:])], axis=1)


some_boxes = st.integers(1, 12).flatmap(lambda n: arrays(np.int64, (n, 4), elements=corners)).map(boxes_of)


def test_iou_by_hand():
    a = np.array([[0, 0, 10, 10], [0, 0, 0, 0]])
    b = np.array([[0, 0, 10, 10], [5, 0, 15, 10], [20, 20, 30, 30], [0, 0, 0, 0]])
    # 50 shared of 150 covered; empty boxes overlap nothing, not even each other
    np.testing.assert_allclose(iou(a, b), [[1, 1 / 3, 0, 0], [0, 0, 0, 0]])


@given(some_boxes, some_boxes)
def test_iou_counts_pixels(a, b):
    def pixels(box):
        x1, y1, x2, y2 = box.astype(int)
        return {(x, y) for x in range(x1, x2) for y in range(y1, y2)}

    for i, j in [(0, 0), (-1, -1)]:
        one, two = pixels(a[i]), pixels(b[j])
        expected = len(one & two) / len(one | two) if one | two else 0
        assert iou(a, b)[i, j] == pytest.approx(expected)


def test_area_of_a_box_inside_out():
    assert area(np.array([[10.0, 10, 0, 20], [0, 0, 3, 4]])).tolist() == [0, 12]


def test_clip():
    assert clip(np.array([[-5.0, 2, 50, 9]]), 20, 8).tolist() == [[0, 2, 20, 8]]


@given(some_boxes, st.integers(0, 3), st.sampled_from([0.3, 0.5, 0.8]))
def test_nms_keeps_the_best_and_nothing_close_to_it(boxes, seed, threshold):
    scores = np.random.default_rng(seed).integers(0, 4, len(boxes)).astype(float)  # with ties
    kept = nms(boxes, scores, threshold)
    overlap = iou(boxes, boxes)
    assert scores[kept[0]] == scores.max()
    assert all(overlap[i, j] <= threshold for i in kept for j in kept if i != j)
    for i in set(range(len(boxes))) - set(kept):  # every box left out has a kept one, no worse, that covers it
        assert any(overlap[i, j] > threshold and scores[j] >= scores[i] for j in kept)


@given(some_boxes, st.integers(0, 5))
def test_ranking_and_nms_do_not_depend_on_the_order_of_the_input(boxes, seed):
    boxes = np.unique(boxes, axis=0)
    random = np.random.default_rng(seed)
    scores = random.integers(0, 3, len(boxes)).astype(float)
    shuffle = random.permutation(len(boxes))
    for order in (ranked, lambda b, s: nms(b, s, 0.5)):
        np.testing.assert_array_equal(
            boxes[order(boxes, scores)], boxes[shuffle][order(boxes[shuffle], scores[shuffle])]
        )


def test_support_by_hand():
    """Two boxes that overlap by 0.8 have 0.9 of the score of their class, the third 0.1; of the other class each has its own."""
    boxes = np.array([[0.0, 0, 10, 10], [0, 0, 10, 8], [20, 20, 30, 30]])
    scores = np.array([[0.5, 0.0], [0.4, 0.25], [0.1, 0.75]], np.float32)
    expected = [[0.5 * 0.9**0.5, 0], [0.4 * 0.9**0.5, 0.25 * 0.25**0.5], [0.1 * 0.1**0.5, 0.75 * 0.75**0.5]]
    np.testing.assert_allclose(supported(boxes, scores, 0.5), expected, rtol=1e-6)
    np.testing.assert_array_equal(supported(boxes, scores, 0.0), scores)
    assert supported(boxes[:0], scores[:0], 0.5).shape == (0, 2)
    assert not supported(boxes, 0 * scores, 0.5).any()


@given(boxes=some_boxes, seed=st.integers(0, 99), weight=st.floats(0, 2))
def test_support_lowers_scores_and_never_to_nothing(boxes, seed, weight):
    scores = np.random.default_rng(seed).random((len(boxes), 3)).astype(np.float32) + np.float32(0.01)
    found = supported(boxes, scores, weight)
    assert (found <= scores * 1.000001).all()
    there = area(boxes) > 0
    assert (found[there] > 0).all()


def test_voting_by_hand():
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 8], [50, 50, 60, 60], [0, 0, 5, 5]], np.float32)
    moved = voted(boxes, np.array([0.6, 0.2, 0.9, 0.0], np.float32), np.array([0, 2, 3]), 0.6)
    np.testing.assert_allclose(moved, [[0, 0, 10, 9.5], [50, 50, 60, 60], [0, 0, 5, 5]], rtol=1e-6)
    assert moved.dtype == np.float32


@given(some_boxes, st.integers(0, 3), st.sampled_from([0.3, 0.6, 1.0]))
def test_voting_is_a_mean_of_those_that_overlap(boxes, seed, overlap):
    scores = np.random.default_rng(seed).integers(0, 4, len(boxes)).astype(float)
    moved = voted(boxes, scores, np.arange(len(boxes)), overlap)
    for i, close in enumerate(iou(boxes, boxes) >= overlap):
        if scores[close].sum() > 0:
            np.testing.assert_allclose(moved[i], np.average(boxes[close], axis=0, weights=scores[close]))
        else:
            np.testing.assert_array_equal(moved[i], boxes[i])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_turn_with_the_picture(orientation):
    """Paint a box, let Pillow turn the picture, and look where the paint is."""
    from PIL import Image, ImageOps

    pixels = np.zeros((20, 30), np.uint8)
    pixels[3:9, 5:17] = 255
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = orientation
    image.info["exif"] = exif.tobytes()
    turned = np.asarray(ImageOps.exif_transpose(image))
    ys, xs = np.nonzero(turned)
    expected = [[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]]
    assert rotate_exif(np.array([[5.0, 3, 17, 9]]), orientation, 30, 20).tolist() == expected
