"""The rules every method's boxes go through, and the methods on pictures whose objects are known."""

import numpy as np
import pytest

from conftest import draw_scene
from melm.boxes import iou
from melm.errors import UsageError
from melm.proposals import ProposalSettings, compute_proposals
from melm.proposals.edge_boxes import edges
from melm.proposals.selective_search_opencv import selective_search_opencv

FOUND = ["selective-search", "selective-search-opencv", "selective-search-quality", "edge-boxes"]


def given(*rows):
    return np.array([(*row, 0.0) for row in rows], dtype=np.float64).reshape(-1, 5)


@pytest.mark.parametrize("method", FOUND)
def test_objects_are_found(method):
    """Of 20 plain objects, some half hidden by others, each method finds at least 16 with an overlap of 0.7."""
    hits = 0
    for seed in range(10):
        image, objects = draw_scene(seed)
        proposals = compute_proposals(image, ProposalSettings(method, min_side=10))
        hits += int((iou(np.array(objects), proposals.boxes).max(axis=1) >= 0.7).sum())
    assert hits >= 16


@pytest.mark.parametrize("method", FOUND)
def test_rules(method):
    image, _ = draw_scene(3, (200, 150))
    proposals = compute_proposals(image, ProposalSettings(method))
    sides = proposals.boxes[:, 2:] - proposals.boxes[:, :2]
    assert proposals.boxes.dtype == proposals.prior.dtype == proposals.score.dtype == np.float32
    assert len(proposals.boxes) == len(proposals.prior) == len(proposals.score)
    assert (sides >= 20).all()
    assert len(np.unique(proposals.boxes, axis=0)) == len(proposals)
    assert (proposals.boxes[:, :2] >= 0).all() and (proposals.boxes[:, 2:] <= [200, 150]).all()
    assert proposals.boxes[-1].tolist() == [0, 0, 200, 150]
    assert ((proposals.prior >= 0) & (proposals.prior <= 1)).all()
    assert (proposals.score[:-1] > 0).all() == (method == "edge-boxes")


@pytest.mark.parametrize("method", FOUND)
def test_the_same_image_gives_the_same_boxes(method):
    image, _ = draw_scene(5)
    one, two = (compute_proposals(image, ProposalSettings(method)) for _ in range(2))
    np.testing.assert_array_equal(one.boxes, two.boxes)
    np.testing.assert_array_equal(one.prior, two.prior)


@pytest.mark.parametrize("method", FOUND)
def test_the_first_boxes_of_a_long_list_are_those_of_a_short_one(method):
    image, _ = draw_scene(7)
    many = compute_proposals(image, ProposalSettings(method, min_side=5))
    few = compute_proposals(image, ProposalSettings(method, min_side=5, max_boxes=8))
    assert len(few) == 8
    assert few.boxes[-1].tolist() == [0, 0, 160, 120]
    if method != "edge-boxes":  # its own suppression depends on the number asked for
        np.testing.assert_array_equal(few.boxes[:7], many.boxes[:7])


@pytest.mark.parametrize("method", FOUND)
@pytest.mark.parametrize("size", [(1, 1), (3, 200), (200, 3), (7, 7), (33, 33)])
def test_small_and_thin_images(method, size):
    width, height = size
    image = np.random.default_rng(0).integers(0, 255, (height, width, 3)).astype(np.uint8)
    proposals = compute_proposals(image, ProposalSettings(method))
    assert proposals.boxes[-1].tolist() == [0, 0, width, height]


@pytest.mark.parametrize("method", FOUND)
def test_a_blank_image_has_itself(method):
    proposals = compute_proposals(np.full((90, 120, 3), 128, np.uint8), ProposalSettings(method))
    assert [0, 0, 120, 90] in proposals.boxes.tolist()


def test_a_large_image_is_searched_small_and_answered_large():
    image, objects = draw_scene(2)
    large = np.repeat(np.repeat(image, 8, axis=0), 8, axis=1)  # 1280 x 960
    proposals = compute_proposals(large, ProposalSettings("edge-boxes", max_side=320))
    assert (proposals.width, proposals.height) == (1280, 960)
    assert (iou(np.array(objects) * 8.0, proposals.boxes).max(axis=1) >= 0.7).all()


