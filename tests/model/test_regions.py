"""The whole network, from pixels to losses, on a small VGG-F."""

import pytest
import torch

from melm.config import METHODS
from melm.model.backbones.backbone import Backbone
from melm.model.backbones.vgg import VGGF
from melm.model.melm import MELM, MinEntropyLoss
from melm.model.regions import pool_regions

BOXES = torch.tensor([[0, 0, 120, 90], [20, 10, 80, 70], [25, 12, 85, 72], [60, 30, 119, 88.0]])


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    return VGGF(features=16)


@pytest.mark.parametrize("surround", [False, True])
def test_from_pixels_to_gradients_in_the_first_learned_layer(backbone, surround):
    config = METHODS["L2+ARL"].with_(surround=surround, branch_sees_surround=surround)
    backbone.freeze()
    backbone.zero_grad()
    model = MELM(torch.nn.Module(), 16, 3, config)
    model.neck = _Head(backbone)
    image = backbone.normalise(torch.randint(0, 255, (90, 120, 3), dtype=torch.uint8))
    pooled = pool_regions(backbone, image, BOXES, surround)
    assert pooled.box.shape == (4, 6, 6, backbone.channels) and len(pooled.parts()) == (3 if surround else 1)
    output = model(pooled, BOXES, torch.ones(4), strength=0.3)
    losses = MinEntropyLoss(config)(output, BOXES, torch.tensor([1, 0, 0]), torch.ones(3))
    losses.total.backward()
    learned = [p for p in backbone.parameters() if p.requires_grad]
    assert learned and all(p.grad is not None and torch.isfinite(p.grad).all() for p in learned)
    assert any(p.grad.abs().sum() > 0 for p in learned)
    assert all(p.grad is None for p in backbone.parameters() if not p.requires_grad)


def test_a_method_that_needs_the_surround_says_so(backbone):
    model = MELM(_Head(backbone), 16, 3, METHODS["ContextLocNet"])
    image = backbone.normalise(torch.zeros((90, 120, 3), dtype=torch.uint8))
    with pytest.raises(ValueError, match="frame and ring"):
        model(pool_regions(backbone, image, BOXES, surround=False), BOXES)


class _Head(torch.nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = [backbone]  # not a submodule: its parameters are looked at on their own

    def forward(self, pooled):
        return self.backbone[0].head(pooled)
