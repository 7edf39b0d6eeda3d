"""From an image to its regions: the convolution layers once, then RoI pooling of every proposal, its frame and its ring."""

from __future__ import annotations

import torch
from torch import Tensor

from melm.model.backbones.backbone import Backbone
from melm.model.branches import Regions
from melm.model.pooling import frame_and_ring, roi_pool
from melm.model.precision import in_products


def map_of(backbone: Backbone, image: Tensor) -> Tensor:
    """(H / stride, W / stride, C) of a normalised image (3, H, W)."""
    batch = image[None]
    if in_products(image.device):  # channels last: single precision learns more slowly so, bfloat16 twice as fast
        batch = batch.contiguous(memory_format=torch.channels_last)
    features: Tensor = backbone.trunk(batch)[0].permute(1, 2, 0).contiguous()
    return features


def pool_regions(backbone: Backbone, image: Tensor, proposals: Tensor, surround: bool) -> Regions:
    """What is pooled for the proposals (N, 4) of a normalised image (3, H, W): P x P x C each, with `surround` three times.

    The neck of a model on top is `backbone.head`, which maps each to its features (N, D).
    """
    features, size, scale = map_of(backbone, image), backbone.pooled_size, 1 / backbone.stride
    box = roi_pool(features, proposals, size, scale)  # (N, P, P, C)
    if not surround:
        return Regions(box)
    frame, inner, ring, within = frame_and_ring(proposals)
    return Regions(box, roi_pool(features, frame, size, scale, inner), roi_pool(features, ring, size, scale, within))
