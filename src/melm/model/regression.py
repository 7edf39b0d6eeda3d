"""Box regression as in Fast R-CNN (Girshick 2015): how a box has to move to lie on an object, in its own widths and heights."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

SPREAD = (0.1, 0.1, 0.2, 0.2)  # what of it is called 1, so that a layer has numbers of about that size to learn
FARTHEST = 4.0  # sides grow or shrink by no more than this factor


def shift_to(boxes: Tensor, objects: Tensor) -> Tensor:
    """(N, 4): what moves boxes (N, 4) onto objects (N, 4). Its centre in widths and heights of the box, then log sides."""
    centre, side = _centre_and_side(boxes)
    aim, size = _centre_and_side(objects)
    return torch.cat([(aim - centre) / side, (size / side).log()], dim=1) / boxes.new_tensor(SPREAD)


def moved(boxes: Tensor, shift: Tensor, width: float | Tensor, height: float | Tensor) -> Tensor:
    """Boxes (N, 4) moved by `shift` (N, 4), the part of them that lies in an image of width x height. A box that would have
    left it stays."""
    centre, side = _centre_and_side(boxes)
    step = shift * shift.new_tensor(SPREAD)
    limit = math.log(FARTHEST)
    aim, half = centre + step[:, :2] * side, side * step[:, 2:].clamp(-limit, limit).exp() / 2
    edge = torch.stack([torch.as_tensor(side, dtype=boxes.dtype, device=boxes.device) for side in (width, height)])
    low, high = ((aim + way * half).clamp(min=0).minimum(edge) for way in (-1, 1))
    there = (high - low).amin(dim=1, keepdim=True) >= 1  # pixel
    return torch.where(there, torch.cat([low, high], dim=1), boxes)


def mirrored_shift(shift: Tensor) -> Tensor:
    """The same in the mirrored image."""
    return shift * shift.new_tensor([-1, 1, 1, 1])


def box_loss(shift: Tensor, wanted: Tensor) -> Tensor:
    """(N,) the smooth L1 distance, summed over the four numbers."""
    return F.smooth_l1_loss(shift, wanted, reduction="none").sum(dim=1)


def _centre_and_side(boxes: Tensor) -> tuple[Tensor, Tensor]:
    return (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]).clamp(min=1)