def test_ready_made_boxes_keep_their_order_and_scores():
    image, _ = draw_scene(0)
    boxes = given(
        (50, 50, 90, 90), (10, 10, 40, 60), (0, 0, 160, 120), (10, 10, 40, 60), (5, 5, 12, 80), (-1, 20, 60, 121)
    )
    boxes[:, 4] = [1, 2, 3, 4, 5, 6]
    proposals = compute_proposals(image, ProposalSettings("file", file_digest="x"), boxes)
    # the whole image moves to the end, the second of two equal boxes and the thin one go, the last is clipped
    assert proposals.boxes.tolist() == [[50, 50, 90, 90], [10, 10, 40, 60], [0, 20, 60, 120], [0, 0, 160, 120]]
    assert proposals.score.tolist() == [1, 2, 6, 0]


def test_no_box_at_all():
    image, _ = draw_scene(0)
    without = ProposalSettings("file", whole_image=False, file_digest="x")
    assert len(compute_proposals(image, without, given())) == 0
    assert len(compute_proposals(image, ProposalSettings("file", file_digest="x"), given())) == 1


def test_orientation_is_the_direction_across_the_edge():
    """A vertical edge changes along x: 0 (or pi); a horizontal one along y: pi/2; y points down."""
    image = np.zeros((60, 60, 3), np.uint8)
    image[:, 30:] = 255
    strength, orientation = edges(image)
    assert strength[30, 29:31].max() == 1 and strength[30, :20].max() == 0
    assert np.isclose(np.sin(orientation[30, 30]), 0, atol=1e-3)
    strength, orientation = edges(image.transpose(1, 0, 2).copy())
    assert np.isclose(orientation[30, 30], np.pi / 2, atol=1e-3)
    falling = np.fromfunction(lambda y, x, c: 255.0 * (x + y > 60), (60, 60, 3)).astype(np.uint8)  # brighter to x and y
    assert np.isclose(edges(falling)[1][30, 30], np.pi / 4, atol=0.05)


def test_selective_search_forgets_opencvs_random_order():
    image, _ = draw_scene(1)
    one, two = selective_search_opencv(image), selective_search_opencv(image)
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "edge-boxs"}, "Did you mean 'edge-boxes'"),
        ({"max_boxes": 0}, "max_boxes. is 0"),
        ({"min_side": -1}, "min_side. is -1"),
        ({"min_side": float("nan")}, "min_side. is nan"),
        ({"max_side": 8}, "max_side. 8"),
    ],
)
def test_wrong_settings(settings, words):
    with pytest.raises(UsageError, match=words):
        ProposalSettings(**settings)


def test_settings_have_a_folder_each():
    names = {
        ProposalSettings().folder_name(),
        ProposalSettings(max_boxes=1000).folder_name(),
        ProposalSettings("edge-boxes").folder_name(),
        ProposalSettings("file", file_digest="a").folder_name(),
        ProposalSettings("file", file_digest="b").folder_name(),
    }
    assert len(names) == 5
    assert ProposalSettings().folder_name() == ProposalSettings(max_boxes=2000, min_side=20).folder_name()


def test_what_is_stored_is_found_again_and_only_that():
    """A change of version is on purpose. Boxes of `selective-search` that OpenCV made are not taken for ours."""
    assert ProposalSettings("edge-boxes", max_boxes=800).folder_name() == "edge-boxes-4bf748cd8af7"
    assert ProposalSettings("selective-search").folder_name() != "selective-search-d098506c175c"


def test_kept_settings_come_back():
    for method in FOUND:
        settings = ProposalSettings(method, max_boxes=77)
        assert ProposalSettings.from_dict(settings.as_dict()) == settings
    before = ProposalSettings("selective-search").as_dict() | {"version": 3}  # when that was OpenCV's
    assert ProposalSettings.from_dict(before) == ProposalSettings("selective-search-opencv")


def test_the_whole_image_is_there_once():
    """Also where shrinking and growing again would not give the same number."""
    image = np.full((2632, 1956, 3), 90, np.uint8)
    image[500:1500, 300:1200] = 200
    proposals = compute_proposals(image, ProposalSettings())
    assert (proposals.boxes == [0, 0, 1956, 2632]).all(axis=1).sum() == 1
