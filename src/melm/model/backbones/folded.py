"""EfficientNet-Lite for those who only read: the same numbers up to rounding, in two thirds of the time or less.

Batch normalisation, which stays as it came, is part of the weights, and activations happen in the convolution or in place.
Nothing here learns.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from melm.model.linear import onednn

if TYPE_CHECKING:
    from melm.model.backbones.efficientnet_lite import EfficientNetLite, InvertedBlock, SameConv2d


class Convolution:
    """A convolution with the normalisation after it folded in, and ReLU6."""

    def __init__(self, convolution: SameConv2d, norm: nn.BatchNorm2d, active: bool, kind: torch.dtype) -> None:
        scale, shift = scale_and_shift(norm)
        folded = convolution.weight.detach() * scale[:, None, None, None]
        self.weight = folded.to(kind).contiguous(memory_format=torch.channels_last)
        self.shift = shift.to(kind)
        self.of, self.active = convolution, active

    def __call__(self, x: Tensor) -> Tensor:
        of, sizes = self.of, x.shape[2:]
        all_of_it = [of.missing(axis, size) for axis, size in enumerate(sizes)]
        # An odd row or column belongs below or to the right alone. Nothing is copied to put it there: padded by a whole stride
        # more on both sides, the convolution begins one cell early.
        early = [padding % 2 for padding in all_of_it]
        padding = [of.stride[axis] * early[axis] + all_of_it[axis] // 2 for axis in (0, 1)]
        how = self.weight, self.shift
        if onednn(x):
            # by name: for a single image on one thread PyTorch would take 1x1 convolutions elsewhere, and ReLU6 apart
            after = ("hardtanh", [0.0, 6.0]) if self.active else ("none", [])
            y: Tensor = torch.ops.mkldnn._convolution_pointwise(
                x, *how, padding, of.stride, of.dilation, of.groups, *after, ""
            )
        else:
            y = F.conv2d(x, *how, padding=padding, stride=of.stride, dilation=of.dilation, groups=of.groups)
            y = F.hardtanh_(y, 0.0, 6.0) if self.active else y
        for axis in (0, 1):
            if early[axis]:
                y = y.narrow(2 + axis, 1, math.ceil(sizes[axis] / of.stride[axis]))
        return y


class Block:
    """An `InvertedBlock`."""

    def __init__(self, block: InvertedBlock, kind: torch.dtype) -> None:
        self.widen = Convolution(block._expand_conv, block._bn0, True, kind) if block.widens else None
        self.around = Convolution(block._depthwise_conv, block._bn1, True, kind)
        self.narrow = Convolution(block._project_conv, block._bn2, False, kind)
        self.adds = block.adds

    def __call__(self, x: Tensor) -> Tensor:
        y = self.narrow(self.around(self.widen(x) if self.widen else x))
        return y.add_(x) if self.adds else y


class Folded:
    """The trunk in two parts, as `Backbone.split` cuts it; its numbers are of the given kind."""

    def __init__(self, network: EfficientNetLite, kind: torch.dtype) -> None:
        self.kind = kind
        blocks = [Block(block, kind) for block in network._blocks]  # type: ignore[arg-type]
        self.first: list[Convolution | Block] = [
            Convolution(network._conv_stem, network._bn0, True, kind),
            *blocks[: network.cut],
        ]
        self.last: list[Convolution | Block] = [
            *blocks[network.cut :],
            Convolution(network._conv_head, network._bn1, True, kind),
        ]

    def stem(self, image: Tensor) -> Tensor:
        """(1, 3, H, W), channels last -> (1, M, h, w)"""
        image = image.to(self.kind)
        for layer in self.first:
            image = layer(image)
        return image

    def trunk(self, image: Tensor) -> Tensor:
        """(1, 3, H, W), channels last -> (1, C, h, w)"""
        return self.tail(self.stem(image))

    def tail(self, map: Tensor) -> Tensor:
        """(1, M, h, w), channels last -> (1, C, h, w). Like the rest it works in place, but never on what it is given."""
        for layer in self.last:
            map = layer(map)
        return map


def scale_and_shift(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """What batch normalisation with lasting statistics multiplies by and adds, channel by channel."""
    assert norm.running_mean is not None and norm.running_var is not None
    scale = (norm.weight / torch.sqrt(norm.running_var + norm.eps)).detach()
    return scale, (norm.bias - norm.running_mean * scale).detach()
