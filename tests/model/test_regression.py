"""Box regression: there and back, by hand, at the edge of the image, and mirrored."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from melm.model.regression import FARTHEST, SPREAD, box_loss, mirrored_shift, moved, shift_to
from melm.model.trunks import mirrored_boxes

SIDE = st.floats(2, 200)
BOX = st.tuples(st.floats(0, 100), st.floats(0, 100), SIDE, SIDE).map(lambda b: [b[0], b[1], b[0] + b[2], b[1] + b[3]])


def test_by_hand():
    boxes, objects = torch.tensor([[10.0, 20, 30, 60]]), torch.tensor([[15.0, 20, 55, 40]])
    # the centre goes from (20, 40) to (35, 30), the sides from 20 x 40 to 40 x 20
    shift = shift_to(boxes, objects)
    expected = [15 / 20 / 0.1, -10 / 40 / 0.1, math.log(2) / 0.2, math.log(0.5) / 0.2]
    torch.testing.assert_close(shift, torch.tensor([expected]))
    torch.testing.assert_close(moved(boxes, shift, 100, 100), objects)


@given(box=BOX, other=BOX)
def test_there_and_back(box, other):
    boxes, objects = torch.tensor([box]), torch.tensor([other])
    sides = [(b[:, 2:] - b[:, :2]) for b in (boxes, objects)]
    back = moved(boxes, shift_to(boxes, objects), 1000, 1000)
    if bool(((sides[1] / sides[0]).log().abs() <= math.log(FARTHEST)).all()):
        torch.testing.assert_close(back, objects, rtol=1e-3, atol=1e-2)
    else:
        assert bool(((back[:, 2:] - back[:, :2]) <= FARTHEST * sides[0] * 1.001).all())


@given(box=BOX, shift=st.lists(st.floats(-50, 50), min_size=4, max_size=4))
def test_in_the_image_and_a_box(box, shift):
    boxes = torch.tensor([box]).clamp(max=250)
    boxes[:, 2:] = torch.maximum(boxes[:, 2:], boxes[:, :2] + 1).clamp(max=320)
    result = moved(boxes, torch.tensor([shift]), 320, 320)
    assert bool((result >= 0).all()) and bool((result <= 320).all())
    assert bool((result[:, 2:] - result[:, :2] >= 1 - 1e-3).all())


def test_what_would_leave_the_image_stays():
    boxes = torch.tensor([[10.0, 10, 20, 20]])
    assert torch.equal(moved(boxes, torch.tensor([[-100.0, 0, 0, 0]]), 50, 50), boxes)


def test_nothing_to_move():
    boxes = torch.tensor([[1.0, 2, 30, 40], [5, 5, 10, 10]])
    torch.testing.assert_close(moved(boxes, torch.zeros(2, 4), 50, 50), boxes)
    assert moved(boxes[:0], torch.zeros(0, 4), 50, 50).shape == (0, 4)


@given(box=BOX, other=BOX)
def test_mirrored(box, other):
    boxes, objects = torch.tensor([box]), torch.tensor([other])
    there = shift_to(mirrored_boxes(boxes, 400), mirrored_boxes(objects, 400))
    torch.testing.assert_close(mirrored_shift(shift_to(boxes, objects)), there, rtol=1e-2, atol=1e-2)


def test_the_loss_by_hand():
    said, wanted = torch.tensor([[0.5, -2.0, 0, 0], [0, 0, 0, 0]]), torch.zeros(2, 4)
    assert box_loss(said, wanted).tolist() == pytest.approx([0.125 + 1.5, 0])
    assert len(SPREAD) == 4
