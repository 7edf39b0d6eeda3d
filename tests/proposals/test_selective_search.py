"""Selective search on pictures of any kind."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from conftest import draw_scene
from melm.proposals.selective_search import selective_search

SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40), st.just(3))
IMAGES = SIZES.flatmap(lambda size: hnp.arrays(np.uint8, size))


@given(IMAGES)
def test_boxes_lie_in_the_image_each_once_by_coordinates(image):
    height, width = image.shape[:2]
    boxes = selective_search(image)
    assert boxes.dtype == np.float64 and boxes.shape[1] == 4
    assert (boxes[:, :2] >= 0).all() and (boxes[:, 2:] <= [width, height]).all()
    assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert boxes.tolist() == sorted(map(list, {tuple(box) for box in boxes.tolist()}))
    assert [0, 0, width, height] in boxes.tolist()  # where merging ends
    np.testing.assert_array_equal(boxes, selective_search(image.copy()))


@pytest.mark.parametrize("size", [(1, 1), (1, 700), (700, 1), (2, 2), (3, 500), (40, 40)])
@pytest.mark.parametrize("colour", [0, 128, 255])
def test_a_picture_of_one_colour_is_one_region(size, colour):
    boxes = selective_search(np.full((*size, 3), colour, np.uint8))
    assert boxes.tolist() == [[0, 0, size[1], size[0]]]


@pytest.mark.parametrize("size", [(1, 900), (900, 2), (5, 400)])
def test_long_and_thin_pictures(size):
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    assert [0, 0, size[1], size[0]] in selective_search(image).tolist()


def test_the_layout_in_memory_does_not_matter():
    image, _ = draw_scene(1)
    wide = np.zeros((*image.shape[:2], 4), np.uint8)
    wide[..., :3] = image
    for same in (np.asfortranarray(image), wide[..., :3], np.ascontiguousarray(image[::-1])[::-1]):
        np.testing.assert_array_equal(selective_search(same), selective_search(image))
