"""What a student reads of a box: the parts of the last stage, and sharper ones of the first stages; and what it names cells."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from melm.model.backbones import build_backbone
from melm.model.student import Student, named_as, normalised
from melm.model.trunks import FrozenTrunk, side_strips


def a_trunk() -> FrozenTrunk:
    torch.manual_seed(0)
    trunk = FrozenTrunk(build_backbone("lite0"), (96,), 64.0, 4)
    trunk.fit(torch.rand(20, 1280))
    return trunk


def student(bins: int = 3, sharp: bool = True, fixed: bool = False, cells: bool = False) -> Student:
    return Student(a_trunk(), 8, 0.0, bins, sharp, fixed, cells, 3).eval()


def test_strips_by_hand():
    strips = side_strips(torch.tensor([[12.0, 0, 24, 60]]))[:, 0].tolist()
    assert strips == [
        [12, 0, 14, 60],  # left, inside
        [10, 0, 12, 60],  # and outside
        [22, 0, 24, 60],  # right
        [24, 0, 26, 60],
        [12, 0, 24, 10],  # top
        [12, -10, 24, 0],  # beyond the image: it will be 0
        [12, 50, 24, 60],  # bottom
        [12, 60, 24, 70],
    ]


@given(corner=st.tuples(st.floats(-50, 500), st.floats(-50, 500)), side=st.tuples(st.floats(1, 500), st.floats(1, 500)))
def test_strips_lie_along_the_sides(corner, side):
    box = torch.tensor([*corner, corner[0] + side[0], corner[1] + side[1]]).double()
    inner, outer = side_strips(box[None])[0::2, 0], side_strips(box[None])[1::2, 0]
    assert bool((inner[:, :2] >= box[:2] - 1e-6).all() and (inner[:, 2:] <= box[2:] + 1e-6).all())
    shared = (torch.minimum(outer[:, 2:], box[2:]) - torch.maximum(outer[:, :2], box[:2])).clamp(min=0)
    torch.testing.assert_close(shared.prod(dim=1), torch.zeros(4, dtype=torch.double))  # they touch the box, no more
    areas = [(strips[:, 2:] - strips[:, :2]).prod(dim=1) for strips in (inner, outer)]
    torch.testing.assert_close(areas[0], areas[1])
    torch.testing.assert_close(areas[0], (box[2:] - box[:2]).prod().expand(4) / 6)


def test_a_step_in_the_first_map_is_seen_in_the_strips_beside_it():
    """A map that is one thing left of pixel 64 and another right of it, and a box that begins there."""
    one, middle = student(), 112
    left, right = torch.randn(middle), torch.randn(middle)
    map = torch.stack([left] * 4 + [right] * 4)[None].expand(8, 8, middle).contiguous()  # cells of 16 pixels
    parts = one.read(map, torch.tensor([[64.0, 32, 112, 80]]))
    assert [part.shape for part in parts] == [(1, 4)] * 12 + [(1, middle)] * 17
    strips = parts[-8:]
    for number, expected in enumerate([right, left, right, right, right, right, right, right]):
        torch.testing.assert_close(strips[number][0], normalised(expected, middle), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bins", [0, 3])
@pytest.mark.parametrize("sharp", [False, True])
@pytest.mark.parametrize("fixed", [False, True])
def test_what_is_read_fits_the_layers(bins, sharp, fixed):
    one = student(bins, sharp, fixed)
    map, boxes = (
        torch.randn(5, 6, 116 if fixed else 112),
        torch.tensor([[0.0, 0, 96, 80], [10, 20, 11, 21], [90, 70, 300, 200]]),
    )
    assert len(one.read(map, boxes)) == 3 + bins**2 + sharp * (bins**2 + 8)
    said = one([map, None], [boxes, torch.zeros(0, 4)])
    assert said.log_prob.shape == (3, 4) and said.shift.shape == (3, 4)
    assert bool(torch.isfinite(said.log_prob).all() and torch.isfinite(said.shift).all())


def test_nothing_stays_nothing():
    """A strip beyond the map is 0, and so is what is left when it is brought to a deviation of 1."""
    assert torch.equal(normalised(torch.zeros(2, 5), 5), torch.zeros(2, 5))
    values = normalised(torch.tensor([[1.0, 2, 3, 6]]), 4)
    assert values.mean().item() == pytest.approx(0, abs=1e-6)
    assert values.std(correction=0).item() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("fixed", [False, True])
def test_what_learns(fixed):
    one = student(fixed=fixed)
    said = one([torch.randn(5, 6, 116 if fixed else 112)], [torch.tensor([[0.0, 0, 96, 80]])])
    (said.log_prob.sum() + said.shift.sum()).backward()
    learned = {
        name.split(".")[0] for name, p in one.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0
    }
    assert learned == {"neck", "verdict"} if fixed else learned >= {"tail", "reduce", "neck", "verdict"}


def test_stages_that_stay_are_the_trunks_own():
    """Students without stages read, of maps that hold them, what others read before they learn; and normalise it."""
    trunk, boxes = a_trunk(), torch.tensor([[0.0, 0, 96, 80], [16, 20, 70, 64]])
    pixels = np.random.default_rng(0).integers(0, 255, (80, 96, 3), dtype=np.uint8)
    (first,), (both,) = trunk.student_maps(pixels, (96,), deep=False), trunk.student_maps(pixels, (96,), deep=True)
    assert torch.equal(both[..., :112], first)
    own, none = (Student(trunk, 8, 0.0, 3, True, fixed, False, 3).eval() for fixed in (False, True))
    mean_of_box = trunk.look(pixels, boxes).box
    with torch.no_grad():
        torch.testing.assert_close(own.read(first, boxes)[0], mean_of_box, rtol=1e-3, atol=1e-3)
        for number, (had, has) in enumerate(zip(own.read(first, boxes), none.read(both, boxes), strict=True)):
            torch.testing.assert_close(has, normalised(had, 4) if number < 12 else had, rtol=1e-3, atol=1e-3)


def test_agreement_with_the_names_of_cells_by_hand():
    """All of a box is of the class and nothing around it; half of it, to the frame and beyond; nothing at all; and half of the
    whole picture, which has nothing around it."""
    shares = torch.tensor([[1.0, 0.5, 0.0, 0.5], [1.0, 0.4, 0.0, 0.4], [0.0, 0.6, 0.0, 0.1]])  # box, frame, ring
    covering = torch.tensor([False, False, False, True])
    most = np.log(1.01) + 1
    expected = [0, np.log(0.51) - 0.2 - most, np.log(0.01) - most, np.log(0.51) - most]
    found = named_as(shares[:, :, None], covering)[:, 0]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32))


def test_shares_of_named_cells():
    """Cells left of pixel 64 are of the first class, the others background; boxes on either side, across, and on all of it."""
    one = student(fixed=True, cells=True)
    one.named = lambda map: torch.tensor([1.0, 0, 0]).where(torch.arange(8)[None, :, None] < 4, 0).expand(8, 8, 3)  # type: ignore[method-assign]
    boxes = torch.tensor([[16.0, 32, 64, 96], [64, 32, 112, 96], [32, 32, 96, 96], [0, 0, 128, 128]])
    box, frame, ring = one.shares(torch.zeros(8, 8, 116), boxes)[:, :, 0]
    torch.testing.assert_close(box, torch.tensor([1, 0, 0.5, 0.5]))
    torch.testing.assert_close(frame, torch.tensor([1, 0, 0.5, 0.5]))
    assert (
        0 < ring[0] < 1 and 0 < ring[1] < 1 and ring[2] == pytest.approx(0.5) and ring[3] == 0
    )  # nothing lies around it


def test_cells_are_named_one_by_one():
    one = student(fixed=True, cells=True)
    map = torch.randn(5, 6, 116)
    named = one.cells(map)
    torch.testing.assert_close(named.exp().sum(dim=2), torch.ones(5, 6))
    torch.testing.assert_close(one.cells(map[2:3, 4:5]), named[2:3, 4:5])  # whatever lies around it
    torch.testing.assert_close(
        one.cells(torch.cat([map[..., :112] * 3 + 1, map[..., 112:]], dim=2)), named, rtol=1e-3, atol=1e-3
    )
    assert torch.equal(one.named(map), named[..., :-1].exp())
