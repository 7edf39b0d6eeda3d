"""Regions that go through layers together, and names of weights that must not change."""

import torch

from melm.model.branches import Regions
from melm.model.trunks import mlp


def test_together_is_each():
    regions = Regions(*torch.randn(3, 5, 8).unbind(0))
    layers = mlp(8, 6, 0.5).eval()
    together, each = regions.together(layers), regions.each(layers)
    for mine, his in zip(together.parts(), each.parts(), strict=True):
        torch.testing.assert_close(mine, his)
    box_alone = Regions(regions.box).together(layers)
    assert torch.equal(box_alone.box, each.box) and box_alone.ring is None
    without_frame = Regions(regions.box, None, regions.ring).together(layers)
    assert without_frame.frame is None and torch.equal(without_frame.ring, each.ring)
    assert Regions(*torch.zeros(3, 0, 8).unbind(0)).together(layers).box.shape == (0, 6)


def test_weights_keep_the_names_that_runs_have_stored():
    assert list(mlp(8, 6, 0.5).state_dict()) == ["0.weight", "0.bias", "3.weight", "3.bias"]
