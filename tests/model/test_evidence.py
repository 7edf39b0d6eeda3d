"""Evidence that is not learned, by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from melm.config import MELM as DEFAULT
from melm.model.branches import Regions
from melm.model.evidence import LEAST, MIDDLE, contrast, from_middle_size, in_deviations
from melm.model.melm import MELM


def test_contrast_by_hand():
    """Box and ring alike, at a right angle and opposite: cosines 1, 0 and -1, whose mean is 0 and deviation sqrt(2/3)."""
    box = torch.tensor([[1.0, 0], [2, 0], [3, 0]])
    ring = torch.tensor([[5.0, 0], [0, 1], [-1, 0]])
    expected = torch.tensor([-1.0, 0, 1]) / (2 / 3) ** 0.5
    torch.testing.assert_close(contrast(Regions(box, box, ring)), expected)


def test_pooled_maps_are_compared_as_they_are():
    pooled = [torch.randn(4, 2, 2, 3) for _ in range(3)]
    flat = [part.flatten(1) for part in pooled]
    torch.testing.assert_close(contrast(Regions(*pooled)), contrast(Regions(*flat)))


def test_distance_from_the_middle_size_by_hand():
    """The middle one, e times as large and e times as small; the smallest that counts, one much smaller, and none at all."""
    share = torch.tensor([MIDDLE, MIDDLE * math.e, MIDDLE / math.e, LEAST, 1e-6, 0.0])
    far = math.log(15) ** 2
    torch.testing.assert_close(from_middle_size(share), torch.tensor([0, 1, 1, far, far, far]), atol=1e-6, rtol=1e-5)


@given(values=st.lists(st.floats(-100, 100), max_size=30))
def test_deviations(values):
    result = in_deviations(torch.tensor(values, dtype=torch.float64))
    assert len(result) == len(values) and torch.isfinite(result).all()
    if result.any():
        assert float(result.mean()) == pytest.approx(0, abs=1e-6)
        assert float(result.std(correction=0)) == pytest.approx(1, abs=1e-6)
        given = torch.tensor(values, dtype=torch.float64)
        assert (result.diff() * given.diff() >= 0).all()  # in the same order


def test_nothing_is_learned_through_it():
    box = torch.randn(5, 3, requires_grad=True)
    assert not contrast(Regions(box, box, torch.randn(5, 3))).requires_grad


def test_what_it_needs_is_said():
    features = torch.randn(5, 3)
    with pytest.raises(ValueError, match="ring"):
        contrast(Regions(features))
    model = MELM(torch.nn.Identity(), 3, 2, DEFAULT.with_(score_weight=1.0))
    with pytest.raises(ValueError, match="no score was given"):
        model(Regions(features), torch.rand(5, 4))
    model = MELM(torch.nn.Identity(), 3, 2, DEFAULT.with_(size_weight=1.0))
    with pytest.raises(ValueError, match="what share of the image"):
        model(Regions(features), torch.rand(5, 4))
    assert DEFAULT.with_(contrast_weight=1.0).reads_surround and not DEFAULT.with_(score_weight=1.0).reads_surround
