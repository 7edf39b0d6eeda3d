"""Residual networks in torchvision's layout and with its names (v1.5: a stage's stride is on its first 3x3 convolution).

The trunk ends after the third stage, where the stride is 16; the fourth stage reads each pooled box.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from melm.model.backbones.backbone import TORCHVISION, Backbone


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(before, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.downsample(x))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1, beside a shortcut."""

    expansion = 4

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = width * self.expansion
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, after, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(after)
        self.downsample = _shortcut(before, after, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + self.downsample(x))


class ResNet(Backbone):
    """He et al. 2016, cut after the third stage."""

    stride = 16
    offset = -7.5  # every strided layer is centred on the first pixel of its step
    pooled_size = (
        14  # which the fourth stage halves: it sees as many cells of a box as it saw of an image of 224 pixels
    )
    head_layers = ("layer4",)
    convention = TORCHVISION

    def __init__(
        self, name: str, block: type[BasicBlock] | type[Bottleneck], blocks: tuple[int, int, int, int]
    ) -> None:
        super().__init__()
        self.name = name
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(block, blocks[0], 64, 64, 1)
        self.layer2 = _stage(block, blocks[1], 64 * block.expansion, 128, 2)
        self.layer3 = _stage(block, blocks[2], 128 * block.expansion, 256, 2)
        self.layer4 = _stage(block, blocks[3], 256 * block.expansion, 512, 2)
        self.channels = 256 * block.expansion
        self.features = 512 * block.expansion
        norms = tuple(name for name, module in self.named_modules() if isinstance(module, nn.BatchNorm2d))
        self.frozen = ("conv1", "layer1", *norms)
        self.train(self.training)  # batch normalisation in its lasting mode from the start

    def trunk(self, image: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(image)))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        for stage in (self.layer1, self.layer2, self.layer3):
            x = stage(x)
        return x

    def head(self, pooled: Tensor) -> Tensor:
        boxes = pooled.permute(0, 3, 1, 2)  # (N, C, P, P): a view, which the convolutions take as channels last
        maps: Tensor = self.layer4(boxes)  # (N, D, 7, 7)
        return maps.mean(dim=(2, 3))


def resnet18() -> ResNet:
    return ResNet("resnet18", BasicBlock, (2, 2, 2, 2))


def resnet50() -> ResNet:
    return ResNet("resnet50", Bottleneck, (3, 4, 6, 3))


def resnet101() -> ResNet:
    return ResNet("resnet101", Bottleneck, (3, 4, 23, 3))


def _stage(
    block: type[BasicBlock] | type[Bottleneck], blocks: int, before: int, width: int, stride: int
) -> nn.Sequential:
    after = width * block.expansion
    return nn.Sequential(block(before, width, stride), *(block(after, width, 1) for _ in range(blocks - 1)))


def _shortcut(before: int, after: int, stride: int) -> nn.Sequential:
    """The input itself (an empty sequence, which has no weights) or, where the shape changes, a 1x1 convolution of it."""
    if stride == 1 and before == after:
        return nn.Sequential()
    return nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
