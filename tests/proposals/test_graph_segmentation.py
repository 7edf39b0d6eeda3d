"""Graph segmentation: hand-made pictures, and what holds for any."""

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from conftest import draw_scene
from melm.proposals.graph_segmentation import DIGIT, STEPS, segment, sorted_edges

SIZES = st.tuples(st.integers(1, 24), st.integers(1, 24), st.just(3))
IMAGES = SIZES.flatmap(lambda size: hnp.arrays(np.uint8, size))


def parts(labels, region):
    """In how many pieces a region is, by pixels side by side or above each other."""
    return cv2.connectedComponents((labels == region).astype(np.uint8), connectivity=4)[0] - 1


@given(IMAGES, st.sampled_from([0, 1, 150, 1e4]), st.sampled_from([1, 5, 40, 1000]))
def test_regions_are_connected_and_cover_the_image(image, k, least):
    labels = segment(sorted_edges(image, 0.8), k, least)
    assert labels.shape == image.shape[:2]
    numbers, first, sizes = np.unique(labels, return_index=True, return_counts=True)
    assert numbers.tolist() == list(range(len(numbers)))
    assert (np.diff(first) > 0).all()  # numbered as one reads
    assert all(parts(labels, region) == 1 for region in numbers)
    assert len(numbers) == 1 or sizes.min() >= least


@given(IMAGES)
def test_edges_are_all_pairs_of_neighbours_by_difference(image):
    graph = sorted_edges(image, 0.8)
    height, width = image.shape[:2]
    assert len(set(graph.edges.tolist())) == len(graph.edges) == height * (width - 1) + width * (height - 1)
    assert (np.diff(graph.differences) >= 0).all()
    smooth = cv2.GaussianBlur(image.astype(np.float32), (0, 0), 0.8).reshape(-1, 3).astype(np.float64)
    one = graph.edges >> 1
    other = one + np.where(graph.edges & 1, width, 1)
    exact = np.linalg.norm(smooth[one] - smooth[other], axis=1) * STEPS
    np.testing.assert_allclose(graph.differences, exact, rtol=1e-5, atol=2)


def test_the_largest_difference_has_room():
    image = np.zeros((9, 9, 3), np.uint8)
    image[:, 4:] = 255
    most = sorted_edges(image, 0.01).differences.max()
    assert most == pytest.approx(255 * np.sqrt(3) * STEPS, abs=2) and most < 1 << 2 * DIGIT


def test_three_fields_are_three_regions():
    image = np.zeros((60, 90, 3), np.uint8)
    image[:, 30:] = (200, 0, 0)
    image[30:, 30:] = (0, 0, 200)
    expected = np.zeros((60, 90), int)
    expected[:, 30:] = 1
    expected[30:, 30:] = 2
    assert (segment(sorted_edges(image, 0.01), 100, 20) == expected).all()


@pytest.mark.parametrize(("k", "regions"), [(9, 2), (200, 1)])
def test_k_by_hand(k, regions):
    """Two fields of 8 pixels that differ by 10 * sqrt(3) = 17.3. Inside there is no difference: k / 8 has to reach 17.3."""
    image = np.full((4, 4, 3), 50, np.uint8)
    image[:, 2:] = 60
    assert segment(sorted_edges(image, 0.01), k, 1).max() + 1 == regions


def test_a_small_region_joins_what_it_is_most_alike():
    image = np.full((30, 30, 3), 50, np.uint8)
    image[:, 18:] = 200
    image[:, 15:18] = 180  # 90 pixels
    labels = segment(sorted_edges(image, 0.01), 10, 100)
    assert labels.max() == 1 and (labels[:, 15:] == 1).all() and (labels[:, :15] == 0).all()


def test_it_is_near_opencvs():
    """The same rule on the same differences; only equal ones come in another order."""
    image = cv2.cvtColor(draw_scene(4, (320, 240))[0], cv2.COLOR_RGB2Lab)
    ours = segment(sorted_edges(image, 0.8), 300, 100)
    theirs = cv2.ximgproc.segmentation.createGraphSegmentation(0.8, 300, 100).processImage(image)
    assert abs(int(ours.max()) - int(theirs.max())) <= 0.2 * theirs.max() + 1
