"""What a detector does outside PyTorch, or by a number that a trace would fix for good, in operators that ONNX has: OpenCV's
resizing, padding by the size of the map, pooling. Each gives what its original gives (tests/export/test_onnx.py)."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.onnx.operators import shape_as_tensor

from melm.model.backbones import Backbone
from melm.model.backbones.efficientnet_lite import SameConv2d
from melm.model.pooling import roi_pool


class SizedWhenRun(SameConv2d):
    """A `SameConv2d` that reads the size of its input when it runs: odd and even sides are padded differently."""

    def forward(self, input: Tensor) -> Tensor:
        reach = [(kernel - 1) * dilation for kernel, dilation in zip(self.kernel_size, self.dilation, strict=True)]
        around = [side // 2 for side in reach]
        if (stride := self.stride[0]) > 1:
            down, across = (
                (side - 1) // stride * stride + far + 1 - side for side, far in zip(input.shape[2:], reach, strict=True)
            )
            input = F.pad(input, (across // 2, across - across // 2, down // 2, down - down // 2))
            around = [0, 0]
        return F.conv2d(input, self.weight, self.bias, self.stride, around, self.dilation, self.groups)


class MaxRoiPool(torch.autograd.Function):
    """`roi_pool` of a map (1, C, h, w), which ONNX has: (N, P, P, C)."""

    @staticmethod
    def forward(ctx: Any, map: Tensor, boxes: Tensor, size: int, scale: float) -> Tensor:
        return roi_pool(map[0].permute(1, 2, 0).contiguous(), boxes, size, scale)

    @staticmethod
    def symbolic(g: Any, map: Any, boxes: Any, size: int, scale: float) -> Any:
        padded = g.op("Pad", boxes, g.op("Constant", value_t=torch.tensor([0, 1, 0, 0])))  # of which image: the first
        pooled = g.op("MaxRoiPool", map, padded, pooled_shape_i=[size, size], spatial_scale_f=scale)
        return g.op("Transpose", pooled, perm_i=[0, 2, 3, 1])


def sized_when_run(backbone: Backbone) -> Backbone:
    """A copy of a backbone whose layers all read the size of their input when they run."""
    backbone = copy.deepcopy(backbone)
    for layer in backbone.modules():
        if isinstance(layer, SameConv2d):
            layer.__class__ = SizedWhenRun
    return backbone


def size_of(pixels: Tensor) -> Tensor:
    """(2,) width and height of (H, W, 3)."""
    return shape_as_tensor(pixels)[:2].flip(0)


def larger(size: Tensor) -> Tensor:
    """(1,) the larger side. Not a plain number, which the exporter would divide in single precision."""
    return size.amax(dim=0, keepdim=True)


def resized(pixels: Tensor, larger_side: int) -> Tensor:
    """As `trunks.resized`, to the bit. That is OpenCV's linear interpolation of bytes, in whole numbers: weights are 2048ths, and
    sums lose their last bits on the way."""
    size = size_of(pixels)
    shrink = torch.tensor([larger_side]).double() / larger(size).double()
    small = torch.round(size.double() * shrink).clamp(min=1).long()
    (column, across), (row, down) = (between(size[axis], small[axis]) for axis in (slice(0, 1), slice(1, 2)))
    outside = (column < 0) | (column >= size[0] - 1)  # where columns end there is no other one; rows are just repeated
    across = torch.where(outside, 0.0, across)
    left, right = (within(column + step, size[0]) for step in (0, 1))
    above, below = (within(row + step, size[1]) for step in (0, 1))
    sums = (
        pixels[:, left].int() * in_2048ths(1 - across)[:, None] + pixels[:, right].int() * in_2048ths(across)[:, None]
    )
    sums = divided(sums, 16)  # (H, w, 3)
    upper, lower = (
        divided(sums[rows] * in_2048ths(weight)[:, None, None], 1 << 16)
        for rows, weight in ((above, 1 - down), (below, down))
    )
    return divided(upper + lower + 2, 4).to(torch.uint8)  # (h, w, 3)


def between(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """The first of the two of `before` (1,) places between which each of `after` (1,) lies, and how far behind it."""
    position = (numbers(after[0]) + 0.5) * (before.double() / after.double()) - 0.5
    position = position.float()
    low = torch.floor(position)
    return low.long(), position - low


def numbers(count: Tensor) -> Tensor:
    """0, 1, ... below a count that is known when the graph runs."""
    return torch.arange(count, dtype=torch.float64)  # type: ignore[call-overload, no-any-return]


def within(place: Tensor, limit: Tensor) -> Tensor:
    return torch.minimum(place.clamp(min=0), limit - 1)


def in_2048ths(weight: Tensor) -> Tensor:
    return torch.round(weight * 2048).int()


def divided(sums: Tensor, parts: int) -> Tensor:
    return torch.div(sums, parts, rounding_mode="trunc")


def region_weights(outer: Tensor, holes: Tensor, map: Tensor, stride: int) -> Tensor:
    """What each cell of a map (H, W, C) counts in the means over the parts of boxes, (parts, n, H W), by the share of it that
    they cover. As `pooling.region_mean`, which takes sums from a corner instead; a matrix product is what every runtime is good
    at. `outer` and `holes` (parts, n, 4) are of `trunks.region_parts`."""
    height, width, _ = shape_as_tensor(map).unbind()

    def shares(regions: Tensor) -> Tensor:
        x1, y1, x2, y2 = (regions.double() / stride).unsqueeze(2).unbind(1)  # (n, 1) each
        row, column = (numbers(cells) for cells in (height, width))
        down = (torch.minimum(y2, row + 1) - torch.maximum(y1, row)).clamp(min=0)  # (n, H)
        across = (torch.minimum(x2, column + 1) - torch.maximum(x1, column)).clamp(min=0)
        return (down[:, :, None] * across[:, None, :]).flatten(1)

    # part by part: a runtime can flatten no boxes at all, but not reshape them
    share = torch.stack([shares(part) - shares(hole) for part, hole in zip(outer, holes, strict=True)])
    area = share.sum(dim=2, keepdim=True)
    there = area > 1e-6
    return torch.where(there, share / torch.where(there, area, torch.ones_like(area)), torch.zeros_like(share)).float()


def means(map: Tensor, weights: Tensor) -> Tensor:
    """As `trunks.means`: the parts beside each other, (n, parts C)."""
    return parts_of(map, weights).flatten(1)


def parts_of(map: Tensor, weights: Tensor) -> Tensor:
    """The means over the parts of boxes, (n, parts, C)."""
    return (weights @ map.flatten(0, 1)).permute(1, 0, 2)


def in_order(rows: list[Tensor], values: list[Tensor]) -> Tensor:
    """What was read for some rows at a time, (n, D) each, in the order of all: (N, D)."""
    return torch.cat(values)[torch.argsort(torch.cat(rows))]


def in_deviations(values: Tensor) -> Tensor:
    """As `evidence.in_deviations`."""
    spread = values.std(correction=0)
    there = spread > 1e-6
    return torch.where(there, (values - values.mean()) / torch.where(there, spread, 1.0), 0.0)


def log_sigmoid(logits: Tensor) -> Tensor:
    """As PyTorch's, which would be exported as the logarithm of a sigmoid that may be 0."""
    return logits.clamp(max=0) - torch.log(1 + torch.exp(-logits.abs()))
